"""How much memory a worker needs, from what workers of a pilot had. PURE."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.planning.profile import Profile
from cerebro_spark.planning.sizes import size
from cerebro_spark.planning.values import Cluster, Option, Workload

# What may come beyond what was measured: other trials, fragments, a longer run.
_MARGIN = 1.15
_STEP = 64 << 20


def fitting(options: Sequence[Option], cluster: Cluster) -> list[Option]:
    """Return the options whose workers have room on their hosts.

    Args:
        options: The options, with the memory that each of their workers needs.
        cluster: What they run on.

    Raises:
        ConfigurationError: Not even the option with the fewest workers on a host has room there.
    """
    room = cluster.memory
    if room is None:
        return list(options)
    kept = [option for option in options if option.at_once * (option.memory or 0) <= room]
    if options and not kept:
        least = min(options, key=lambda option: option.at_once * (option.memory or 0))
        # Groups have no fewer workers than they are large.
        who, fewer = "a worker needs", ""
        if least.at_once > 1:
            who = f"the fewest workers that a host can have, {least.at_once}, need"
            fewer = " or fewer `workers_per_trial`,"
        raise ConfigurationError(
            f"{who} {size(least.at_once * (least.memory or 0))} of memory, as was measured, but a host has"
            f" {size(room)}: use hosts with more memory,{fewer} a smaller batch size or model, or more workers, so that"
            " each holds fewer rows"
        )
    return kept


def memory_of(option: Option, profile: Profile, workload: Workload) -> int | None:
    """Return the bytes that a worker needs with an option; None if none was measured.

    It is what a worker of the pilot had, and what its partitions are larger than those of the pilot: of them only the
    batches that were trained were ever touched.

    Args:
        option: How the search is run.
        profile: What was measured.
        workload: What it trains on.
    """
    record = profile.record
    if not record.memory:
        return None
    rows = workload.train + workload.validation
    held = workload.bytes * option.replicas / max(option.workers, 1)
    touched = min(rows, sum(record.rows.values())) / max(rows, 1) * workload.bytes
    needed = _MARGIN * (record.memory + max(0.0, held - touched))
    return math.ceil(needed / _STEP) * _STEP
