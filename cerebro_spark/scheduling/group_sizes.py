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
# In a search that asks for more, sizes of their own must get so many times more done than one for all: trials with
# several sizes wait for each other.
_OWN_SIZES = 1.25
# The share of a wait that is left where all trials have teams of one size.
_FORMED = 0.25
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
        running: The seconds until all that runs now is done: no team forms later than that.
    """

    sizes: Ints
    ends: Floats
    spent: Floats
    waits: Floats
    in_teams: Floats
    busiest: float = 0.0
    running: float = np.inf


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
    ends, waits = prospects.ends, prospects.waits
    # Teams of one size are hardly in each other's way once they have formed.
    most = waits.max(axis=0, initial=0.0)
    longest_wait = np.clip(prospects.running, _FORMED * most, most)
    if before is not None:
        longest_wait[before] = 0.0  # they have fallen into step
    alike = prospects.in_teams + longest_wait
    own = _give_to_longest(prospects, workers)
    waiting = float(waits[np.arange(len(own)), own].max(initial=0.0))
    crowded = min(1.0, _CROWDED * int(prospects.sizes[own.max(initial=0)]) / workers)
    margin = _MIXED_SMALL + (_MIXED_LARGE - _MIXED_SMALL) * crowded
    # Some workers have more to do than others, whoever is in a group with whom.
    lasts = max(_lasts(prospects, own, workers), prospects.busiest)
    best, mixed = int(alike.argmin()), margin * (lasts + waiting)
    least = min(float(alike[best]), mixed)
    if before is not None and np.isfinite(alike[before]):
        margin = LEAST_GAIN if before == 0 else _LEAST_CHANGE
        if alike[before] < margin * least:
            best, mixed = before, np.inf
    return own if mixed < alike[best] else np.full(len(ends), best, dtype=np.int64)


def share_idle(prospects: Prospects, workers: int, trials: int) -> Ints:
    """Return, by trial, the column of a size such that no trial takes a worker that another one could have.

    It is for searches that will ask for more: what is to come would keep the workers busy, so no efficiency is given
    away. If there is a team for each trial, all get teams of one size; the trials that last longest get larger ones
    only where far more is done like that.

    Args:
        prospects: What it takes; the first size is that of single workers.
        workers: How many workers there are.
        trials: How many trials must find a worker, those included that the search may ask for in a moment.

    Returns:
        A column for each row.

    >>> ends = np.array([[8.0, 4.1, 2.2], [6.0, 3.1, 1.6]])
    >>> two = Prospects(np.array([1, 2, 4]), ends, ends, np.zeros((2, 3)), in_teams=ends.max(axis=0))
    >>> share_idle(two, workers=4, trials=2), share_idle(two, workers=6, trials=2), share_idle(two, workers=4, trials=3)
    (array([1, 1]), array([2, 2]), array([1, 0]))
    """
    present = max(len(prospects.ends), trials)
    # A team for each trial: then they go around as single trials do on single workers.
    enough = -(-workers // prospects.sizes) >= present
    alike = int(np.where(enough, prospects.in_teams, np.inf).argmin()) if enough.any() else 0
    own = _share_one_by_one(prospects, workers - present)
    ends = np.maximum(prospects.ends, 1e-9)
    faster = ends[:, :1] / ends
    gained = float(faster[np.arange(len(own)), own].sum())
    if gained > _OWN_SIZES * float(faster[:, alike].sum()):
        return own
    return np.full(len(own), alike, dtype=np.int64)


def _share_one_by_one(prospects: Prospects, idle: int) -> Ints:
    """Return sizes of which the trial that lasts longest gets a larger one, as long as so many more workers suffice."""
    sizes, ends = prospects.sizes, prospects.ends
    columns = np.zeros(len(ends), dtype=np.int64)
    growing = list(range(len(ends)))
    while growing and idle > 0:
        row = max(growing, key=lambda row: float(ends[row, columns[row]]))
        (better,) = (ends[row] * LEAST_GAIN < ends[row, columns[row]]).nonzero()
        cost = int(sizes[better[0]] - sizes[columns[row]]) if better.size else idle + 1
        if cost > idle:
            growing.remove(row)
        else:
            columns[row], idle = better[0], idle - cost
    return columns


def _give_to_longest(prospects: Prospects, workers: int) -> Ints:
    """Return sizes of which those trials get large ones that would outlast the others, as large as is needed."""
    ends, spent = prospects.ends, prospects.spent
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
    return min(found, key=lambda columns: _lasts(prospects, columns, workers))


def _cheapest(ends: Floats, spent: Floats, until: float) -> Ints | None:
    """Return for each trial the size that spends least of those that end in time; None if one has no such size."""
    in_time = ends <= until * (1 + 1e-9)
    if not in_time.any(axis=1).all():
        return None
    columns: Ints = np.where(in_time, spent, np.inf).argmin(axis=1)
    return columns


def _lasts(prospects: Prospects, columns: Ints, workers: int) -> float:
    """Return the seconds until all trials are done with these sizes, as far as can be said: none can be faster."""
    ends = prospects.ends[np.arange(len(columns)), columns]
    whole = max(float(ends.max(initial=0.0)), _total(prospects.spent, columns) / workers)
    return max(whole, _one_after_another(ends, prospects.sizes[columns], workers))


def _one_after_another(ends: Floats, sizes: Ints, workers: int) -> float:
    """Return the seconds of trials that cannot run at the same time, as there are not enough workers for two of them.

    >>> _one_after_another(np.array([5.0, 3.0, 1.0]), np.array([4, 1, 1]), workers=4)
    8.0
    """
    if not ends.size:
        return 0.0
    largest = int(sizes.argmax())
    beside = sizes > workers - sizes[largest]
    beside[largest] = False
    pair = float(ends[largest]) + float(ends[beside].max(initial=0.0))
    return max(pair, float(ends[2 * sizes > workers].sum()))


def _total(spent: Floats, columns: Ints) -> float:
    return float(spent[np.arange(len(columns)), columns].sum())
