"""Which trials are put into one bundle, just before units are given out. PURE.

There are never fewer bundles than workers: half as many, twice as wide, would leave workers idle and gain less than
that costs. Nor may a bundle last longer than the run must last anyway. What is gained by a width is not known before it
was tried, so as long as it is not, nothing is counted on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cerebro_spark.scheduling.board import Bools, Ints
from cerebro_spark.scheduling.bundles import BundleRules
from cerebro_spark.scheduling.records import TrialRecord
from cerebro_spark.scheduling.state import State

# Costs that are measured differ by chance: a bundle may last longer than it should by this factor.
_TOLERANCE = 1.05


@dataclass(slots=True)
class _Census:
    """The bundles on the board, a trial by itself being one, and how many there must be.

    `most` is how many trials a bundle may have, `free` are the leaders of those that wait for their next unit.
    `resting` trials are evaluated, and may go on soon: bundles are not split for as long as that takes.
    """

    bundles: int
    workers: int
    trials: int
    resting: int
    most: int
    free: list[TrialRecord]


class BundleFormation:
    """Splits bundles that are too large for the workers that are there, and joins those that are too many."""

    def __init__(self, state: State, bundles: BundleRules) -> None:
        self._state = state
        self._bundles = bundles
        self._on = state.settings.fuse > 1 and not state.settings.script
        self._layout = -1
        self._places: tuple[Bools, Ints, Ints] | None = None

    def form(self) -> None:
        """Form the bundles from which a policy is to choose next."""
        board = self._state.board
        if not self._on or not np.count_nonzero(board.free) or not self._may_change():
            return
        census = self._count()
        if census.workers:
            self._split(census)
            self._join(census)
        self._layout = board.layout
        self._places = board.free.copy(), board.open.copy(), board.turn.copy()

    def _may_change(self) -> bool:
        """Whether there may be something to do since the last time: a quick look, as this is asked with every event."""
        board = self._state.board
        if self._layout != board.layout or self._places is None:
            return True
        free, open_, turn = self._places
        (moved,) = (board.free & (~free | (board.open != open_) | (board.turn != turn))).nonzero()
        return any(self._may_join(int(row)) for row in moved)

    def _may_join(self, row: int) -> bool:
        state, board = self._state, self._state.board
        trial = state.trials[board.trial_ids[row]]
        if trial.followers and board.open[row] == board.columns:
            return True
        alike = (board.todo == board.todo[row]).all(axis=1) & board.free
        return state.widest.get(trial.kin) != 1 and np.count_nonzero(alike) > 1

    def _count(self) -> _Census:
        state, board = self._state, self._state.board
        heads = [state.trials[board.trial_ids[row]] for row in board.active.nonzero()[0]]
        trials = sum(1 + len(head.followers) for head in heads)
        workers = len(state.holdings.available())
        resting = sum(bool(trial.evaluations) and trial.status == "paused" for trial in state.trials.values())
        most = -(-(trials + resting) // max(workers, 1))
        free = [head for head in heads if board.free[head.row] and head.status == "training"]
        return _Census(len(heads), workers, trials, resting, min(most, state.settings.fuse), free)

    def _most(self, census: _Census, head: TrialRecord) -> int:
        return min(census.most, self._state.widest.get(head.kin, census.most))

    # -- too large

    def _split(self, census: _Census) -> None:
        """Split bundles that are about to begin an epoch: later the parts would be in each other's way."""
        begin = [head for head in census.free if self._state.board.open[head.row] == self._state.board.columns]
        while wide := [head for head in begin if 1 + len(head.followers) > self._most(census, head)]:
            self._cut(census, begin, wide[0], self._most(census, wide[0]))
        while census.bundles + census.resting < min(census.workers, census.trials):
            largest = max(begin, key=lambda head: len(head.followers), default=None)
            if largest is None or not largest.followers:
                return
            self._cut(census, begin, largest, (2 + len(largest.followers)) // 2)

    def _cut(self, census: _Census, begin: list[TrialRecord], head: TrialRecord, keep: int) -> None:
        others = self._bundles.members(head)[keep:]
        self._bundles.split(head, others)
        for made in (census.free, begin):
            made.append(others[0])
        census.bundles += 1

    # -- too many

    def _join(self, census: _Census) -> None:
        spare = census.bundles - census.workers
        joined = False
        for group in self._groups(census) if spare > 0 else ():
            before = spare
            spare = self._fill(census, group, spare)
            joined = joined or spare < before
        if joined:
            self._state.board.close_ranks()
            self._state.look_at_all = True

    def _groups(self, census: _Census) -> list[list[TrialRecord]]:
        """Return those that could be joined: kin with the same partitions open, those with most epochs left first."""
        board = self._state.board
        groups: dict[tuple[str, bytes], list[TrialRecord]] = {}
        for head in census.free:
            if not head.alone and self._most(census, head) > 1:
                groups.setdefault((head.kin, board.todo[head.row].tobytes()), []).append(head)
        for group in groups.values():
            group.sort(key=lambda head: (-int(board.later[head.row]), head.row))
        return sorted((group for group in groups.values() if len(group) > 1), key=len, reverse=True)

    def _fill(self, census: _Census, group: list[TrialRecord], spare: int) -> int:
        """Join bundles of one group, evenly, `spare` times at most; return how many times are left."""
        most, longest = self._most(census, group[0]), self._longest(group[0])
        left = sum(1 + len(head.followers) for head in group)
        bins = max(-(-left // most), len(group) - spare)
        head, size, quota = group[0], 1 + len(group[0].followers), -(-left // bins)
        for other in group[1:]:
            more = 1 + len(other.followers)
            if size + more <= min(quota, most) and spare and self._lasts(head, other) <= longest:
                self._bundles.join(head, other)
                size, spare = size + more, spare - 1
            else:
                left, bins = left - size, bins - 1
                head, size, quota = other, more, -(-left // max(bins, 1))
        return spare

    def _lasts(self, head: TrialRecord, other: TrialRecord) -> float:
        """Return the expected seconds until two bundles, once joined, are done with all they are asked for."""
        board = self._state.board
        rows = [member.row for one in (head, other) for member in self._bundles.members(one)]
        return float(max(board.weight[head.row], board.weight[other.row])) * board.costs.together(rows)

    def _longest(self, head: TrialRecord) -> float:
        """Return the seconds for which a bundle of this kin may last without making the run any longer.

        That is what the busiest worker has to do, or the longest trial. What other kin cost may not be known yet: then
        it counts for nothing.
        """
        state, board = self._state, self._state.board
        remaining = board.remaining(state.now)
        (rows,) = board.active.nonzero()
        kin = [state.trials[board.trial_ids[row]].kin == head.kin for row in rows]
        known = [own or not board.costs.is_new(int(row)) for own, row in zip(kin, rows, strict=True)]
        counted = remaining[rows[known]]
        busiest = float(board.loads(state.now, board.idle).max()) / float(remaining[rows].sum())
        # Of partitions that nobody holds yet no worker knows: then the average worker is busier.
        load = float(counted.sum()) * max(busiest, 1.0 / max(len(state.holdings.available()), 1))
        return _TOLERANCE * max(load, float(counted.max()))
