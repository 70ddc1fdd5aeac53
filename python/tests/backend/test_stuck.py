"""Workers that are stuck while their heartbeat goes on: they are replaced, and the run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_search import small_dataset, torch_model_fn

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.backend.driver.deadlines import Deadlines
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.wire.messages import GroupStalled, UnitStarted
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import LoadPartition, RunUnit, UnitFailed, UnitFinished, WorkerLost
from cerebro_spark.store.local import LocalStore
from cerebro_spark.types import Unit

SECONDS = 6.0


def blocking(folder: Path) -> Any:
    """A `train_fn` that blocks for ever in the first unit of all, whoever trains that, and never again.

    What is tried before the run has one batch.
    """

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        import contextlib
        import threading

        import torch

        every = list(batches)
        if len(every) > 1:
            with contextlib.suppress(FileExistsError), open(folder / "blocked", "x"):
                threading.Event().wait()
        total, rows = 0.0, 0
        for batch in every:
            x, y = (torch.from_numpy(batch[name]) for name in ("features", "label"))
            loss = model.loss(model.module(x), y)
            model.optimizer.zero_grad()
            loss.backward()
            model.optimizer.step()
            total, rows = total + loss.item() * len(y), rows + len(y)
        return {"loss": total, "rows": rows}

    return train_fn


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_unit_that_blocks_for_ever_is_trained_by_another_worker(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    search = cs.GridSearch(
        torch_model_fn,
        space={"lr": hp.choice([0.01, 0.02])},
        store=str(tmp_path / "runs"),
        metric="val_loss",
        epochs=2,
        backend=cs.LocalBackend(num_workers=2, threads=1),
        train_fn=blocking(tmp_path),
        framework="torch",
        unit_timeout=SECONDS,
        max_kills=50,
        progress=False,
    )
    result = search.fit(dataset, run_id="r1")
    assert result.finished
    assert len(result.history) == 4, "two epochs of two trials"
    events = list(EventLog(LocalStore(str(tmp_path / "runs")), "r1").read())
    stuck = [event for event in events if isinstance(event, WorkerLost)]
    assert any(f"took longer than {SECONDS:g} s" in event.reason for event in stuck)
    assert all(event.blames_unit for event in stuck)
    assert len([event for event in events if isinstance(event, UnitFinished)]) >= 2 * 2 * (2 + len(dataset.validation))


@pytest.mark.parametrize("value", [0, -3, True, "5", float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"`unit_timeout` is .*, but must be a number of seconds above 0"):
        cs.GridSearch(
            torch_model_fn,
            space={"lr": hp.choice([0.01])},
            store=str(tmp_path),
            metric="loss",
            epochs=1,
            unit_timeout=value,
        )


@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_a_number_of_kills_that_is_none_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="`max_kills` is"):
        cs.GridSearch(
            torch_model_fn,
            space={"lr": hp.choice([0.01])},
            store=str(tmp_path),
            metric="loss",
            epochs=1,
            max_kills=value,
        )


UNIT = Unit("t0", 1, "p0")


def run_unit(attempt: int, limit: float | None) -> RunUnit:
    return RunUnit("w0", UNIT, attempt, {}, limit=limit)


def finished(attempt: int) -> UnitFinished:
    return UnitFinished(0.0, "w0", UNIT, attempt, 1.0)


def test_a_clock_runs_from_the_beginning_of_a_unit_to_its_report() -> None:
    deadlines, handle = Deadlines(grace=100.0), WorkerHandle("w0", peer=1)
    assert deadlines.wait(0.0) is None
    deadlines.note_order(handle, run_unit(1, 10.0), 0.0)
    deadlines.note_order(handle, run_unit(2, 10.0), 0.0)
    assert deadlines.wait(4.0) == 6.0
    deadlines.note_report(handle, UnitStarted(1), 5.0)
    assert deadlines.overdue([handle], 14.9) == []
    deadlines.note_report(handle, UnitStarted(2), 14.0)
    (late,) = deadlines.overdue([handle], 15.0)
    assert late[1].key == 1, "its checkpoint may be stuck"
    deadlines.note_report(handle, finished(1), 15.0)
    assert deadlines.overdue([handle], 23.9) == []
    assert deadlines.wait(23.9) == pytest.approx(0.1)
    assert [order.key for _, order in deadlines.overdue([handle], 24.0)] == [2]
    deadlines.note_report(handle, UnitFailed(0.0, "w0", UNIT, 2, "error"), 24.0)
    assert deadlines.overdue([handle], 1e9) == []
    assert deadlines.wait(1e9) is None


def test_who_begins_nothing_at_all_is_overdue_too() -> None:
    deadlines, handle = Deadlines(grace=100.0), WorkerHandle("w0", peer=1)
    deadlines.note_order(handle, LoadPartition("w0", "p0", limit=10.0), 0.0)
    assert deadlines.overdue([handle], 109.0) == []
    (late,) = deadlines.overdue([handle], 110.0)
    assert late[1].key == "p0"


def test_what_waits_behind_something_without_a_limit_waits_as_long_as_that_takes() -> None:
    deadlines, handle = Deadlines(grace=1.0), WorkerHandle("w0", peer=1)
    deadlines.note_order(handle, run_unit(1, None), 0.0)
    deadlines.note_report(handle, UnitStarted(1), 0.0)
    deadlines.note_order(handle, run_unit(2, 10.0), 0.0)
    assert deadlines.overdue([handle], 1e6) == []
    deadlines.note_report(handle, finished(1), 1e6)
    deadlines.note_report(handle, UnitStarted(2), 1e6)
    assert [order.key for _, order in deadlines.overdue([handle], 1e6 + 20.0)] == [2]


def group_of_two() -> tuple[Deadlines, WorkerHandle, WorkerHandle]:
    """A group with ten seconds for its unit, whose first member waits for the second one."""
    deadlines, first, second = Deadlines(grace=100.0), WorkerHandle("w0", peer=1), WorkerHandle("w1", peer=2)
    order = RunUnit("w0", UNIT._replace(beside=("p1",)), 1, {}, limit=10.0, partners=("w1",))
    for handle in (first, second):
        deadlines.note_order(handle, order, 0.0)
    deadlines.note_report(first, UnitStarted(1), 0.0)
    deadlines.note_stall(first, GroupStalled(1), 1.0)
    return deadlines, first, second


def test_who_waits_for_another_member_is_not_the_one_that_is_stuck() -> None:
    deadlines, first, second = group_of_two()
    deadlines.note_report(second, UnitStarted(1), 2.0)
    assert deadlines.overdue([first, second], 11.9) == []
    assert [handle.name for handle, _ in deadlines.overdue([first, second], 12.0)] == ["w1"]


def test_the_time_for_which_a_member_waited_for_others_does_not_count() -> None:
    """The other one had something else to do for long: once it has come, both have as long as ever."""
    deadlines, first, second = group_of_two()
    assert deadlines.overdue([first, second], 20.0) == []
    deadlines.note_report(second, UnitStarted(1), 20.0)
    deadlines.note_stall(first, GroupStalled(1, over=True), 20.0)
    assert deadlines.overdue([first, second], 28.9) == []
    assert deadlines.wait(28.9) == pytest.approx(0.1)
    assert [handle.name for handle, _ in deadlines.overdue([first, second], 29.0)] == ["w0"], "it had begun before"


def test_members_that_all_wait_for_each_other_are_not_lost_but_leave() -> None:
    deadlines, first, second = group_of_two()
    deadlines.note_report(second, UnitStarted(1), 2.0)
    deadlines.note_stall(second, GroupStalled(1), 3.0)
    late = deadlines.overdue([first, second], 30.0)
    assert [(handle.name, order.waits_for_others) for handle, order in late] == [("w0", True), ("w1", True)]
    assert late[0][1].unit == UNIT._replace(beside=("p1",))
