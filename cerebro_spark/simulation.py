"""The real engine and scheduler on made-up clusters: what a policy would do, in milliseconds. It trains nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, Traffic, World, jitter_of
from cerebro_spark.dispatch import get_policy
from cerebro_spark.engine import Engine
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import Action, Event, Settings
from cerebro_spark.placement import WorkerProfile, place, share_out
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.scheduling.settings import with_todays_rules
from cerebro_spark.search import FixedSearch, make_trial_ids
from cerebro_spark.timeline import Timeline
from cerebro_spark.types import Partition, Unit, UnitKind

# The 35 CNNs (MFLOP) and four GPUs (TFLOP/s) from which the Cerebro paper draws the settings of its Figure 6.
CNN_COSTS = (
    (360, 579, 724, 727, 727, 837)
    + (2000,) * 7
    + (3000,) * 3
    + (4000,) * 6
    + (6000,)
    + (8000,) * 5
    + (11000,) * 2
    + (16000,) * 3
    + (20000, 21000)
)
GPU_SPEEDS = (12.1, 5.6, 11.3, 18.7)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload and a cluster.

    Args:
        trials: The number of trials.
        workers: The number of workers.
        partitions: The number of training partitions; by default as many as workers.
        epochs: Epochs that every trial trains.
        replicas: How many workers hold each partition.
        policy: The dispatch policy, by name.
        heterogeneous: Draw trial costs and worker speeds from the lists of the Cerebro paper; by default all are alike.
        cost: Seconds of a training unit on a worker of speed 1, on average.
        costs: The same of each trial. Empty by default: `cost`, or as `heterogeneous` says.
        speeds: The speed of each worker. Empty by default: 1, or as `heterogeneous` says.
        jitter: The share of its time by which a unit may be longer or shorter, drawn evenly.
        known_costs: Tell the scheduler trial costs, worker speeds and efficiencies beforehand; by default it learns
            them.
        failure_rate: Probability that a worker dies during a unit.
        validation: The number of validation partitions.
        model_bytes: The size of a checkpoint in bytes.
        bandwidth: Bytes a second at which a checkpoint is read.
        queue_ahead: How many units a busy worker is told beforehand.
        max_kills: As in a search: how many workers a unit may lose before its trial fails.
        fuse: How many trials may train, and be evaluated, together at most; 1 for never. Those of equal cost can.
        gain: By how many go together, how many times faster that is: see `World`.
        group: How many workers train a trial together; 1 for never more than one.
        group_auto: Whether that is only the most, and each trial gets as many as are sensible.
        efficiency: How efficient groups of one worker, of two, and so on are; beyond the last as that one. Empty by
            default: as efficient as single workers.
        deaths: By the number of a worker, the (dies at, returns at) pairs of its absences, in seconds.
    """

    trials: int = 16
    workers: int = 8
    partitions: int | None = None
    epochs: int = 5
    replicas: int = 1
    policy: str = "hopper"
    heterogeneous: bool = False
    cost: float = 1.0
    costs: tuple[float, ...] = ()
    speeds: tuple[float, ...] = ()
    jitter: float = 0.0
    known_costs: bool = False
    failure_rate: float = 0.0
    validation: int = 0
    model_bytes: int = 0
    bandwidth: float = float("inf")
    queue_ahead: int = 0
    max_kills: int | None = None
    fuse: int = 1
    gain: Mapping[int, float] = field(default_factory=dict)
    group: int = 1
    group_auto: bool = False
    efficiency: tuple[float, ...] = ()
    deaths: Mapping[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)

    @property
    def columns(self) -> int:
        return self.workers if self.partitions is None else self.partitions


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a scenario came to with one seed. Seconds are virtual, except for `scheduling_seconds`."""

    makespan: float
    lower_bound: float
    utilisation: float
    units_lost: int
    units_rerun: int
    trials_failed: int
    traffic: Traffic
    scheduling_seconds: float
    timeline: Timeline

    @property
    def ratio(self) -> float:
        return self.makespan / self.lower_bound

    @property
    def bytes_hopped(self) -> int:
        return self.traffic.hopped


def simulate(scenario: Scenario, seed: int = 0, keep_units: bool = False) -> Outcome:
    """Run a scenario in virtual time until all is done.

    Args:
        scenario: The workload and the cluster.
        seed: The seed of what is drawn at random.
        keep_units: Keep every unit in `Outcome.timeline`, for a chart.

    Returns:
        What the scenario came to.

    Raises:
        ConfigurationError: If the scenario makes no sense.

    >>> simulate(Scenario(trials=4, workers=2, epochs=1)).ratio
    1.0
    """
    check_scenario(scenario)
    costs, speeds = draw_workload(scenario, seed)
    world = World(
        cost=_cost,
        checkpoint_bytes=lambda params: scenario.model_bytes,
        jitter=scenario.jitter,
        bandwidth=scenario.bandwidth,
        failure_rate=scenario.failure_rate,
        repair_seconds=5 * float(np.mean(costs)) / float(np.mean(speeds)),
        speeds_known=scenario.known_costs,
        gain=scenario.gain,
        efficiency=lambda params, size: efficiency_of(scenario, size),
        estimate=lambda params: _cost(params) / float(np.mean(speeds)),
    )
    workers = [
        SimulatedWorker(f"w{i}", speed, deaths=tuple(scenario.deaths.get(i, ()))) for i, speed in enumerate(speeds)
    ]
    backend = SimulatedBackend(workers, world, seed)
    timeline = Timeline(keep_units)
    engine = Engine(
        FixedSearch([_params(cost) for cost in costs], scenario.epochs),
        _settings(scenario, seed),
        backend,
        DiscardingLog(),
        observers=[timeline],
        cost_of=_cost if scenario.known_costs else None,
    )
    stopwatch = _Stopwatch(engine)
    engine.run()
    return Outcome(
        makespan=timeline.end,
        lower_bound=compute_lower_bound(scenario, costs, speeds, seed, timeline),
        utilisation=timeline.utilisation(),
        units_lost=_units_lost(scenario, engine.scheduler),
        units_rerun=engine.scheduler.units_given_up,
        trials_failed=sum(trial.status == "failed" for trial in engine.scheduler.state.trials.values()),
        traffic=backend.traffic,
        scheduling_seconds=stopwatch.seconds,
        timeline=timeline,
    )


def efficiency_of(scenario: Scenario, size: int) -> float:
    """Return how efficient a group of so many workers is.

    >>> efficiency_of(Scenario(efficiency=(1.0, 0.9)), 2), efficiency_of(Scenario(efficiency=(1.0, 0.9)), 8)
    (0.9, 0.9)
    """
    known = scenario.efficiency or (1.0,)
    return known[min(size, len(known)) - 1]


def draw_workload(scenario: Scenario, seed: int) -> tuple[list[float], list[float]]:
    """Trial costs and worker speeds: those given, or all alike, or drawn with replacement from the paper's lists."""
    costs, speeds = _drawn_workload(scenario, seed)
    return list(scenario.costs) or costs, list(scenario.speeds) or speeds


def _drawn_workload(scenario: Scenario, seed: int) -> tuple[list[float], list[float]]:
    if not scenario.heterogeneous:
        return [scenario.cost] * scenario.trials, [1.0] * scenario.workers
    rng = np.random.default_rng([seed, 0])
    costs = rng.choice(CNN_COSTS, scenario.trials) / np.mean(CNN_COSTS) * scenario.cost
    speeds = rng.choice(GPU_SPEEDS, scenario.workers) / np.mean(GPU_SPEEDS)
    return costs.tolist(), speeds.tolist()


def compute_lower_bound(
    scenario: Scenario, costs: Sequence[float], speeds: Sequence[float], seed: int, timeline: Timeline
) -> float:
    """No schedule can be shorter than the busiest worker or the longest trial, with the unit times as they came out.

    It is that of trials that go by themselves: those that go together may take less.

    Which worker is busiest depends on which partitions it holds. With one holder a partition and no worker away, the
    bound is that of the best placement. With replicas it is the average worker, and also where there are partitions to
    spare, which move if workers turn out to be faster or slower than they seemed. Where workers die, time counts only
    while they live.
    """
    train = _unit_work(scenario, costs, seed, "train")
    total = float(train.sum() + _unit_work(scenario, costs, seed, "eval").sum())
    longest = float(train.sum(axis=(1, 2)).max()) / max(speeds)
    if scenario.replicas > 1 or timeline.absences:
        return max(longest, _time_for(total, speeds, timeline))
    if scenario.columns == scenario.workers:  # it is known which worker trains what
        own = np.asarray(_speeds_by_column(scenario, speeds))
        longest = float((train * (1.0 / own)).sum(axis=(1, 2)).max())
        busiest = float((train.sum(axis=(0, 1)) / own).max())
    elif scenario.heterogeneous or scenario.jitter:  # partitions follow the speeds that are measured
        busiest = 0.0
    else:  # at best each has the lightest partitions
        lightest = np.concatenate([[0.0], np.cumsum(np.sort(train.sum(axis=(0, 1))))])
        shares = zip(share_out(scenario.columns, speeds), speeds, strict=True)
        busiest = max(float(lightest[count]) / speed for count, speed in shares)
    return max(total / sum(speeds), longest, busiest)


def check_scenario(scenario: Scenario) -> None:
    """Raise ConfigurationError for a scenario that makes no sense."""
    least = {"trials": 1, "workers": 1, "columns": 1, "epochs": 1, "replicas": 1, "validation": 0, "model_bytes": 0}
    least |= {"fuse": 1, "group": 1}
    for name, minimum in least.items():
        value = getattr(scenario, name)
        if value < minimum:
            shown = "partitions" if name == "columns" else name
            raise ConfigurationError(f"`{shown}` is {value}, but must be at least {minimum}")
    for name, values, count in (
        ("costs", scenario.costs, scenario.trials),
        ("speeds", scenario.speeds, scenario.workers),
    ):
        if values and (len(values) != count or not all(0 < value < float("inf") for value in values)):
            raise ConfigurationError(f"`{name}` is {values!r:.80}, but must be {count} numbers above 0")
    if not 0 < scenario.cost < float("inf"):
        raise ConfigurationError(f"`cost` is {scenario.cost}, but a unit must cost more than 0 seconds, and end")
    if not all(0 < value < float("inf") for value in scenario.efficiency):
        raise ConfigurationError(f"`efficiency` is {scenario.efficiency}, but must be numbers above 0")
    if not scenario.group_auto and scenario.group > scenario.workers:
        raise ConfigurationError(f"`group` is {scenario.group}, but there are only {scenario.workers} workers")
    if scenario.replicas > scenario.workers:
        raise ConfigurationError(
            f"`replicas` is {scenario.replicas}, but there are only {scenario.workers} workers to hold them"
        )
    if scenario.columns < scenario.workers:
        raise ConfigurationError(
            f"`partitions` is {scenario.columns}, but there are {scenario.workers} workers:"
            " have at least one partition for each"
        )
    get_policy(scenario.policy)


def _units_lost(scenario: Scenario, scheduler: MopScheduler) -> int:
    """How many units of trials that came to their end were not done, or done twice."""
    whole = scenario.epochs * (scenario.columns + scenario.validation)
    return sum(abs(whole - trial.finished) for trial in scheduler.state.trials.values() if trial.status != "failed")


def _params(cost: float) -> dict[str, Any]:
    """Trials of one cost are of one architecture: they can train together, others cannot."""
    return {"cost": cost, "architecture": repr(cost)}


def _cost(params: Mapping[str, Any]) -> float:
    return float(params["cost"])


def _settings(scenario: Scenario, seed: int) -> Settings:
    width = len(str(scenario.columns - 1))
    train = tuple(Partition(f"p{i:0{width}d}") for i in range(scenario.columns))
    validation = tuple(Partition(f"v{i:0{width}d}", "validation") for i in range(scenario.validation))
    settings = Settings(
        train + validation,
        workers=scenario.workers,
        replicas=scenario.replicas,
        policy=scenario.policy,
        seed=seed,
        queue_ahead=scenario.queue_ahead,
        fuse=scenario.fuse,
        group=scenario.group,
        group_auto=scenario.group_auto,
        efficiency=(scenario.efficiency or (1.0,)) if scenario.known_costs and scenario.group > 1 else (),
    )
    return with_todays_rules(settings, max_kills=scenario.max_kills)


def _unit_work(
    scenario: Scenario, costs: Sequence[float], seed: int, kind: UnitKind
) -> np.ndarray[tuple[int, int, int], Any]:
    """By trial, epoch and partition: the seconds a unit takes on a worker of speed 1."""
    train = scenario.columns
    first, last = (0, train) if kind == "train" else (train, train + scenario.validation)
    share = 1.0 if kind == "train" else World(_cost).evaluation_cost
    work = np.empty((scenario.trials, scenario.epochs, last - first))
    for row, (trial, cost) in enumerate(zip(make_trial_ids(scenario.trials), costs, strict=True)):
        for epoch in range(scenario.epochs):
            unit = Unit(trial, epoch + 1, "", kind)
            noise = jitter_of(seed, unit, train + scenario.validation, scenario.jitter) if scenario.jitter else None
            work[row, epoch] = cost * share * (1.0 if noise is None else noise[first:last])
    return work


def _speeds_by_column(scenario: Scenario, speeds: Sequence[float]) -> list[float]:
    profiles = [WorkerProfile(f"w{i}") for i in range(scenario.workers)]
    train = [p for p in _settings(scenario, 0).partitions if p.split == "train"]
    return [speeds[int(holders[0][1:])] for holders in place(train, profiles).values()]


def _time_for(work: float, speeds: Sequence[float], timeline: Timeline) -> float:
    """When the workers present would have done so much work, had none of them ever been idle."""
    changes = [(0.0, sum(speeds))]
    for absence in timeline.absences:
        speed = speeds[int(absence.worker[1:].partition(".")[0])]
        changes.append((absence.start, -speed))
        if absence.end is not None:
            changes.append((absence.end, speed))
    capacity, since = 0.0, 0.0
    for at, change in sorted(changes):
        if capacity * (at - since) >= work:
            break
        work -= capacity * (at - since)
        capacity, since = capacity + change, at
    return since + work / capacity if capacity > 0 else float("inf")


class _Stopwatch:
    """Adds up the real time that a scheduler takes to decide."""

    def __init__(self, engine: Engine) -> None:
        self.seconds = 0.0
        self._handle = engine.scheduler.handle
        engine.scheduler.handle = self  # type: ignore[method-assign]

    def __call__(self, event: Event) -> list[Action]:
        began = time.perf_counter()
        actions = self._handle(event)
        self.seconds += time.perf_counter() - began
        return actions
