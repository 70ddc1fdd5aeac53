"""A smaller search in place of a large one, so that a dry run is quick. PURE.

A dry run takes time for every unit, and 300 trials on 300 workers have 180,000 of them an epoch. With a tenth of the
workers, partitions, rows and trials, each worker has as many trials as before, units are as long, and trials wait for
each other as often: only that all of it takes a tenth of the time. Such a search has a fixed list of trials and epochs:
what one asks for that compares trials is drawn before, for each dry run anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cerebro_spark.planning.values import Demand, Option, Workload
from cerebro_spark.search import Done, Search, Wait, make_trial_ids
from cerebro_spark.types import Report, Work

MOST_UNITS = 8000
"""Up to so many units a search is run dry as it is."""
# With fewer workers, or fewer trials for each, trials would wait for each other in another way.
_LEAST_WORKERS = 16
_LEAST_TRIALS = 3


@dataclass(frozen=True, slots=True)
class Shrunk:
    """A smaller search.

    Args:
        option: How it is run.
        workload: What it trains on.
        demand: What it asks for.
    """

    option: Option
    workload: Workload
    demand: Demand

    def search(self) -> Search:
        """Return a search that asks for just that."""
        return _DemandSearch(self.demand)


def shrunk(option: Option, workload: Workload, demand: Demand, most: int = MOST_UNITS) -> Shrunk | None:
    """Return a smaller search; None for one that is small enough as it is.

    Args:
        option: How the search is run.
        workload: What it trains on.
        demand: What it asks for.
        most: Up to how many units it is small enough.

    >>> demand = Demand(({},) * 200, (10,) * 200)
    >>> small = shrunk(Option(100, 1, 50, 100), Workload(1_000_000, 0, 0), demand)
    >>> small.option.workers, small.option.hosts, small.option.partitions, small.workload.train
    (20, 10, 20, 200000)
    >>> small.demand.trials, small.demand.epochs[0]
    (40, 10)
    """
    units = sum(demand.epochs) * (option.partitions + _checks(option, workload))
    if units <= most:
        return None
    option, workload, demand = _fewer_workers(option, workload, demand, units / most)
    units = sum(demand.epochs) * (option.partitions + _checks(option, workload))
    demand = _fewer_epochs(demand, units / most)
    units = sum(demand.epochs) * (option.partitions + _checks(option, workload))
    return Shrunk(option, workload, _fewer_trials(demand, units / most, _LEAST_TRIALS * option.workers))


def _checks(option: Option, workload: Workload) -> int:
    if not workload.validation:
        return 0
    return workload.validation_partitions or min(option.partitions, workload.validation)


def _fewer_workers(option: Option, workload: Workload, demand: Demand, by: float) -> tuple[Option, Workload, Demand]:
    """Return all of it `by` times smaller, if it has workers enough: their number and that of trials count both."""
    share = max(1 / math.sqrt(by), min(1.0, _LEAST_WORKERS / option.workers))
    checks = _checks(option, workload)
    smaller = replace(
        option,
        workers=_part(option.workers, share),
        hosts=_part(option.hosts, share),
        partitions=_part(option.partitions, share),
        group=min(option.group, _part(option.workers, share)),
    )
    rows = replace(
        workload,
        train=_part(workload.train, share),
        validation=_part(workload.validation, share),
        bytes=_part(workload.bytes, share),
        validation_partitions=_part(checks, share) or None,
    )
    return smaller, rows, _fewer_trials(demand, 1 / share, 1)


def _fewer_epochs(demand: Demand, by: float) -> Demand:
    """Return trials of fewer epochs, at least one each."""
    return demand if by <= 1 else Demand(demand.params, tuple(_part(epochs, 1 / by) for epochs in demand.epochs))


def _fewer_trials(demand: Demand, by: float, least: int) -> Demand:
    """Return fewer trials, from among all of them, and not fewer than so many."""
    count = max(_part(demand.trials, 1 / max(1.0, by)), min(least, demand.trials))
    chosen = [number * demand.trials // count for number in range(count)]
    return Demand(tuple(demand.params[one] for one in chosen), tuple(demand.epochs[one] for one in chosen))


def _part(whole: int, share: float) -> int:
    """Return a share of a number, at least 1 if that is.

    >>> _part(10, 0.25), _part(3, 0.01), _part(0, 0.5)
    (2, 1, 0)
    """
    return max(1, round(share * whole)) if whole else 0


class _DemandSearch(Search):
    """Trains each configuration for its own number of epochs."""

    def __init__(self, demand: Demand) -> None:
        names = make_trial_ids(demand.trials)
        asked = zip(names, demand.params, demand.epochs, strict=True)
        self._works = iter([Work(name, params, epochs) for name, params, epochs in asked])

    def ask(self) -> Work | Wait | Done:
        return next(self._works, Done())

    def tell(self, report: Report) -> None:
        """Nothing depends on results here."""
