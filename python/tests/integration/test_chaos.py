"""Workers and executors die, stall and come back from the dead in one run of real training, and nothing comes of it."""

from __future__ import annotations

import dataclasses
import os
import statistics
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from chaos import Chaos, Kind, Strike, UntilCalm, WatchedBackend, alive, await_end, heir, plan
from plain_loop import judged, logged
from small_search import small_dataset, torch_model_fn

from cerebro_spark import runs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.events import Event, Settings, UnitFinished, WorkAdded, WorkerJoined, WorkerLost
from cerebro_spark.recipe import Recipe
from cerebro_spark.store import paths
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Objective

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(1200)]
SEED = 20
TRIALS, PARTITIONS = 6, 3
KILLS: list[Kind] = ["worker", "worker", "task", "executor", "executor"]
# Each kind of failure, and twice as many kills: `make test-deep`.
if os.environ.get("CEREBRO_CHAOS") == "all":
    KILLS += ["worker", "worker", "worker", "task", "executor"]
KINDS: list[Kind] = [*KILLS, "stall", "return"]
MOST_UNITS = 5
HEARTBEAT = 8.0


class HardyRecipe(Recipe):
    """A run whose trials are not blamed for what we do to their workers."""

    def settings(self, workers: int) -> Settings:
        return dataclasses.replace(super().settings(workers), max_kills=99)


def recipe(dataset: Dataset, calm: Path) -> Recipe:
    configurations = [{"lr": 0.002 * (number + 1), "batch_size": 16} for number in range(TRIALS)]
    return HardyRecipe(
        UntilCalm(configurations, calm),
        Objective("val_loss", "min"),
        dataset,
        TrainerSpec(Hooks(torch_model_fn), seed=SEED),
    )


def test_a_run_survives_whatever_is_done_to_its_workers(
    tmp_path: Path, spark_cluster: Any, record_property: Callable[[str, object], None]
) -> None:
    dataset = small_dataset(tmp_path, rows=24_000, partitions=PARTITIONS)
    backend = WatchedBackend(spark_cluster, num_workers=3, threads=1, heartbeat=HEARTBEAT)
    with Chaos(backend, plan(KINDS, SEED, MOST_UNITS), SEED, tmp_path / "calm") as chaos:
        runs.execute(recipe(dataset, tmp_path / "calm"), dataset.store, backend, "wild", [chaos], progress=False)
    events = logged(dataset.store, "wild")
    report = [Toll(strike, events) for strike in chaos.strikes]
    print(*report, sep="\n")
    for number, toll in enumerate(report):
        record_property(f"blow {number}", str(toll))

    check_blows(chaos.strikes, events)
    check_exactly_once(events)
    check_the_dead_stay_dead(chaos.strikes, events)
    check_nobody_else_pauses(report, events)
    runs.replay(dataset.store, "wild", LocalBackend(2, threads=1), "calm", progress=False)
    check_same_weights(dataset)


class Toll:
    """What one blow cost, in seconds: until it was noticed, until somebody else was there, until its unit was done."""

    def __init__(self, strike: Strike, events: list[Event]) -> None:
        self.strike = strike
        self.lost = next(e for e in events if isinstance(e, WorkerLost) and e.worker == strike.worker)
        self.joined = next(e.at for e in events if isinstance(e, WorkerJoined) and e.worker == heir(strike.worker))
        self.noticed = self.lost.at - strike.at
        self.replaced = self.joined - self.lost.at
        ends = [e.at for e in events if isinstance(e, UnitFinished) and e.unit == strike.unit]
        self.done = next((at - strike.at for at in ends if at > strike.at), None)

    def __str__(self) -> str:
        where = "between units" if self.done is None else f"in a unit, which was done {self.done:.2f} s later"
        return (
            f"{self.strike.kind:8} {self.strike.worker:5} at {self.strike.at:6.2f} s, {where}: noticed after"
            f" {self.noticed:.2f} s ({self.lost.reason}), somebody new {self.replaced:.2f} s after that"
        )


def check_blows(strikes: list[Strike], events: list[Event]) -> None:
    """All blows fell, most of them on units, and were noticed: at once where a process died, else by the heartbeat.

    By what it was noticed is told by the reason, which no busy machine can change; how long it took is in the report.
    """
    assert [strike.kind for strike in strikes] == [blow.kind for blow in plan(KINDS, SEED, MOST_UNITS)]
    kills = [strike for strike in strikes if strike.kind in ("worker", "task", "executor")]
    assert len(kills) == len(KILLS)
    finished = {event.attempt for event in events if isinstance(event, UnitFinished)}
    in_unit = [strike for strike in strikes if strike.attempt is not None and strike.attempt not in finished]
    assert 2 * len(in_unit) >= len(strikes)
    lost = {event.worker: event for event in events if isinstance(event, WorkerLost)}
    assert {strike.worker for strike in strikes} <= set(lost)
    for strike in strikes:
        by_silence = lost[strike.worker].reason.startswith("silent for")
        assert by_silence == (strike not in kills), (strike, lost[strike.worker].reason)


def check_exactly_once(events: list[Event]) -> None:
    scheduler, counted = judged(events)
    assert scheduler.finished
    assert not [trial.error for trial in scheduler.state.trials.values() if trial.error]
    units = [event.unit for order in counted.values() for event in order]
    asked = {event.work.trial: event.work.until_epoch for event in events if isinstance(event, WorkAdded)}
    assert len(asked) == TRIALS
    assert len(units) == len(set(units)) == sum(asked.values()) * PARTITIONS


def check_the_dead_stay_dead(strikes: list[Strike], events: list[Event]) -> None:
    """What a worker said after it was given up was not heard; nothing of its processes is left."""
    given_up: set[str] = set()
    for event in events:
        if isinstance(event, WorkerLost):
            given_up.add(event.worker)
        elif isinstance(event, UnitFinished):
            assert event.worker not in given_up
    for strike in strikes:
        await_end(strike.pid, seconds=120.0)
    assert [strike for strike in strikes if alive(strike.pid)] == []


def check_nobody_else_pauses(report: list[Toll], events: list[Event]) -> None:
    """From when a loss is known until somebody new is there, the others end units as ever.

    Where a whole process must be started, that takes longer than many units, however busy the machine is; so in most of
    these spans somebody ends one. Not in all of them: another one may have stalled, and hold what all wait for. A
    worker that its parent replaces is there before anybody could end one.
    """
    ends = sorted(event.at for event in events if isinstance(event, UnitFinished))
    usual = statistics.median(after - before for before, after in pairwise(ends))
    long = [toll for toll in report if toll.joined - toll.lost.at > 20 * usual]
    ended = [sum(toll.lost.at <= at <= toll.joined for at in ends) for toll in long]
    assert ended, "a killed executor takes its workers' parents along"
    assert statistics.median(ended) >= 1, ended


def check_same_weights(dataset: Dataset) -> None:
    """Every unit of the calm replay left the bits that the wild run's did; so did what is kept."""
    digests = []
    for run in ("wild", "calm"):
        scheduler, counted = judged(logged(dataset.store, run))
        digests.append({e.unit: e.checkpoint.digest for order in counted.values() for e in order if e.checkpoint})
        best = [trial.best for trial in scheduler.state.trials.values()]
        assert sorted(dataset.store.list(paths.checkpoint_folder(run))) == sorted(
            paths.checkpoint(run, checkpoint) for checkpoint in best if checkpoint
        )
    assert digests[0] == digests[1]
