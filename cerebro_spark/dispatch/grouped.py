"""Units of groups: several workers train a trial at a time. It takes the place of the policy where some trial gets more
than one worker; else that is asked.

The trial that will last longest chooses first. It takes the workers with which it will be done soonest: those that are
idle now, or some more that will be before long. Then the idle ones wait for them, and meanwhile run only what ends
before that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from cerebro_spark.dispatch.base import Changes, Policy, PolicyView, UnitChoice
from cerebro_spark.scheduling.board import Board, Bools, Ints
from cerebro_spark.scheduling.matching import Matching
from cerebro_spark.scheduling.teams import TeamBoard, Teams

# A busy worker is not expected to be idle before that share of a unit has passed, whatever was expected.
_LATE = 0.05
# So many workers for each that is needed are looked at: of some the columns are taken by others.
_CONSIDERED = 4


class Sizing(Protocol):
    """What is known of groups; see `scheduling/groups.py`."""

    @property
    def exact(self) -> bool:
        """Whether a unit has to wait until there are as many workers as its size says."""

    @property
    def on_one_host(self) -> bool:
        """Whether no group may have workers of several hosts."""

    @property
    def are_loading(self) -> bool:
        """Whether some worker is about to hold more than it does."""

    def efficiency(self, row: int, size: int, across_hosts: bool = False) -> float:
        """Return the efficiency of a group of this size with the trial in this row."""

    def hosts(self) -> list[str]:
        """Return the host of each worker, by row."""

    def teams(self, size: int) -> Teams:
        """Return the teams of a size."""


class _Team(NamedTuple):
    """Workers that could run a trial's next unit, each with its column, when they can begin, and how long it takes."""

    members: list[tuple[int, int]]
    begins: float
    seconds: float


def choose_groups(
    view: PolicyView, sizing: Sizing, sizes: Ints, eligible: Bools, policy: Policy, memo: dict[str, Any]
) -> list[UnitChoice]:
    """Choose the units to start now on idle workers.

    Args:
        view: What a policy knows.
        sizing: What is known of groups.
        sizes: By row, how many workers a trial's next unit is to have.
        eligible: By row, the workers that may start a unit now.
        policy: Chooses among teams, where all trials have one size; if that size was given, only while all teams have
            exactly that.
        memo: What it wants to remember of teams.

    Returns:
        The units to start.
    """
    board = view.board
    size = int(sizes[board.active].max(initial=1))
    alike = bool((sizes[board.active] == size).all()) and (not sizing.exact or _are_whole(board, sizing, size))
    if memo.get("teams") != (size if alike else None):
        memo.clear()  # what was planned before is not what was done since
        memo["teams"] = size if alike else None
    if alike:
        return _choose_teams(view, sizing, size, policy, memo)
    return _Selection(view, sizing, sizes, eligible).choose()


def _are_whole(board: Board, sizing: Sizing, size: int) -> bool:
    """Whether every unit of teams has exactly so many workers, with all trials as they are now."""
    if board.may is not board.todo:  # a script has groups of its own
        return False
    teams = sizing.teams(size)
    if any(len(members) != size for members in teams.classes):
        return False
    lacking = board.todo[board.active].astype(np.int64) @ teams.membership(board.columns)
    return bool(((lacking == 0) | (lacking == size)).all())


def _choose_teams(
    view: PolicyView, sizing: Sizing, size: int, policy: Policy, memo: dict[str, Any]
) -> list[UnitChoice]:
    """Let the policy choose among teams of one size."""
    teams = sizing.teams(size)

    def efficiency(row: int) -> float:
        return sizing.efficiency(row, size, teams.across_hosts)

    board = TeamBoard(view.board, teams, efficiency, view.now)
    choices = []
    for choice in policy(PolicyView(board, view.rng, view.now, memo), Changes(everything=True), board.idle):
        (worker, column), *beside = board.members(choice.trial, choice.column)
        choices.append(UnitChoice(worker, choice.trial, column, tuple(beside)))
    return choices


class _Selection:
    """The choices of one moment, made one after another."""

    def __init__(self, view: PolicyView, sizing: Sizing, sizes: Ints, eligible: Bools) -> None:
        board = view.board
        self._board = board
        self._now = view.now
        self._sizing = sizing
        self._sizes = sizes
        self._idle = eligible.copy()
        self._ready = np.where(eligible, view.now, np.maximum(board.ready_at, view.now))
        self._kept = np.full(eligible.size, np.inf)
        """Until when an idle worker may run something else before others need it."""
        self._loads = board.loads(view.now, eligible)
        self._wanted = (board.todo & board.active[:, None]).sum(axis=0) / np.maximum(board.holders, 1)
        hosts = sizing.hosts()
        numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
        self._hosts = np.array([numbers[host] for host in hosts] + [0] * (eligible.size - len(hosts)), dtype=np.int64)

    def choose(self) -> list[UnitChoice]:
        (rows,) = (self._board.free & self._board.may.any(axis=1)).nonzero()
        left = self._board.remaining(self._now)[rows]
        faster = [
            size * self._sizing.efficiency(int(row), size) for row, size in zip(rows, self._sizes[rows], strict=True)
        ]
        choices = []
        for row in rows[np.lexsort((rows, -left / np.array(faster)))]:
            if not np.count_nonzero(self._idle):
                break
            team = self._best_team(int(row))
            if team is not None and self._take(team):
                (worker, column), *beside = team.members
                choices.append(UnitChoice(worker, int(row), column, tuple(beside)))
        return choices

    def _take(self, team: _Team) -> bool:
        """Let the team begin if all of it is idle; else keep those that are for it. Return whether it begins."""
        workers = [worker for worker, _ in team.members]
        if team.begins > self._now or not self._idle[workers].all():
            self._kept[workers] = np.minimum(self._kept[workers], team.begins)
            return False
        self._idle[workers] = False
        self._ready[workers] = self._now + team.seconds
        return True

    def _best_team(self, row: int) -> _Team | None:
        """Return the team with which the trial gets on fastest, if it waits for every unit as long as for this one."""
        size = min(int(self._sizes[row]), int(np.count_nonzero(self._board.may[row])))
        if not self._sizing.on_one_host:
            return self._choose_team(row, size, list(self._teams(row, size)))
        hosts = np.unique(self._hosts[self._holders_for(row)])
        found = [self._choose_team(row, size, list(self._teams(row, size, int(host)))) for host in hosts]
        teams = [team for team in found if team is not None]
        return min(teams, key=lambda team: (-len(team.members), team.begins + team.seconds), default=None)

    def _choose_team(self, row: int, size: int, teams: list[_Team]) -> _Team | None:
        """Choose among teams of one worker, of two, and so on."""
        if not teams or self._sizing.exact:
            few = not teams or (len(teams[-1].members) < size and self._may_be_more(row))
            return None if few else teams[-1]
        return min(teams, key=lambda team: (team.begins - self._now + team.seconds) / len(team.members))

    def _may_be_more(self, row: int) -> bool:
        """Whether to wait until more workers can train the trial. Else as many as there are have to do."""
        if self._board.may is not self._board.todo:  # a script says how many there must be
            return True
        return self._sizing.are_loading or bool((self._kept[self._holders_for(row)] < np.inf).any())

    def _seconds_alone(self, row: int) -> float:
        return float(self._board.costs.cost[row]) * float(self._board.column_weight.mean())

    def _teams(self, row: int, size: int, host: int | None = None) -> Iterator[_Team]:
        """Yield the teams of one worker, of two, and so on up to `size`, of those that can begin first.

        Args:
            row: The trial.
            size: The most workers of a team.
            host: The only host whose workers may be in them; None for all.
        """
        board, alone = self._board, self._seconds_alone(row)
        workers = self._in_order(row, size, alone, host)
        matching = Matching({worker: self._columns_of(row, worker) for worker in workers})
        begins = self._now
        for worker in workers:
            if not matching.add(worker):
                continue
            begins = max(begins, self._now if self._idle[worker] else self._begin_of_busy(worker, alone))
            members = matching.pairs()
            longest = max(board.costs.seconds(row, member, column) for member, column in members)
            apart = len({int(self._hosts[member]) for member, _ in members}) > 1
            yield _Team(members, begins, longest / self._sizing.efficiency(row, len(members), apart))
            if len(members) == size:
                return

    def _begin_of_busy(self, worker: int, alone: float) -> float:
        """Return when a busy worker can begin something: it is not believed to be idle at once."""
        return max(float(self._ready[worker]), self._now + _LATE * alone)

    def _holders_for(self, row: int) -> Ints:
        """Return the workers that hold something on which the trial may train."""
        board = self._board
        return np.asarray((board.live & (board.holds & board.may[row]).any(axis=1)).nonzero()[0], dtype=np.int64)

    def _in_order(self, row: int, size: int, alone: float, host: int | None) -> list[int]:
        """Return the workers for the trial that come first: the idle ones, those of one host side by side."""
        workers = self._holders_for(row)
        if host is not None:
            workers = workers[self._hosts[workers] == host]
        idle = self._idle[workers]
        ends_in_time = self._now + alone <= self._kept[workers] + 1e-9
        # A single worker has nobody to wait for.
        workers = workers[~idle | ends_in_time] if size > 1 else workers[idle & ends_in_time]
        idle = self._idle[workers]
        begins = np.where(idle, self._now, np.maximum(self._ready[workers], self._now + _LATE * alone))
        loads, hosts = -self._loads[workers], self._hosts[workers]
        if size == 1:
            return [int(workers[np.lexsort((workers, loads, begins))[0]])] if workers.size else []
        there = np.bincount(hosts[idle], minlength=int(hosts.max(initial=0)) + 1)[hosts]
        # A host with room for all of them comes first, the fullest such one; then the one with most room.
        fits = np.where(there >= size, there, 2 * workers.size + 1 - there)
        order = np.lexsort((workers, loads, hosts, fits, begins))
        return [int(worker) for worker in workers[order[: _CONSIDERED * size]]]

    def _columns_of(self, row: int, worker: int) -> list[int]:
        """Return the columns on which the trial may train at a worker, those first that most others wait for."""
        (held,) = (self._board.may[row] & self._board.holds[worker]).nonzero()
        return [int(column) for column in held[np.lexsort((held, -self._wanted[held]))]]
