"""Orders with units of several trials: on their way to a worker, in its process, and in the books of the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_search import small_dataset, torch_model_fn

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.backend.driver.deadlines import Deadlines
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wire.messages import Stop, ToWorker, UnitStarted, pack, unpack_order
from cerebro_spark.backend.worker.worker import Worker
from cerebro_spark.errors import ConfigurationError, TrialFailed
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    LoadPartition,
    RunStarted,
    RunUnit,
    UnitFailed,
    UnitFinished,
    UnitWithdrawn,
    WithdrawUnit,
)
from cerebro_spark.outcomes import view_of
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.base import EvaluatedMember, Hooks, Member
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Checkpoint, Metrics, Unit


def unit_of(attempt: int, **fields: Any) -> RunUnit:
    return RunUnit("w0", Unit(f"t{attempt}", 1, "p0"), attempt, {"lr": 0.1 * attempt}, **fields)


def finished(attempt: int) -> UnitFinished:
    return UnitFinished(0.0, "w0", Unit(f"t{attempt}", 1, "p0"), attempt, 1.0, width=3)


def test_they_travel_whole() -> None:
    parent, carry = Checkpoint("t2", 1, 2, 3, 4, "digest"), Metrics({"loss": 1.0}, {"loss": 2.0})
    order = unit_of(1, limit=9.0, others=(unit_of(2, parent=parent, carry=carry, rebased=True), unit_of(3)))
    assert unpack_order(pack(order)) == order


def test_a_clock_runs_until_the_last_of_them_is_reported() -> None:
    deadlines, handle = Deadlines(grace=100.0), WorkerHandle("w0", peer=1)
    deadlines.note_order(handle, unit_of(1, limit=10.0, others=(unit_of(2), unit_of(3))), 0.0)
    deadlines.note_report(handle, UnitStarted(1), 1.0)
    deadlines.note_report(handle, UnitStarted(2), 4.0)
    deadlines.note_report(handle, finished(1), 5.0)
    deadlines.note_report(handle, UnitFailed(0.0, "w0", Unit("t3", 1, "p0"), 3, "error"), 6.0)
    assert deadlines.overdue([handle], 10.9) == []
    ((_, late),) = deadlines.overdue([handle], 11.0)
    assert (late.key, late.what) == (1, "unit t1/1/p0 with 2 more trials")
    deadlines.note_report(handle, finished(2), 11.0)
    assert deadlines.overdue([handle], 1e9) == []
    assert handle.orders == {}


def test_a_clock_runs_for_those_that_are_left_when_the_first_was_withdrawn() -> None:
    deadlines, handle = Deadlines(grace=100.0), WorkerHandle("w0", peer=1)
    deadlines.note_order(handle, unit_of(1, limit=10.0, others=(unit_of(2),)), 0.0)
    deadlines.note_report(handle, UnitWithdrawn(0.0, "w0", Unit("t1", 1, "p0"), 1), 1.0)
    deadlines.note_report(handle, UnitStarted(2), 5.0)
    assert deadlines.overdue([handle], 14.9) == []
    assert [late.key for _, late in deadlines.overdue([handle], 15.0)] == [1]
    deadlines.note_report(handle, finished(2), 15.0)
    assert handle.orders == {}


class Recording:
    """Stands for the runner of units: it notes what it is told, and what it was told while it was at that."""

    def __init__(self, worker: Worker, meanwhile: Sequence[ToWorker]) -> None:
        self._worker, self._meanwhile = worker, list(meanwhile)
        self.ran: list[list[int]] = []

    def fetch(self, parent: Checkpoint) -> bytes:
        return b""

    def run(self, order: RunUnit, parent: Any) -> None:
        self.run_together(order, {})

    def run_together(self, order: RunUnit, parents: Any) -> None:
        self.ran.append([unit.attempt for unit in order.members])
        while self._meanwhile:
            self._worker.take(self._meanwhile.pop(0))

    def close(self) -> None:
        pass


def test_a_worker_gives_back_what_it_has_not_begun(tmp_path: Path) -> None:
    dataset, said = small_dataset(tmp_path, partitions=1), list[Any]()
    job = Job("r1", dataset.store, dataset, TrainerSpec(Hooks(torch_model_fn), framework="torch"))
    worker = Worker("w0", job, said.append)
    runner = Recording(worker, [WithdrawUnit("w0", attempt) for attempt in (1, 2, 5, 5, 77)])
    worker._units = runner  # type: ignore[assignment]
    parent = Checkpoint("t2", 1, 1, 0)
    orders: list[ToWorker] = [
        unit_of(1),
        unit_of(2, parent=parent, others=(unit_of(3, parent=parent), unit_of(4))),
        unit_of(5, parent=parent),
        unit_of(6),
        Stop(),
    ]
    for order in orders:
        worker.take(order)
    worker.work()
    assert runner.ran == [[1], [3, 4], [6]]
    assert [(report.unit.trial, report.attempt) for report in said] == [("t2", 2), ("t5", 5)]
    assert all(isinstance(report, UnitWithdrawn) for report in said)


class Measuring:
    """Stands for a trainer: it evaluates two together, and a third fails."""

    def evaluate_together(self, members: Sequence[Member]) -> list[EvaluatedMember | Exception]:
        self.members = members
        found = EvaluatedMember(Metrics({"loss": 1.0}, {"loss": 2.0}), {"loss": 0.5}, width=2, seconds=0.25)
        return [found, TrialFailed("boom"), found]


class Broken:
    def evaluate_together(self, members: Sequence[Member]) -> list[EvaluatedMember | Exception]:
        raise OSError("no memory")


def evaluated(folder: Path, trainer: Any, missing: Sequence[int] = ()) -> list[Any]:
    """What a worker says of an order of evaluations; the checkpoints of some attempts are not in the store."""
    dataset, said = small_dataset(folder, partitions=1), list[Any]()
    job = Job("r1", dataset.store, dataset, TrainerSpec(Hooks(torch_model_fn), framework="torch"))
    partition = next(partition.id for partition in dataset.partitions if partition.split == "validation")
    units = []
    for attempt in range(1, 4 + len(missing)):
        parent = Checkpoint(f"t{attempt}", 1, 1, 10 + attempt, 4)
        if attempt not in missing:
            dataset.store.write(paths.checkpoint("r1", parent), b"1234")
        unit = Unit(f"t{attempt}", 1, partition, "eval")
        units.append(RunUnit("w0", unit, attempt, {"lr": 0.1}, parent, final=True))
    worker = Worker("w0", job, said.append)
    worker._units._trainer = trainer
    worker.take(LoadPartition("w0", partition))
    worker.take(replace(units[0], others=tuple(units[1:])))
    worker.take(Stop())
    worker.work()
    return [message for message in said if isinstance(message, UnitStarted | UnitFinished | UnitFailed)]


def test_a_worker_evaluates_them_together_and_reports_each(tmp_path: Path) -> None:
    trainer = Measuring()
    started, missed, failed, *finished = evaluated(tmp_path, trainer, missing=[2])
    assert started == UnitStarted(1)
    assert (missed.attempt, failed.attempt, failed.blame) == (2, 3, "trial")
    assert [report.attempt for report in finished] == [1, 4]
    assert {(report.width, report.seconds, report.checkpoint) for report in finished} == {(2, 0.25, None)}
    assert [report.values for report in finished] == [{"loss": 0.5}] * 2
    assert [member.unit.trial for member in trainer.members] == ["t1", "t3", "t4"]
    assert all(member.final and member.source is not None for member in trainer.members)


def test_what_fails_all_of_them_is_reported_of_each(tmp_path: Path) -> None:
    _, *failed = evaluated(tmp_path, Broken())
    assert [(report.attempt, report.blame) for report in failed] == [(1, "worker"), (2, "worker"), (3, "worker")]


@pytest.mark.parametrize("value", [True, 1, 0, -3, 2.0, "yes", None])
def test_what_is_no_number_of_trials_is_refused(value: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"`fuse` is .*, but must be 'auto', False, or how many"):
        cs.GridSearch(
            torch_model_fn, space={"lr": hp.choice([0.01])}, store=str(tmp_path), metric="loss", epochs=1, fuse=value
        )


def searched(folder: Path, run: str, **options: Any) -> tuple[dict[Unit, str], Any]:
    """The digest of what each training unit left, and the result; with one worker and one partition."""
    search = cs.GridSearch(
        torch_model_fn,
        space={"lr": hp.choice([0.01, 0.02, 0.03, 0.04]), "batch_size": hp.choice([16, 40])},
        store=str(folder / "runs"),
        metric="val_loss",
        epochs=2,
        backend=cs.LocalBackend(num_workers=1, threads=1),
        framework="torch",
        progress=False,
        **options,
    )
    result = search.fit(small_dataset(folder / run, partitions=1), run_id=run)
    events = EventLog(LocalStore(str(folder / "runs")), run).read()
    return {e.unit: e.checkpoint.digest for e in events if isinstance(e, UnitFinished) and e.checkpoint}, result


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_trials_that_go_together_learn_what_they_learn_by_themselves(tmp_path: Path) -> None:
    alone, plain = searched(tmp_path, "alone")
    together, result = searched(tmp_path, "together", fuse=4)
    assert len(alone) == 16
    assert together == alone, "every checkpoint, to the last bit"
    measured = ["trial", "epoch", "loss", "val_loss"]
    assert result.history[measured].equals(plain.history[measured]), "and all that was measured"
    assert set(plain.units["width"]) == {1}
    for kind in ("train", "eval"):
        units = result.units[result.units["kind"] == kind]
        assert units.groupby("bundle").size().max() == 4, "four were ordered at once"
    for units in (plain.units, result.units):
        trained = units[units["kind"] == "train"]
        expected = ["eager" if width == 1 else "stacked" for width in trained["width"]]
        assert list(trained["steps"]) == expected
        assert set(units[units["kind"] == "eval"]["steps"]) == {""}
    turns = list(EventLog(LocalStore(str(tmp_path / "runs")), "together").turns())
    started = turns[0].events[0]
    assert isinstance(started, RunStarted)
    assert started.settings.fuse == 4
    assert view_of(turns).finished
    cs.replay(str(tmp_path / "runs"), "together", backend=cs.LocalBackend(num_workers=2, threads=1))
