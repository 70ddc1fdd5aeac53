"""Which trials that follow scripts train together. PURE.

The scripts of two trials go different ways, so nobody leads and nobody follows here: kin whose next unit is on the same
partition share one order, and each goes its own way after it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from cerebro_spark.scheduling.records import OrderRecord, TrialRecord
from cerebro_spark.scheduling.state import State


class ScriptBundles:
    """Finds the trials that share the order of another one. Without a script, or with `fuse` 1, there are none."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._on = bool(state.settings.script) and state.settings.fuse > 1

    def companions(self, trial: TrialRecord, column: int, chosen: Collection[int]) -> list[TrialRecord]:
        """Return the trials that wait for a unit on this column and may share the order of `trial`.

        Args:
            trial: The trial that the policy chose.
            column: Where it trains next.
            chosen: The rows of all trials that the policy chose: they get orders of their own, and their share of
                those that wait.
        """
        if not self._on or trial.alone:
            return []
        state, board = self._state, self._state.board
        most = min(state.settings.fuse, state.widest.get(trial.kin, state.settings.fuse))
        single = board.may.sum(axis=1) == 1  # others are trained by several workers next
        able = [
            state.trials[board.trial_ids[row]] for row in np.flatnonzero(board.free & board.may[:, column] & single)
        ]
        kin = [other for other in able if other.kin == trial.kin and not other.alone]
        waiting = [other for other in kin if other.row not in chosen]
        share = -(-len(waiting) // (len(kin) - len(waiting)))  # `trial` itself is among those that do not wait
        return waiting[: min(share, most - 1)]

    def must_wait(self) -> bool:
        """Whether units that were computed together are being reported: the first would go on without the others."""
        return self._on and any(map(_is_incomplete, self._state.orders.values()))


def _is_incomplete(order: OrderRecord) -> bool:
    return order.partly_reported and any(width > 1 for _, _, width in order.results)
