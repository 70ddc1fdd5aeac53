"""What a dispatch policy is: a plain function from what is known to the units to start now. It changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cerebro_spark.scheduling.board import Board, Bools


class Choice(NamedTuple):
    """Start this trial on this partition at this worker; all three by their number on the board."""

    worker: int
    trial: int
    column: int


@dataclass(frozen=True, slots=True)
class News:
    """What became available since the policy was last asked. `everything` means: look at all of it again."""

    workers: Sequence[int] = ()
    trials: Sequence[int] = ()
    everything: bool = False


@dataclass(slots=True)
class View:
    """What a policy sees. `memo` is a place for plans that hold as long as `board.layout` does not change."""

    board: Board
    rng: np.random.Generator
    now: float = 0.0
    memo: dict[str, Any] = field(default_factory=dict)


Policy = Callable[[View, News, Bools], list[Choice]]
"""Returns choices that can all be started at once: idle workers, free trials, each at most once, partitions held."""
