"""The ways to run a search on a cluster: at most twenty, of which the bounds say that the best is among them. PURE."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from cerebro_spark.planning.profile import Profile
from cerebro_spark.planning.values import Cluster, Demand, Option, Workload
from cerebro_spark.trainer.feed import batch_size_of

MOST = 20
"""How many options are considered."""

Bound = Callable[[Option], float]


def list_options(
    cluster: Cluster,
    threads: Iterable[int],
    workload: Workload,
    trials: int,
    width: int = 1,
    replicas: int = 1,
    group: int = 1,
    group_auto: bool = False,
) -> list[Option]:
    """Return the options that make sense.

    By threads, as many workers as have cores, and halves of that. There are never more workers than trials have at a
    time, nor than partitions, since each needs one of its own.

    Args:
        cluster: What it can run on.
        threads: The threads of a worker that were measured.
        workload: What is trained on.
        trials: How many trials are trained at a time, at most.
        width: How many trials may train together. Defaults to 1.
        replicas: How many workers hold each partition, if there are as many. Defaults to 1.
        group: How many workers train a trial together. Defaults to 1.
        group_auto: Whether that is only the most. Defaults to False: there are never fewer workers.

    >>> cluster = Cluster(hosts=2, cores=4)
    >>> options = list_options(cluster, [1, 4], Workload(train=1000, validation=0, bytes=0), trials=6)
    >>> [(option.workers, option.threads, option.hosts) for option in options]
    [(6, 1, 2), (4, 1, 2), (2, 1, 2), (1, 1, 1), (2, 4, 2), (1, 4, 1)]
    """
    options = []
    for own in sorted(set(threads)):
        most = min(cluster.hosts * max(1, cluster.cores // own), trials * group, workload.partitions or workload.train)
        for workers in _halves(most):
            if workers < group and not group_auto:
                continue
            partitions = workload.partitions or workers
            hosts, held = min(cluster.hosts, workers), min(replicas, workers)
            options.append(
                Option(
                    workers,
                    own,
                    hosts,
                    partitions,
                    replicas=held,
                    group=min(group, workers),
                    group_auto=group_auto and group > 1,
                    width=width,
                )
            )
    return options


def _halves(most: int) -> list[int]:
    """Return a number, and the powers of two below it.

    >>> _halves(6), _halves(4), _halves(0)
    ([6, 4, 2, 1], [4, 2, 1], [])
    """
    return [most, *(2**n for n in reversed(range((most - 1).bit_length())))] if most else []


def prune(options: Iterable[Option], bound: Bound, most: int = MOST) -> list[Option]:
    """Return the options that can be best, those with the lowest bound first.

    Args:
        options: The options.
        bound: Says what an option takes at least.
        most: How many are kept.
    """
    return sorted(options, key=lambda option: (bound(option), option.workers * option.threads))[:most]


def bound_of(option: Option, profile: Profile, workload: Workload, demand: Demand, factor: float = 1.0) -> float:
    """Return the seconds that a search takes at least: all work shared evenly, or the longest trial.

    Args:
        option: How it is run.
        profile: What units take.
        workload: What it trains on.
        demand: What it asks for.
        factor: By how much units are slower than those that were measured. Defaults to 1.0.
    """
    total, longest = work_of(option, profile, workload, demand)
    seconds = factor * max(total / option.workers, longest / option.group)
    # Groups of large batches may do more than their workers do one by one.
    gain = profile.group_times(option, workload).best if option.group > 1 else 1.0
    return profile.record.lead + seconds / gain


def work_of(option: Option, profile: Profile, workload: Workload, demand: Demand) -> tuple[float, float]:
    """Return the seconds of all units of a search, and those of the longest trial, which has them one after another.

    Args:
        option: How it is run.
        profile: What units take.
        workload: What it trains on.
        demand: What it asks for.
    """
    parts = option.partitions
    checks = 0 if not workload.validation else workload.validation_partitions or min(parts, workload.validation)
    total, longest = 0.0, 0.0
    for params, epochs in zip(demand.params, demand.epochs, strict=True):
        size = batch_size_of(params)
        train = profile.cost("train", params, option.width).of(math.ceil(workload.train / parts / size)) * parts
        check = 0.0
        if checks:
            rows = workload.validation / checks
            check = profile.cost("eval", params, option.width).of(math.ceil(rows / size)) * checks
        total += epochs * (train + check)
        longest = max(longest, epochs * train)
    return total, longest
