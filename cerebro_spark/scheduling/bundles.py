"""Bundles: kin that hop together. PURE.

A bundle is a leader with followers. The leader's row on the board stands for all of them, and a follower's row is not
active, so that a policy chooses units for bundles as it does for trials. Members keep step: they have done the same
partitions of their epochs. Each still has its own attempts, checkpoints and epochs; what makes one differ from the
others lets it leave. Which trials are put together is decided in `forming.py`.
"""

from __future__ import annotations

from cerebro_spark.scheduling.records import OrderRecord, TrialRecord
from cerebro_spark.scheduling.state import State


class BundleRules:
    """Puts trials into bundles, takes them out again, and lets bundles go on. A trial by itself is a bundle of one."""

    def __init__(self, state: State) -> None:
        self._state = state

    # -- who is together

    def head(self, trial: TrialRecord) -> TrialRecord:
        """Return the leader of the trial's bundle: itself, if it leads or is alone."""
        return trial if trial.leader is None else self._state.trials[trial.leader]

    def members(self, trial: TrialRecord) -> list[TrialRecord]:
        """Return all trials of the trial's bundle, the leader first."""
        head = self.head(trial)
        return [head, *(self._state.trials[name] for name in head.followers)]

    def mates(self, trial: TrialRecord) -> list[TrialRecord]:
        """Return the other trials of the trial's bundle."""
        return [member for member in self.members(trial) if member is not trial]

    def later(self, head: TrialRecord) -> int:
        """Return how many epochs follow the current one, for the member that is asked for most."""
        return max(member.until - member.epoch for member in self.members(head))

    # -- coming and going

    def join(self, head: TrialRecord, other: TrialRecord) -> None:
        """Let a bundle follow the leader of another one. Both wait, with the same partitions open."""
        for member in self.members(other):
            member.leader = head.id
            head.followers.append(member.id)
        other.followers = []
        self._state.board.deactivate(other.row)
        self._show(head)

    def part(self, trial: TrialRecord) -> None:
        """Take a trial out of its bundle. It has no place on the board then; an heir takes that of a leader."""
        board, trials = self._state.board, self._state.trials
        if trial.leader is not None:
            head = trials[trial.leader]
            head.followers.remove(trial.id)
            trial.leader = None
            self._show(head)
        elif trial.followers:
            heir = trials[trial.followers[0]]
            heir.leader, heir.followers, trial.followers = None, trial.followers[1:], []
            for name in heir.followers:
                trials[name].leader = heir.id
            board.hand_over(trial.row, heir.row)
            self._show(heir)

    def leave(self, trial: TrialRecord) -> None:
        """Let a trial, none of whose units is under way, go on by itself from where it stands."""
        if not self.mates(trial):
            return
        board = self._state.board
        turn = int(board.turn[self.head(trial).row])
        self.part(trial)
        done = [self._state.columns[partition] for partition in trial.trained]
        board.activate(trial.row, max(0, trial.until - trial.epoch), done, turn)
        self._show(trial)
        self._state.look_at_all = True

    def split(self, head: TrialRecord, others: list[TrialRecord]) -> None:
        """Let some followers of a bundle that waits go on as a bundle of their own."""
        for member in others:
            self.leave(member)
        for member in others[1:]:
            self.join(others[0], member)

    # -- going on

    def extend(self, trial: TrialRecord) -> None:
        """The trial was asked for something new: its bundle has as much to do, unless it is no longer kin.

        One that was stopped in the middle of an epoch goes on there.
        """
        head = self.head(trial)
        done = [self._state.columns[partition] for partition in head.trained]
        self._state.board.activate(head.row, self.later(head), done)
        if not self._is_out(head):
            self._separate(head)

    def settle(self, trial: TrialRecord) -> None:
        """A unit of a member, or of one that left, is over: once all are, the bundle waits for its next unit."""
        head, board = self.head(trial), self._state.board
        if self._is_out(head):
            return
        board.finish(head.row)
        if not board.open[head.row]:
            board.begin_epoch(head.row, self.later(head))
        self._separate(head)
        self._show(head)
        self._state.fresh_trials.append(head.row)

    def learn_width(self, order: OrderRecord) -> None:
        """An order is over: if fewer units were computed at once than were ordered, order no more than that again.

        If that many at once are hardly faster than one after another, every trial goes by itself again.
        Where a unit failed or was lost, nothing can be said: the others may have been computed together after all.
        """
        if len(order.results) < order.width or order.width == 1:
            return
        done = max(width for _, _, width in order.results)
        if self._state.board.costs.gains_nothing(order.kin, done):
            done = 1
        if done < order.width:
            self._state.widest[order.kin] = done

    def _show(self, head: TrialRecord) -> None:
        """Let the leader's row have the cost of the whole bundle, and the epochs of the member that has most left."""
        board, later = self._state.board, self.later(head)
        board.costs.show(head.row, [member.row for member in self.members(head)])
        if board.active[head.row] and board.later[head.row] != later:
            board.activate(head.row, later)

    def _is_out(self, head: TrialRecord) -> bool:
        """Whether units of the bundle are under way."""
        return any(member.attempt is not None for member in self.members(head))

    def _separate(self, head: TrialRecord) -> None:
        """Let those go by themselves that are not of the leader's kin any more; all, if nothing is gained."""
        useless = self._state.widest.get(head.kin) == 1
        for member in self.members(head)[1:]:
            if useless or member.kin != head.kin:
                self.leave(member)
                self._state.fresh_trials.append(member.row)
