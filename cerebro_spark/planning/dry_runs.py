"""The real search, engine and scheduler in virtual time, on workers that are made up. It trains nothing.

What epochs measure is drawn at random, so that trials are promoted by chance: how long a search takes that compares
trials depends on that, and the spread of several dry runs says by how much.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from cerebro_spark.backend.simulated import _WorkerState as WorkerState
from cerebro_spark.engine import Engine, Observer
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import Event, RunUnit, Settings, WorkAdded
from cerebro_spark.forecast.backend import Future, RemainingBackend, WorkerStanding
from cerebro_spark.forecast.curves import Curves, DrawnCurves
from cerebro_spark.forecast.expected import Expected
from cerebro_spark.forecast.pace import Pace
from cerebro_spark.planning.builds import Builds, Meetings
from cerebro_spark.planning.teamwork import GroupTimes
from cerebro_spark.planning.values import Demand, DryRun, Option, Workload
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.scheduling.settings import with_todays_rules
from cerebro_spark.search import Search
from cerebro_spark.timeline import Timeline
from cerebro_spark.turns import Turn
from cerebro_spark.types import Objective, Partition, PartitionId, TrialId, UnitKind, Work, WorkerId

# How far the start of a run may be from that of a pilot (the spread of a logarithm).
_START_SPREAD = 0.15
MakeSearch = Callable[[int], Search]
"""Makes the search of a run with so many workers. Each is asked once."""


@dataclass(frozen=True, slots=True)
class Times:
    """How long things take in a dry run.

    Args:
        pace: Units, waits, loads.
        lead: Seconds until the first worker can begin.
        builds: What it takes workers to meet structures and trials. Defaults to None: no time.
        hop: By structure, the seconds that a checkpoint takes to another host. Empty by default.
        groups: What groups take. Defaults to None: they are as efficient as single workers.
    """

    pace: Pace
    lead: float = 0.0
    builds: Builds | None = None
    hop: Mapping[str, float] | None = None
    groups: GroupTimes | None = None

    @property
    def once(self) -> float:
        """The seconds of what a worker does once, however much there is to train: it comes, loads, and builds."""
        return self.lead + self.pace.load + (self.builds.once if self.builds else 0.0)

    def steady(self) -> Times:
        """Return these times without what a worker does once."""
        builds = self.builds and self.builds.each_trial()
        return Times(replace(self.pace, load=0.0), builds=builds, hop=self.hop, groups=self.groups)


def dry_run(
    search: Search,
    objective: Objective,
    option: Option,
    workload: Workload,
    times: Times,
    seed: int = 0,
    noisy: bool = True,
    observers: tuple[Observer, ...] = (),
    max_kills: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> DryRun:
    """Run a search to its end in virtual time.

    Args:
        search: The search; it cannot be used afterwards.
        objective: What it compares trials by.
        option: How it is run.
        workload: What it trains on.
        times: How long things take.
        seed: The seed of what is drawn.
        noisy: Whether times vary and workers die; otherwise all is as expected. Defaults to True.
        observers: Called with every turn. None by default.
        max_kills: How many workers may die of a trial before it fails. Defaults to None: as many as in any run.
        check: Called now and then; it may raise to end the dry run.

    Returns:
        How it went.
    """
    lead = times.lead * (random.Random(f"{seed}/lead").lognormvariate(0.0, _START_SPREAD) if noisy else 1.0)
    workers = [WorkerStanding(f"w{n}", f"h{n // option.at_once}", joins_at=lead) for n in range(option.workers)]
    future = Future(times.pace, DrawnCurves(Curves({}, objective), seed), objective, noisy=noisy, seed=seed)
    backend = PlannedBackend(workers, future, times)
    timeline = Timeline(keep_units=False)
    settings = _settings(objective, option, partitions_of(option, workload), seed)
    if max_kills is not None:
        settings = replace(settings, max_kills=max_kills)
    engine = _CheckedEngine(
        search,
        settings,
        backend,
        DiscardingLog(),
        observers=[timeline, *observers],
        expected=partial(_unit_seconds, times.pace),
        clock=lambda: 0.0,
    )
    engine.check = check
    engine.run()
    trials = engine.scheduler.state.trials.values()
    failed = sum(trial.status == "failed" for trial in trials)
    return DryRun(backend.now(), timeline.utilisation(), len(trials), failed, backend.guessed)


def _unit_seconds(pace: Pace, params: Mapping[str, Any]) -> float:
    """Return how long one worker trains a trial on one partition: a run that follows its plan knows that, too."""
    kin = kin_of(params)
    return pace.recent["train"] * pace.expected.seconds("train", kin, params).seconds


def demand_of(search: Search, objective: Objective, workers: int, seed: int = 0) -> Demand:
    """Return what a search asks for, if trials come out by chance and all units take as long. It cannot be used again.

    Args:
        search: The search.
        objective: What it compares trials by.
        workers: How many workers there are.
        seed: The seed of that chance. Defaults to 0.
    """
    asked: dict[TrialId, Work] = {}

    def note(turn: Turn) -> None:
        for event in turn.events:
            if isinstance(event, WorkAdded):
                asked[event.work.trial] = event.work

    validation = int(objective.metric.startswith("val_"))
    rows = Workload(1, validation, 0, 1, validation)
    dry_run(
        search, objective, Option(workers, 1, 1, 1), rows, Times(_even_pace()), seed, noisy=False, observers=(note,)
    )
    works = list(asked.values())
    return Demand(tuple(work.params for work in works), tuple(work.until_epoch for work in works))


def partitions_of(option: Option, workload: Workload) -> tuple[Partition, ...]:
    """Return the partitions that an option has: those of the data set, or as many as it says.

    >>> option = Option(workers=2, threads=1, hosts=1, partitions=2)
    >>> [(part.id, part.rows) for part in partitions_of(option, Workload(train=9, validation=2, bytes=0))]
    [('p0', 5), ('p1', 4), ('v0', 1), ('v1', 1)]
    """
    count = option.partitions
    checks = 0 if not workload.validation else workload.validation_partitions or min(count, workload.validation)
    width = len(str(max(count, checks) - 1))
    train = [Partition(f"p{n:0{width}d}", rows=rows) for n, rows in enumerate(_shares(workload.train, count))]
    held_out = _shares(workload.validation, checks) if checks else []
    return (*train, *(Partition(f"v{n:0{width}d}", "validation", rows=rows) for n, rows in enumerate(held_out)))


def _shares(rows: int, count: int) -> list[int]:
    return [rows // count + (number < rows % count) for number in range(count)]


def _settings(objective: Objective, option: Option, partitions: tuple[Partition, ...], seed: int) -> Settings:
    settings = Settings(
        partitions,
        option.workers,
        replicas=option.replicas,
        seed=seed,
        queue_ahead=1,
        objective=objective,
        fuse=option.width,
        group=option.group,
        group_auto=option.group_auto,
    )
    return with_todays_rules(settings)


class PlannedBackend(RemainingBackend):
    """Workers that come, build each structure once, and fetch checkpoints from each other.

    Args:
        workers: The workers.
        future: What happens to them.
        times: How long things take.
    """

    def __init__(self, workers: list[WorkerStanding], future: Future, times: Times) -> None:
        super().__init__(workers, future, 0.0)
        self._times = times
        self._host = {worker.id: worker.host for worker in workers}
        self._meetings = Meetings(times.builds or Builds({}, {}))
        self._names: dict[TrialId, str] = {}
        self._home: dict[int, WorkerId] = {}
        """By attempt that wrote a checkpoint, the worker."""

    def _overhead(self, order: RunUnit, worker: WorkerId) -> float:
        extra = sum(self._extra(member, worker) for member in order.members)
        return super()._overhead(order, worker) + extra * (self._level if self._future.noisy else 1.0)

    def _extra(self, order: RunUnit, worker: WorkerId) -> float:
        """Return the seconds to build a model that this worker has not built, and to fetch what is elsewhere."""
        kin = self._structure(order)
        seconds = self._meetings.begin(worker, order.unit.kind, order.unit.trial, kin)
        if self._times.hop and order.parent is not None:
            home = self._home.get(order.parent.attempt)
            if home is not None and self._host[home] != self._host[worker]:
                seconds += self._times.hop.get(kin, 0.0)
        return seconds

    def _efficiency(self, order: RunUnit) -> float:
        groups = self._times.groups
        return 1.0 if groups is None else groups.efficiency(self._structure(order), len(order.workers))

    def _refuse_group(self, order: RunUnit) -> str | None:
        groups = self._times.groups
        return None if groups is None else groups.refused.get(self._structure(order))

    def _structure(self, order: RunUnit) -> str:
        trial = order.unit.trial
        if trial not in self._names:
            self._names[trial] = kin_of(order.params)
        return self._names[trial]

    def _join(self, state: WorkerState) -> list[Event]:
        self._meetings.forget(state.spec.id)
        return super()._join(state)

    def _finish(self, order: RunUnit, state: WorkerState) -> list[Event]:
        facts = super()._finish(order, state)
        self._home[order.attempt] = state.spec.id
        return facts


def _even_pace() -> Pace:
    """Return a pace at which every unit takes a second, and nothing else takes any time."""
    return Pace(
        _Even(),
        recent={"train": 1.0, "eval": 1.0},
        ratios={"train": (1.0,), "eval": (1.0,)},
        overhead={"train": 0.0, "eval": 0.0},
        overheads={"train": (0.0,), "eval": (0.0,)},
        drift=0.0,
    )


class _Even:
    """Every unit takes a second."""

    def seconds(self, kind: UnitKind, trial: TrialId, params: Mapping[str, Any], width: int = 1) -> Expected:
        return Expected(1.0)

    def factor(self, worker: WorkerId, partition: PartitionId) -> float:
        return 1.0


class _CheckedEngine(Engine):
    """An engine that can be ended from outside, now and then."""

    check: Callable[[], None]

    def _check_that_something_can_come(self) -> None:
        self.check()
        super()._check_that_something_can_come()
