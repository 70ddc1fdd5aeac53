"""Runs whose trials several workers train together: what tests of them share. It never trains."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from chaos import Strike, Watched, await_end
from plain_loop import judged, logged
from small_driver import SEED
from small_search import torch_model_fn

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, GroupGaveUp, Settings, UnitFinished, WorkAdded, WorkerJoined, WorkerLost
from cerebro_spark.recipe import Recipe
from cerebro_spark.search import Search
from cerebro_spark.store import paths
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Objective, Unit


class HardyRecipe(Recipe):
    """A run whose trials are not blamed for what is done to their workers."""

    def settings(self, workers: int) -> Settings:
        return dataclasses.replace(super().settings(workers), max_kills=99)


def recipe(dataset: Dataset, asked: Search, **options: Any) -> Recipe:
    trainer = TrainerSpec(Hooks(torch_model_fn), seed=SEED)
    return HardyRecipe(asked, Objective("val_loss", "min"), dataset, trainer, **{"group": 2, **options})


def sizes(events: Sequence[Event]) -> list[int]:
    """How many workers trained each unit."""
    return [len(e.workers) for e in events if isinstance(e, UnitFinished) and e.unit.kind == "train"]


def exchanged(events: Sequence[Event]) -> int:
    """How many bytes the members of groups told each other."""
    return sum(event.exchanged for event in events if isinstance(event, UnitFinished))


def digests(events: Sequence[Event]) -> dict[Unit, str]:
    """What each training unit that counts left."""
    _, counted = judged(events)
    return {e.unit: e.checkpoint.digest for units in counted.values() for e in units if e.checkpoint}


def check_exactly_once(dataset: Dataset, run: str) -> list[Event]:
    """Every partition was trained on once an epoch, by whatever group, and the run came to its end.

    Only the best checkpoints are left: whoever died, nothing lies about that nobody knows of.
    """
    events = logged(dataset.store, run)
    scheduler, counted = judged(events)
    assert scheduler.finished
    assert not [trial.error for trial in scheduler.state.trials.values() if trial.error]
    units = [event.unit for order in counted.values() for event in order]
    visits = Counter((unit.trial, unit.epoch, partition) for unit in units for partition in unit.partitions)
    asked = {event.work.trial: event.work.until_epoch for event in events if isinstance(event, WorkAdded)}
    assert set(visits.values()) == {1}
    assert len(visits) == sum(asked.values()) * len(dataset.train)
    best = [trial.best for trial in scheduler.state.trials.values()]
    kept = sorted(paths.checkpoint(run, checkpoint) for checkpoint in best if checkpoint)
    assert sorted(dataset.store.list(paths.checkpoint_folder(run))) == kept
    return events


def check_survivors(strikes: Sequence[Strike], dataset: Dataset, run: str, workers: int) -> None:
    """Nobody was lost but those that were struck, and each of these cost one training unit at most."""
    events = logged(dataset.store, run)
    lost = [event.worker for event in events if isinstance(event, WorkerLost)]
    assert sorted(lost) == sorted(strike.worker for strike in strikes)
    joined = [event.worker for event in events if isinstance(event, WorkerJoined)]
    assert len(joined) == len(set(joined)) == workers + len(strikes)
    turns = EventLog(dataset.store, run).turns()
    trained = {
        o.attempt for turn in turns for outcome in turn.outcomes for o in outcome.orders if o.unit.kind == "train"
    }
    assert len(judged(events)[0].state.given_up & trained) <= len(strikes)
    for strike in strikes:
        await_end(strike.pid, seconds=60.0)


class Starts:
    """When workers began which attempt, by the clock of their backend, which they are told of before anybody else."""

    def __init__(self, backend: Watched) -> None:
        self._backend, self._before = backend, backend.on_start
        self.all: list[tuple[str, int, float]] = []
        backend.on_start = self

    def __call__(self, worker: str, attempt: int) -> None:
        self.all.append((worker, attempt, self._backend.now()))
        self._before(worker, attempt)

    def describe(self, strike: Strike, events: Sequence[Event]) -> str:
        """How long it took until a blow was noticed, and until the others of the group began something else."""
        lost = next(e for e in events if isinstance(e, WorkerLost) and e.worker == strike.worker)
        said = [e.at - strike.at for e in events if isinstance(e, GroupGaveUp) and e.attempt == strike.attempt]
        others = {name for name, attempt, _ in self.all if attempt == strike.attempt} - {strike.worker}
        later = [(who, at) for who, _, at in self.all if at > strike.at]
        begun = [min((at - strike.at for who, at in later if who == name), default=None) for name in others]
        noticed = f"lost after {lost.at - strike.at:.3f} s ({lost.reason}), said by others after {_seconds(said)}"
        return (
            f"{strike.kind} of {strike.worker} in {strike.unit}: {noticed}; these began again after {_seconds(begun)}"
        )


def _seconds(times: Sequence[float | None]) -> str:
    return ", ".join("never" if time is None else f"{time:.3f} s" for time in times) or "nothing"
