"""Whole runs of every search: the real engine and scheduler in virtual time, with failures, and cut and resumed."""

from __future__ import annotations

import heapq
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from auditor import Auditor
from tune_searches import ALGORITHMS, LOSS, SPACE, quality, wrapped

from cerebro_spark import hp
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import DiscardingLog, EventLog
from cerebro_spark.events import Action, Event, RunUnit, Settings, UnitFailed, UnitFinished, WorkAdded
from cerebro_spark.search import Search
from cerebro_spark.store.local import LocalStore
from cerebro_spark.tune.algorithms.pbt import PBTAlgorithm
from cerebro_spark.turns import Turn
from cerebro_spark.types import Checkpoint, Metrics, Partition, Work

PARTITIONS = (*(Partition(f"p{i}") for i in range(3)), Partition("v0", "validation"), Partition("v1", "validation"))
SETTINGS = Settings(PARTITIONS, workers=3, objective=LOSS, max_kills=99)
FUSED = replace(SETTINGS, fuse=8)
NAMES = sorted(ALGORITHMS)


class Cluster(SimulatedBackend):
    """Trials have losses of their own, some fail, and facts come several at a time, as from busy real workers."""

    def __init__(self, seed: int, failure_rate: float, batch: int) -> None:
        world = World(
            lambda params: 1.0 + params["lr"] * 20, jitter=0.5, failure_rate=0.02, repair_seconds=2.0, gain={8: 4.3}
        )
        super().__init__([SimulatedWorker(f"w{i}", 1.0 + i / 2) for i in range(3)], world, seed)
        self._failures, self._batch, self._name = failure_rate, batch, seed

    def events(self) -> list[Event]:
        facts = super().events()
        while self._heap and len(facts) < self._batch:
            facts += self._more()
        return facts

    def _more(self) -> list[Event]:
        self._now, _, happen = heapq.heappop(self._heap)
        return happen()

    def _finish(self, order: RunUnit, seat: Any) -> list[Event]:
        unit = order.unit
        (finished,) = super()._finish(order, seat)
        assert isinstance(finished, UnitFinished)
        if random.Random(f"{self._name}/{unit.trial}/{unit.epoch}/{unit.kind}").random() < self._failures:
            return [UnitFailed(self.now(), seat.spec.id, unit, order.attempt, "out of memory")]
        loss = quality(unit.trial, order.params, unit.epoch)
        metrics = Metrics({"loss": loss}, {"loss": 1.0})
        return [
            UnitFinished(self.now(), seat.spec.id, unit, order.attempt, finished.seconds, finished.checkpoint, metrics)
        ]


def watched(engine: Engine) -> Engine:
    """Have every event and action judged."""
    auditor = Auditor(engine.scheduler.settings)
    handle = engine.scheduler.handle

    def audited(event: Event) -> list[Action]:
        auditor.before(event)
        actions = handle(event)
        auditor.after(actions)
        engine.scheduler.check_invariants()
        return actions

    engine.scheduler.handle = audited  # type: ignore[method-assign]
    return engine


STOPS: list[dict[str, Any]] = [{}, {"patience": 1}, {"patience": 2}, {"time_budget": 60.0}]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stop", STOPS, ids=str)
@pytest.mark.parametrize("batch", [1, 9])
def test_it_runs_to_its_end(name: str, stop: dict[str, Any], batch: int) -> None:
    for seed in range(2):
        search = wrapped(name, LOSS, [None, 5][seed], **stop)
        engine = watched(Engine(search, SETTINGS, Cluster(seed, 0.05 * seed, batch), DiscardingLog()))
        engine.run()
        assert engine.scheduler.finished


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_to_its_end_with_failures(name: str) -> None:
    engine = watched(Engine(wrapped(name, LOSS, 4), SETTINGS, Cluster(5, 0.05, 3), DiscardingLog()))
    engine.run()
    assert engine.scheduler.finished


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("queue_ahead", [0, 1])
def test_it_runs_to_its_end_with_trials_that_train_together(
    name: str, queue_ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kin = {"lr": hp.loguniform(1e-4, 1e-1), "net": "linear", "depth": 1, "batch_size": 32}
    monkeypatch.setattr("tune_searches.SPACE", kin)
    settings = replace(FUSED, queue_ahead=queue_ahead)
    engine = watched(Engine(wrapped(name, LOSS, None), settings, Cluster(5, 0.03, 3), DiscardingLog()))
    widths: list[int] = []
    engine._recorder.handle = noting(engine._recorder.handle, widths)  # type: ignore[method-assign]
    engine.run()
    assert engine.scheduler.finished
    assert max(widths) > 1 or name in ("grid", "tpe"), "some did"


def noting(handle: Any, widths: list[int]) -> Any:
    """Take down how many trials each order is for."""

    def noted(event: Event) -> Any:
        actions, outcome = handle(event)
        widths.extend(len(action.members) for action in actions if isinstance(action, RunUnit))
        return actions, outcome

    return noted


def test_a_member_starts_from_no_checkpoint_that_was_deleted_in_the_same_turn() -> None:
    """Seed 84: a member's parent reports its next epoch in the same batch of facts, behind the member's own report."""
    warm_starts: list[Checkpoint | None] = []

    class Noted(PBTAlgorithm):
        def _next(self) -> Work | None:
            work = super()._next()
            warm_starts.append(work.warm_start if work else None)
            return work

    search = Noted(SPACE, LOSS, population=8, epochs=9, seed=84)
    watched(Engine(search, SETTINGS, Cluster(84, 0.0, batch=12), DiscardingLog())).run()
    assert any(warm_starts)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stop", [{}, {"patience": 2, "time_budget": 90.0}], ids=str)
@pytest.mark.parametrize("settings", [SETTINGS, FUSED], ids=["by themselves", "together"])
def test_cut_anywhere_it_resumes_with_the_same_answers(
    tmp_path: Path, name: str, stop: dict[str, Any], settings: Settings
) -> None:
    def engine(store: LocalStore, search: Search) -> Engine:
        return watched(Engine(search, settings, Cluster(1, 0.03, 3), EventLog(store, "log")))

    whole = LocalStore(tmp_path / "whole")
    engine(whole, wrapped(name, LOSS, 5, **stop)).run()
    events = list(EventLog(whole, "log").read())
    for cut in range(1, len(events) + 1, max(1, len(events) // 12)):
        store = LocalStore(tmp_path / f"cut{cut}")
        EventLog(store, "log").append(Turn(events[:cut]))
        resumed = engine(store, wrapped(name, LOSS, 5, **stop))
        resumed.resume()
        assert resumed.scheduler.finished
        again = [event.work for event in EventLog(store, "log").read() if isinstance(event, WorkAdded)]
        before = [event.work for event in events[:cut] if isinstance(event, WorkAdded)]
        assert again[: len(before)] == before
