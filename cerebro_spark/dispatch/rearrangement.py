"""Vector rearrangement: the approximate open-shop schedule of the Cerebro paper's section 5.2, kept to compare with.

All workers take the trials in one circular order, each starting at another point of the circle. The order is one whose
partial sums stay small in every direction (Steinitz' lemma, by the constructive proof of Grinberg and Sevastyanov), so
that two workers never drift so far that they want one trial at the same time. It never starts a unit out of its order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.dispatch.base import Choice, News, View
from cerebro_spark.scheduling.board import Bools, Floats, Ints

_TINY = 1e-9
_NEVER = np.iinfo(np.int64).max


def rearrangement(view: View, news: News, eligible: Bools) -> list[Choice]:
    """Start on each idle worker the trial whose turn it is there, if it is free; else let the worker wait.

    There is no plan, and nothing starts, while some partition has no holder.
    """
    if not view.board.active.any() or not view.board.holders.all():
        return []
    known = view.memo.get("rearrangement")
    if known is None or known[0] != view.board.layout:
        known = (view.board.layout, plan(view))
        view.memo["rearrangement"] = known
    return follow(view, known[1], eligible)


def plan(view: View) -> Ints:
    """By trial and column: the place of that unit in the order of the column's holder."""
    board = view.board
    rows = np.flatnonzero(board.active)
    home = np.argmax(board.holds, axis=0)
    times = np.outer(board.costs.cost[rows], board.costs.slowness[home] * board.costs.sizes)
    places = np.zeros(board.todo.shape, dtype=np.int64)
    for column, sequence in enumerate(circular_orders(times)):
        places[rows[sequence], column] = np.arange(len(sequence))
    return places


def follow(view: View, places: Ints, eligible: Bools) -> list[Choice]:
    """Keep to an order: epoch by epoch, and within an epoch by place."""
    board = view.board
    size = int(places.max()) + 1
    taken: set[int] = set()
    choices = []
    for worker in np.flatnonzero(eligible):
        columns = np.flatnonzero(board.holds[worker])
        comes = board.todo[:, columns] | (board.later > 0)[:, None]
        turns = (board.turn[:, None] + ~board.todo[:, columns]) * size + places[:, columns]
        due = np.where(comes, turns, _NEVER)
        if not due.size:
            continue
        trial, index = divmod(int(np.argmin(due)), columns.size)
        column = int(columns[index])
        if due[trial, index] < _NEVER and board.free[trial] and board.todo[trial, column] and trial not in taken:
            taken.add(trial)
            choices.append(Choice(int(worker), trial, column))
    return choices


def circular_orders(times: Floats) -> list[Ints]:
    """For each column of `times` (a worker), the order in which it takes the rows (trials).

    >>> [order.tolist() for order in circular_orders(np.ones((3, 3)))]
    [[0, 1, 2], [2, 0, 1], [1, 2, 0]]
    """
    trials, workers = times.shape
    load = times.sum(axis=0)
    longest = float(times.max())
    padded = np.vstack([times, *_padding(load.max() - load, longest)])
    differences = padded[:, :-1] - padded[:, 1:]
    order = steinitz_order(differences) if np.abs(differences).max(initial=0.0) > _TINY else np.arange(len(padded))
    shift = min(workers * longest, float(load.max()) / workers)
    orders = []
    for worker in range(workers):
        begins = np.concatenate([[0.0], np.cumsum(padded[order, worker])[:-1]])
        start = int(np.searchsorted(begins, (-worker * shift) % float(load.max()) - _TINY))
        sequence = np.roll(order, -start)
        orders.append(sequence[sequence < trials])
    return orders


def _padding(missing: Floats, longest: float) -> list[Floats]:
    """Dummy trials, each for one worker and none longer than a real one, that make all workers equally loaded."""
    rows = []
    for worker, gap in enumerate(missing):
        pieces = int(np.ceil(gap / longest - _TINY))
        for _ in range(pieces):
            row = np.zeros(missing.size)
            row[worker] = gap / pieces
            rows.append(row)
    return rows


def steinitz_order(vectors: NDArray[np.float64]) -> Ints:
    """Order vectors that sum to zero so that every partial sum is at most as long as their dimension times the longest.

    From the last place to the first: keep weights in [0, 1] on the vectors not yet placed, with the weighted sum zero
    and the weights' total lower by the dimension than their number; at a vertex of that polytope some weight is zero,
    and that vector goes to the last open place.
    """
    count, dimension = vectors.shape
    order = np.zeros(count, dtype=np.int64)
    left = np.arange(count)
    weights = np.full(count, max(count - dimension, 0) / count)
    for place in range(count - 1, dimension - 1, -1):
        weights *= (place - dimension) / (place + 1 - dimension)
        weights = _to_vertex(vectors[left], weights)
        drop = int(np.argmin(weights))
        order[place] = left[drop]
        left = np.delete(left, drop)
        weights = np.delete(weights, drop)
    order[: left.size] = left
    return order


def _null_vector(system: Floats) -> Floats:
    """A direction, not zero, that a matrix with one column more than rows maps to zero."""
    try:
        found = np.append(np.linalg.solve(system[:, :-1], -system[:, -1]), 1.0)
        if np.isfinite(found).all() and np.abs(system @ found).max() < _TINY * np.abs(found).max():
            return np.asarray(found / np.abs(found).max())
    except np.linalg.LinAlgError:
        pass  # the first columns depend on each other: the costlier way below always works
    return np.asarray(np.linalg.svd(system)[2][-1])


def _to_vertex(vectors: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Move within the polytope, along directions that change neither sum, until too few weights are fractional."""
    weights = weights.copy()
    dimension = vectors.shape[1]
    while weights.min() > _TINY:
        fractional = np.flatnonzero((weights > _TINY) & (weights < 1 - _TINY))
        if fractional.size <= dimension + 1:
            break
        chosen = fractional[: dimension + 2]
        system = np.vstack([vectors[chosen].T, np.ones(chosen.size)])
        direction = _null_vector(system)
        with np.errstate(divide="ignore", invalid="ignore"):
            up = np.where(direction > _TINY, (1 - weights[chosen]) / direction, np.inf)
            down = np.where(direction < -_TINY, -weights[chosen] / direction, np.inf)
        weights[chosen] = np.clip(weights[chosen] + min(up.min(), down.min()) * direction, 0.0, 1.0)
    return weights
