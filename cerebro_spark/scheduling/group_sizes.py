"""By how many workers each trial should be trained, so that all are done soonest. PURE; it knows no scheduler.

Workers that would idle can help a trial: a group of m workers trains m partitions at a time. It costs efficiency, so a
trial gets no more workers than it needs to be done with the others. With L the seconds of a trial by itself, p workers
and e(m) the efficiency of m of them, all are done after max(longest L / m, sum of L / p) / e(m) at best. Where trials
differ much, each gets a size of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cerebro_spark.scheduling.board import Floats, Ints

LEAST_GAIN = 1.05
"""Groups are formed only if all is done sooner by this factor than without them."""
# Trials of one size do not get into each other's way, those of several do, the more the larger groups are beside all
# workers: sizes of their own must be better than one for all by a factor between these.
_MIXED_SMALL, _MIXED_LARGE = 1.05, 1.15
# A group of a quarter of all workers, or more, is a large one.
_CROWDED = 4
# Of a size that all trials have others must be better by this factor.
_LEAST_CHANGE = 1.15


@dataclass(frozen=True, slots=True)
class Prospects:
    """What it takes until trials are done, a row each, by the size of their groups, a column each.

    Attributes:
        sizes: The sizes.
        ends: The seconds until a trial is done that never waits; infinite if no such group can train it.
        spent: The seconds that it takes of all workers together.
        waits: The seconds for which it may have to wait for others: they are in its way where there are several groups.
        in_teams: By size, the seconds until all are done if all have this size: the longest, or the busiest team.
        busiest: The seconds until the busiest worker is done, if it never waits.
    """

    sizes: Ints
    ends: Floats
    spent: Floats
    waits: Floats
    in_teams: Floats
    busiest: float = 0.0


def candidate_sizes(columns: int, most: int) -> list[int]:
    """Return the sizes that differ in how many units they make of an epoch: others only need more workers for as many.

    Args:
        columns: The number of training partitions.
        most: The most workers that a group may have.

    >>> candidate_sizes(8, 8), candidate_sizes(8, 6), candidate_sizes(6, 99), candidate_sizes(8, 1)
    ([1, 2, 3, 4, 8], [1, 2, 3, 4], [1, 2, 3, 6], [1])
    """
    sizes = {-(-columns // count) for count in range(1, columns + 1)}
    return sorted(size for size in sizes if size == 1 or size <= most)


def choose_sizes(prospects: Prospects, workers: int, before: int | None) -> Ints:
    """Return, by trial, the column of the size with which all trials are done soonest.

    Args:
        prospects: What it takes; the first size is that of single workers.
        workers: How many workers there are.
        before: The column of the size that all trials had so far; None if they had sizes of their own. What is expected
            is not that exact, and every change costs some waiting: so others must be better by a margin.

    Returns:
        A column for each row.

    >>> ends, spent, waits = np.array([[8.0, 2.2]]), np.array([[8.0, 8.9]]), np.zeros((1, 2))
    >>> one = Prospects(np.array([1, 4]), ends, spent, waits, in_teams=np.array([8.0, 2.2]))
    >>> choose_sizes(one, workers=4, before=0)
    array([1])
    """
    ends, spent, waits = prospects.ends, prospects.spent, prospects.waits
    longest_wait = waits.max(axis=0, initial=0.0)
    if before is not None:
        longest_wait[before] = 0.0  # they have fallen into step
    alike = prospects.in_teams + longest_wait
    own = _give_to_longest(ends, spent, workers)
    waiting = float(waits[np.arange(len(own)), own].max(initial=0.0))
    crowded = min(1.0, _CROWDED * int(prospects.sizes[own.max(initial=0)]) / workers)
    margin = _MIXED_SMALL + (_MIXED_LARGE - _MIXED_SMALL) * crowded
    # Some workers have more to do than others, whoever is in a group with whom.
    lasts = max(_lasts(ends, spent, own, workers), prospects.busiest)
    best, mixed = int(alike.argmin()), margin * (lasts + waiting)
    least = min(float(alike[best]), mixed)
    if before is not None and np.isfinite(alike[before]):
        margin = LEAST_GAIN if before == 0 else _LEAST_CHANGE
        if alike[before] < margin * least:
            best, mixed = before, np.inf
    return own if mixed < alike[best] else np.full(len(ends), best, dtype=np.int64)


def _give_to_longest(ends: Floats, spent: Floats, workers: int) -> Ints:
    """Return sizes of which those trials get large ones that would outlast the others, as large as is needed."""
    times = np.unique(ends[np.isfinite(ends)])
    low, high = 0, len(times) - 1
    while low < high:  # what all workers spend falls with the time that every trial is allowed
        middle = (low + high) // 2
        columns = _cheapest(ends, spent, float(times[middle]))
        if columns is None or _total(spent, columns) / workers > times[middle]:
            low = middle + 1
        else:
            high = middle
    tried = [_cheapest(ends, spent, float(time)) for time in times[max(low - 1, 0) : low + 1]]
    found = [columns for columns in tried if columns is not None]
    return min(found, key=lambda columns: _lasts(ends, spent, columns, workers))


def _cheapest(ends: Floats, spent: Floats, until: float) -> Ints | None:
    """Return for each trial the size that spends least of those that end in time; None if one has no such size."""
    in_time = ends <= until * (1 + 1e-9)
    if not in_time.any(axis=1).all():
        return None
    columns: Ints = np.where(in_time, spent, np.inf).argmin(axis=1)
    return columns


def _lasts(ends: Floats, spent: Floats, columns: Ints, workers: int) -> float:
    """Return the seconds until all trials are done with these sizes, as far as can be said: none can be faster."""
    return max(float(ends[np.arange(len(ends)), columns].max(initial=0.0)), _total(spent, columns) / workers)


def _total(spent: Floats, columns: Ints) -> float:
    return float(spent[np.arange(len(columns)), columns].sum())
