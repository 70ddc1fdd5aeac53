"""Whole runs of every search in virtual time, with people who tell them things at any moment."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any, TypeVar

from auditor import Auditor
from hypothesis import strategies as st
from tune_searches import LOSS, quality
from wild_runs import ListedLog

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.commands import Command, Verb
from cerebro_spark.engine import Engine
from cerebro_spark.errors import RunKilled, RunStalled
from cerebro_spark.events import Action, Event, RunUnit, Settings, UnitFailed, UnitFinished
from cerebro_spark.replays import ReplayChecker, ReplaySearch, RunScript
from cerebro_spark.search import Done, FixedSearch, Search, Wait
from cerebro_spark.tune import hp
from cerebro_spark.tune.algorithms.base import Algorithm
from cerebro_spark.tune.algorithms.fixed import GridAlgorithm, RandomAlgorithm
from cerebro_spark.tune.algorithms.halving import ASHAAlgorithm, HyperbandAlgorithm
from cerebro_spark.tune.algorithms.pbt import PBTAlgorithm
from cerebro_spark.tune.algorithms.stopping import Stopping
from cerebro_spark.tune.algorithms.tpe import TPEAlgorithm
from cerebro_spark.tune.plugins.led import LedSearch, TrialProgress
from cerebro_spark.turns import Turn
from cerebro_spark.types import Metrics, Partition, Report, Work

T = TypeVar("T")
PARTITIONS = (Partition("p0"), Partition("p1"), Partition("v0", "validation"))
SPACE = {"lr": hp.loguniform(1e-4, 1e-1), "depth": hp.randint(1, 2)}


class Leader(LedSearch):
    """Stands for another library: it proposes four trials, and wants them one epoch at a time, or whole."""

    def __init__(self, limit: int | None, sliced: bool) -> None:
        super().__init__(LOSS, 2, limit or 4, sliced)
        self._left = 4

    def propose(self) -> tuple[str, Mapping[str, Any]] | None:
        self._left -= 1
        return (f"t{3 - self._left}", {"lr": 0.01 * (self._left + 1)}) if self._left >= 0 else None

    def enough(self) -> bool:
        return False

    def finished(self, progress: TrialProgress) -> None:
        """It learns nothing."""

    def failed(self, progress: TrialProgress, error: str) -> None:
        """Nor from failures."""


SEARCHES: dict[str, Callable[[int | None], Search]] = {
    "fixed": lambda limit: FixedSearch([{"lr": 0.01 * number} for number in range(4)], 2),
    "led": lambda limit: Leader(limit, sliced=False),
    "led by epochs": lambda limit: Leader(limit, sliced=True),
    "grid": lambda limit: GridAlgorithm({"lr": hp.choice([0.1, 0.01, 0.001, 0.03])}, LOSS, 2, limit),
    "random": lambda limit: RandomAlgorithm(SPACE, LOSS, 2, num_trials=4, max_concurrent=limit),
    "tpe": lambda limit: TPEAlgorithm(SPACE, LOSS, 2, num_trials=4, max_concurrent=limit, startup=3),
    "hyperband": lambda limit: HyperbandAlgorithm(SPACE, LOSS, 3, max_concurrent=limit),
    "asha": lambda limit: ASHAAlgorithm(SPACE, LOSS, 6, max_epochs=4, eta=2, max_concurrent=limit),
    "pbt": lambda limit: PBTAlgorithm(SPACE, LOSS, 4, epochs=3, max_concurrent=limit),
}
MOST_WAITS = 5000
"""The longest run has some hundred units."""
Told = Sequence[tuple[float, Command]]

FIRST = ["t0", "t1", "t2", "t3"]
NAMES = [*FIRST, *FIRST, "t0-c1", "t1-c1", "t2-c2", "t7"]
Said = list[tuple[float, Command]]


def _often(*strategies: st.SearchStrategy[T]) -> st.SearchStrategy[T]:
    """One of these, with the chance that the number of times it is named gives it: `|` would ignore that."""
    return st.sampled_from(strategies).flatmap(lambda strategy: strategy)


_trials = st.sampled_from(NAMES)
_of_trials = st.builds(
    Command,
    st.sampled_from(["stop_trial", "stop_trial", "resume_trial", "resume_trial", "clone"]),
    trial=_trials,
    epochs=st.sampled_from([None, 1, 2, 3]),
)
_clones = st.builds(
    Command,
    st.just("clone"),
    trial=_trials,
    epochs=st.sampled_from([1, 1, 2, 3, None]),
    params=st.sampled_from([{"lr": 0.07}, {}, {"lr": 0.02}, {"depth": 2}, {"nonsense": 1}]),
    warm_start=st.sampled_from([True, True, False]),
)
_of_runs = st.builds(Command, st.sampled_from(["pause", "unpause", "end", "end", "kill"]))
_additions = st.builds(Command, st.just("add_workers"), workers=st.integers(1, 2))
_removals = st.builds(Command, st.just("remove_worker"), worker=st.sampled_from(["w0", "w1", "w2", "w3", "w9"]))
# By tenths, so that some come at the same moment as others, or as the end of a unit.
_moments = st.integers(0, 200).map(lambda tenths: tenths / 10)
_of_all = _often(_of_trials, _of_trials, _of_trials, _clones, _clones, _clones, _of_runs, _additions, _removals)
_one = st.tuples(_moments, _of_all).map(lambda said: [said])


def _pair(first: Verb, second: Verb) -> st.SearchStrategy[Said]:
    """One thing and, a little later, the opposite."""

    def both(at: float, wait: float, trial: str, epochs: int | None) -> Said:
        return [(at, Command(first, trial=trial)), (at + wait, Command(second, trial=trial, epochs=epochs))]

    return st.builds(both, _moments, _moments.map(lambda at: at / 4), _trials, st.sampled_from([None, 1, 2]))


told: st.SearchStrategy[Told] = st.lists(
    _often(_one, _one, _one, _one, _pair("stop_trial", "resume_trial"), _pair("pause", "unpause")),
    min_size=1,
    max_size=8,
).map(lambda groups: [said for group in groups for said in group])


class Cluster(SimulatedBackend):
    """Trials have losses of their own, up and down, some fail, workers die, and facts come several at a time."""

    def __init__(self, seed: int, trials_fail: float, workers_die: float, batch: int, commands: Told = ()) -> None:
        world = World(
            lambda params: 1.0 + params["lr"] * 20,
            jitter=0.5,
            failure_rate=workers_die,
            repair_seconds=2.0,
            late_results=True,
            gain={8: 4.3},
        )
        super().__init__([SimulatedWorker(f"w{i}", 1.0 + i / 2) for i in range(2)], world, seed, commands)
        self._failures, self._batch, self._name = trials_fail, batch, seed
        self._waits = 0

    def events(self) -> list[Event]:
        self._waits += 1
        assert self._waits < MOST_WAITS, "the run does not come to its end"
        facts = super().events()
        while self._heap and len(facts) < self._batch:
            self._now, _, happen = heapq.heappop(self._heap)
            facts += happen()
        return facts

    def _finish(self, order: RunUnit, seat: Any) -> list[Event]:
        unit = order.unit
        (finished,) = super()._finish(order, seat)
        assert isinstance(finished, UnitFinished)
        if random.Random(f"{self._name}/{unit.trial}/{unit.epoch}/{unit.kind}").random() < self._failures:
            return [UnitFailed(self.now(), seat.spec.id, unit, order.attempt, "out of memory")]
        loss = quality(unit.trial, order.params, unit.epoch) + random.Random(f"{unit.trial}:{unit.epoch}").random()
        metrics = Metrics({"loss": loss}, {"loss": 1.0})
        checkpoint, seconds = finished.checkpoint, finished.seconds
        return [UnitFinished(self.now(), seat.spec.id, unit, order.attempt, seconds, checkpoint, metrics)]


@dataclass
class CommandedRun:
    """A run that came to its end, or is paused, and all that was judged on the way."""

    engine: Engine
    auditor: Auditor
    log: ListedLog
    killed: bool

    @property
    def events(self) -> list[Event]:
        return self.log.events


def searching(name: str, limit: int | None, stop: Mapping[str, Any]) -> Search:
    search = SEARCHES[name](limit)
    return Stopping(search, LOSS, **stop) if stop and isinstance(search, Algorithm) else search


def settings(**options: Any) -> Settings:
    return Settings(PARTITIONS, workers=2, objective=LOSS, max_kills=99, **options)


def play(search: Search, chosen: Settings, backend: SimulatedBackend, events: Sequence[Event] = ()) -> CommandedRun:
    """Run a search, or go on from these events, until the run is over, paused with nobody there, or killed."""
    log, auditor = ListedLog(), Auditor(chosen)
    if events:
        log.append(Turn(list(events)))
    listener = Listener(search, auditor)
    engine = Engine(listener, chosen, backend, log, "r1")
    watched(engine, auditor)
    why: RunStalled | RunKilled | None = None
    try:
        (engine.resume if events else engine.run)()
    except (RunStalled, RunKilled) as stopped:
        why = stopped
    _check_end(engine, why)
    assert listener.ended == auditor.commands.ended, "what was for the search did not get there"
    assert not auditor.commands.promised, "what was promised was not begun"
    return CommandedRun(engine, auditor, log, isinstance(why, RunKilled))


def _check_end(engine: Engine, why: RunStalled | RunKilled | None) -> None:
    """A run that does not come to its end was killed, or is paused and waits for people."""
    state = engine.scheduler.state
    assert engine.scheduler.finished == (why is None)
    if isinstance(why, RunStalled):
        assert "no worker will come" in str(why), "no search waits"
        assert state.paused_at is not None, "only a paused run waits"
        assert not state.ending, "what is about to end does not wait, even if it was paused"


class Listener(Search):
    """Objects if a search hears of a clone, anything of a trial after the last word on it, or of another time."""

    def __init__(self, search: Search, auditor: Auditor) -> None:
        self._search, self._auditor = search, auditor
        self._over: set[str] = set()
        self.ended: set[str] = set()

    def ask(self) -> Work | Wait | Done:
        return self._search.ask()

    def tell(self, report: Report) -> None:
        assert "-c" not in report.trial, f"{report} is no concern of the search"
        assert report.trial not in self._over, f"{report} comes after the last word"
        assert isclose(report.at, self._auditor.commands.active, abs_tol=1e-6), f"{report} counts pauses, or not enough"
        if report.failed:
            self._over.add(report.trial)
        if report.ended:
            self.ended.add(report.trial)
        self._search.tell(report)


def watched(engine: Engine, auditor: Auditor) -> None:
    """Have every event and action judged."""
    handle = engine.scheduler.handle

    def audited(event: Event) -> list[Action]:
        auditor.before(event)
        actions = handle(event)
        auditor.after(actions)
        engine.scheduler.check_invariants()
        return actions

    engine.scheduler.handle = audited  # type: ignore[method-assign]


def replayed(events: Sequence[Event], chosen: Settings, seed: int) -> None:
    """Train it all again: every unit, and no other, with the same weights and values."""
    script = RunScript.from_events(events)
    checker = ReplayChecker(script)
    again = script.settings_like(chosen)
    engine = Engine(ReplaySearch(script), again, Cluster(seed, 0.0, 0.0, 3), ListedLog(), "r2", [checker])
    watched(engine, Auditor(again))
    engine.run()
    checker.finish()
