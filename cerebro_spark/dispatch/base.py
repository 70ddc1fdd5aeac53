"""What a dispatch policy is: a plain function from what is known to the units to start now. It changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cerebro_spark.scheduling.board import Board, Bools


class UnitChoice(NamedTuple):
    """A unit to start: this trial on this partition (column) at this worker, by their rows and column on the board.

    `beside` are the other workers of a group, each with its column.
    """

    worker: int
    trial: int
    column: int
    beside: tuple[tuple[int, int], ...] = ()

    @property
    def members(self) -> list[tuple[int, int]]:
        """All workers, each with its column."""
        return [(self.worker, self.column), *self.beside]


@dataclass(frozen=True, slots=True)
class Changes:
    """Which rows became available since the policy was last asked; with `everything`, more than these have changed."""

    workers: Sequence[int] = ()
    trials: Sequence[int] = ()
    everything: bool = False


@dataclass(slots=True)
class PolicyView:
    """What a policy knows. It may keep plans in `memo`, valid as long as `board.layout` does not change."""

    board: Board
    rng: np.random.Generator
    now: float = 0.0
    memo: dict[str, Any] = field(default_factory=dict)


Policy = Callable[[PolicyView, Changes, Bools], list[UnitChoice]]
"""Chooses the units to start now, on workers of which the third argument, by row of the board, says that they may.

The choices can all be started at once: eligible workers and free trials, each at most once, and partitions held there.
"""
