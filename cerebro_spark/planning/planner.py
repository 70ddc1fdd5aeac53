"""Makes a plan: has units measured for a while, then lets the search run dry with each option.

All that decides is elsewhere (`options`, `choice`, `profile`), and so is what measures (`measuring`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from cerebro_spark.backend.job import Job
from cerebro_spark.planning.choice import ranked
from cerebro_spark.planning.configurations import representatives
from cerebro_spark.planning.contention import Contention
from cerebro_spark.planning.dry_runs import MakeSearch, Times, demand_of, dry_run
from cerebro_spark.planning.measuring import MakeBackend, Measurer
from cerebro_spark.planning.memory import fitting, memory_of
from cerebro_spark.planning.options import bound_of, list_options, prune, work_of
from cerebro_spark.planning.profile import Profile
from cerebro_spark.planning.shrunk import Shrunk, shrunk
from cerebro_spark.planning.values import Cluster, Demand, DryRun, Estimate, Option, Setting, Wish, Workload
from cerebro_spark.types import Objective

# The share of the time that measuring may take.
_MEASURING = 0.75
_DRY_RUNS = 16
_FINALISTS = 3


class OutOfTime(Exception):
    """There is no time left for another dry run."""


@dataclass(frozen=True, slots=True)
class Planned:
    """All that a plan is made of.

    Args:
        estimates: What the options come to, best first.
        demand: What the search asks for.
        workload: What it trains on.
        cluster: What it can run on.
        wish: What the user wants.
        profiles: What was measured, by setting.
        profile: What was measured with about the setting of the best option.
        factor: By how much its units are slower than those that were measured.
        seconds: How long planning took.
        unmeasured: The settings that there was no time to measure. Defaults to `()`: none.
        time_budget: The seconds after which the search asks for nothing more. Defaults to None: no limit.
    """

    estimates: tuple[Estimate, ...]
    demand: Demand
    workload: Workload
    cluster: Cluster
    wish: Wish
    profiles: Mapping[Setting, Profile]
    profile: Profile
    factor: float
    seconds: float
    unmeasured: tuple[Setting, ...] = ()
    time_budget: float | None = None


class Planner:
    """Plans one search.

    Args:
        job: What workers of a pilot work on; its data set has as many training partitions as there can be workers at
            once. Its run is a name that no run has.
        objective: What the search compares trials by.
        make_search: Makes the search of a run.
        make_untimed: Makes the same without a limit of time: what that asks for depends on no clock.
        make_backend: Makes a backend for a pilot.
        cluster: What the search can run on.
        workload: What it trains on.
        pilot_hosts: On how many hosts the workers of a pilot are. Defaults to 1.
        fuse: How many trials may train together. Defaults to 1: each by itself.
        replicas: How many workers hold each partition. Defaults to 1.
        max_kills: How many workers may die of a trial before it fails. Defaults to None: as many as in any run.
        time_budget: The seconds after which the search asks for nothing more. Defaults to None: no limit.
        group: How many workers train a trial together. Defaults to 1.
        group_auto: Whether that is only the most. Defaults to False.
        seconds: The time that planning may take. Defaults to 60.
        clock: A clock that never goes back.
    """

    def __init__(
        self,
        job: Job,
        objective: Objective,
        make_search: MakeSearch,
        make_untimed: MakeSearch,
        make_backend: MakeBackend,
        cluster: Cluster,
        workload: Workload,
        pilot_hosts: int = 1,
        fuse: int = 1,
        replicas: int = 1,
        max_kills: int | None = None,
        time_budget: float | None = None,
        group: int = 1,
        group_auto: bool = False,
        seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objective = objective
        self._make_search = make_search
        self._make_untimed = make_untimed
        self._cluster = cluster
        self._workload = workload
        self._fuse = fuse
        self._replicas = replicas
        self._max_kills = max_kills
        self._time_budget = time_budget
        self._seconds = seconds
        self._clock = clock
        self._began = clock()
        self._group, self._group_auto = group, group_auto
        self._measurer = Measurer(
            job, objective, make_backend, pilot_hosts, fuse, group, left=lambda: self._left(_MEASURING)
        )
        self._profiles: Mapping[Setting, Profile] = {}
        self._contention = Contention({})
        self._workers = 1
        self._drawn: dict[int, Demand] = {}

    def plan(self, settings: Sequence[Setting], wish: Wish) -> Planned:
        """Measure with these settings, as many as there is time for, and return what all options come to."""
        self._workers = settings[0].at_once
        demand = self._draw_demand(0)
        self._profiles = self._measurer.measure(settings, representatives(demand), demand.trials)
        threads = {setting.threads for setting in self._profiles}
        options = list_options(
            self._cluster,
            threads,
            self._workload,
            demand.trials,
            self._fuse,
            self._replicas,
            self._group,
            self._group_auto,
        )
        self._contention = Contention(self._profiles)
        options = fitting([self._with_memory(option) for option in options], self._cluster)
        bounds = {option: self._bound(option, demand) for option in options}
        estimates = ranked(self._estimates(prune(bounds, bounds.__getitem__), bounds, wish), wish)
        best = estimates[0].option
        profile = self._profile(best)
        return Planned(
            tuple(estimates),
            demand,
            self._workload,
            self._cluster,
            wish,
            self._profiles,
            profile,
            self._contention.factor(best, profile.setting),
            self._clock() - self._began,
            tuple(setting for setting in settings if setting not in self._profiles),
            self._time_budget,
        )

    def _draw_demand(self, seed: int) -> Demand:
        """Return what the search asks for, if its trials come out by a chance of that seed."""
        if seed not in self._drawn:
            search = self._make_untimed(self._workers)
            self._drawn[seed] = demand_of(search, self._objective, self._workers, seed)
        return self._drawn[seed]

    def _left(self, share: float = 1.0) -> float:
        return share * self._seconds - (self._clock() - self._began)

    # -- what was measured

    def _profile(self, option: Option) -> Profile:
        """Return what was measured with as many threads, and about as many workers on a host."""
        own = [profile for setting, profile in self._profiles.items() if setting.threads == option.threads]
        return min(own, key=lambda profile: abs(profile.setting.at_once - option.at_once))

    def _bound(self, option: Option, demand: Demand) -> float:
        profile = self._profile(option)
        factor = self._contention.factor(option, profile.setting)
        bound = bound_of(option, profile, self._workload, demand, factor)
        return bound if self._time_budget is None else min(bound, self._time_budget)

    def _with_memory(self, option: Option) -> Option:
        return replace(option, memory=memory_of(option, self._profile(option), self._workload))

    # -- dry runs

    def _estimates(self, options: Sequence[Option], bounds: Mapping[Option, float], wish: Wish) -> list[Estimate]:
        quiet: dict[Option, DryRun] = {}
        for option in options:
            found = self._dry_run(option, 0, noisy=False, must=len(quiet) < _FINALISTS)
            if found is None:
                break
            quiet[option] = found
        noisy: dict[Option, list[DryRun]] = {}
        rough = [self._estimate(option, [found], bounds[option], wish) for option, found in quiet.items()]
        finalists = [estimate.option for estimate in ranked(rough, wish)[:_FINALISTS]]
        for seed in range(_DRY_RUNS):
            for option in finalists:
                drawn = self._dry_run(option, seed, noisy=True, must=seed < 2)
                if drawn is not None:
                    noisy.setdefault(option, []).append(drawn)
        width = _relative_width(noisy.get(finalists[0], []))
        return [
            self._estimate(option, noisy.get(option) or [quiet[option]], bounds[option], wish, width)
            if option in quiet
            else self._bounded(option, bounds[option], wish)
            for option in options
        ]

    def _dry_run(self, option: Option, seed: int, noisy: bool, must: bool) -> DryRun | None:
        """Return how a dry run went; None if there was no time for it. One that must be made takes what it takes."""

        def check() -> None:
            if not must and self._left() < 0:
                raise OutOfTime

        if not must and self._left() < 0:
            return None
        profile = self._profile(option)
        factor = self._contention.factor(option, profile.setting)
        demand = self._draw_demand(seed)
        small = shrunk(option, self._workload, demand)
        given, workload = (option, self._workload) if small is None else (small.option, small.workload)
        search = self._make_search(option.workers) if small is None else small.search()
        times = profile.times(given, workload, self._cluster, factor)
        try:
            found = dry_run(
                search,
                self._objective,
                given,
                workload,
                times if small is None else times.steady(),
                seed,
                noisy,
                max_kills=self._max_kills,
                check=check,
            )
        except OutOfTime:
            return None
        if small is None:
            return found
        return self._grown(option, demand, small, profile, times, found)

    def _grown(
        self, option: Option, demand: Demand, small: Shrunk, profile: Profile, times: Times, found: DryRun
    ) -> DryRun:
        """Return how the whole search goes, where a smaller one was run: what is done once takes as long in both."""
        work, less = (
            work_of(one, profile, rows, asked)[0] / one.workers
            for one, rows, asked in (
                (option, self._workload, demand),
                (small.option, small.workload, small.demand),
            )
        )
        scale, trials = work / less, demand.trials
        failed = round(found.failed * trials / max(found.trials, 1))
        seconds = _cut(times.once + scale * found.seconds, self._time_budget, sum(demand.epochs) / trials)
        return replace(found, seconds=seconds, trials=trials, failed=failed, scale=scale)

    def _estimate(
        self,
        option: Option,
        runs: Sequence[DryRun],
        bound: float,
        wish: Wish,
        width: tuple[float, float] = (1.0, 1.0),
    ) -> Estimate:
        seconds = median(run.seconds for run in runs)
        low, high = (
            _interval([run.seconds for run in runs]) if len(runs) > 1 else (width[0] * seconds, width[1] * seconds)
        )
        return Estimate(
            option,
            seconds,
            low,
            high,
            median(run.utilisation for run in runs),
            bound,
            wish.cost(option.workers, seconds),
            len(runs),
            any(run.guessed for run in runs),
            median(run.failed for run in runs),
            max(run.scale for run in runs),
            self._profile(option).group_times(option, self._workload).mean(option.group),
        )

    def _bounded(self, option: Option, bound: float, wish: Wish) -> Estimate:
        """An option for whose dry run there was no time: what it takes at least."""
        return Estimate(option, bound, bound, float("inf"), 1.0, bound, wish.cost(option.workers, bound))


def _cut(seconds: float, time_budget: float | None, epochs: float) -> float:
    """Return how long a search takes that a time budget may end: epochs that have begun are finished.

    Args:
        seconds: How long it takes without one.
        time_budget: The budget, in seconds, if there is one.
        epochs: How many epochs a trial has, on average. All trials are trained side by side.

    >>> _cut(100.0, 25.0, epochs=10), _cut(100.0, 25.0, epochs=2), _cut(20.0, 25.0, epochs=2)
    (30.0, 50.0, 20.0)
    """
    if time_budget is None or time_budget >= seconds:
        return seconds
    epoch = seconds / max(1.0, epochs)
    return min(seconds, math.ceil(time_budget / epoch) * epoch)


def _interval(seconds: Sequence[float]) -> tuple[float, float]:
    """Return between which values nine of ten are; of few values that is a little beyond the outermost."""
    parts = quantiles(seconds, n=20, method="exclusive")
    return max(0.0, parts[0]), parts[-1]


def _relative_width(runs: Sequence[DryRun]) -> tuple[float, float]:
    if len(runs) < 2:
        return (0.8, 1.25)
    middle = median(run.seconds for run in runs)
    low, high = _interval([run.seconds for run in runs])
    return low / middle, high / middle
