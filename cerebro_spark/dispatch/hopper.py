"""The default policy: rotation where trials are about as many as workers and much alike, reserve everywhere else."""

from __future__ import annotations

import numpy as np

from cerebro_spark.dispatch.base import Changes, PolicyView, UnitChoice
from cerebro_spark.dispatch.reserve import reserve
from cerebro_spark.dispatch.rotation import rotation
from cerebro_spark.scheduling.board import Board, Bools
from cerebro_spark.scheduling.homes import choose_homes

# With a quarter more trials than workers a greedy choice wastes as much as a rotation does (benchmarks/scheduler.py).
_MANY = 1.25
# Where costs differ more than this, a rotation would slow the short trials down to the pace of the long ones.
_ALIKE = 2.0
# How many decisions may pass before the regime is looked at again, while the layout stays as it is.
_STEADY = 64


def hopper(view: PolicyView, changes: Changes, eligible: Bools) -> list[UnitChoice]:
    """Start what ends the whole run soonest; leave a worker idle on purpose where that helps."""
    tight, layout, age = view.memo.get("regime", (None, -1, 0))
    if layout != view.board.layout or age >= _STEADY:
        before, tight, age = tight, _is_tight(view.board), 0
        if tight != before:
            changes = Changes(everything=True)
            view.memo.pop("ring", None)
    view.memo["regime"] = (tight, view.board.layout, age + 1)
    return rotation(view, changes, eligible) if tight else reserve(view, changes, eligible)


def _is_even(board: Board, live: int) -> bool:
    """Whether partitions can be shared out so that a rotation keeps every worker as busy as any other.

    With one holder each they are where they are, and no policy could do better; with several, a policy could.
    """
    if board.holders.max(initial=0) <= 1:
        return True
    guests = np.bincount(choose_homes(board)[board.holders > 0], minlength=1)
    return bool(board.holders.all() and guests.max() <= -(-board.columns // max(live, 1)))


def _is_tight(board: Board) -> bool:
    live = int(board.live.sum())
    active = int(board.active.sum())
    if active > _MANY * live or not _is_even(board, live):
        return False
    costs = board.costs.cost[: board.active.size][board.active]
    return bool(costs.size and costs.max() <= _ALIKE * costs.min())
