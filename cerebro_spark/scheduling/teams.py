"""Workers in teams that stay the same from unit to unit, so that a policy can deal with a team as with a worker. PURE.

Where all trials are trained by groups of one size, groups that are made anew for every unit would soon be in each
other's way: the partitions that one trial lacks are at workers of several others. Teams are not: their partitions are a
class, which a trial trains on at a time, and the board of teams and classes is one as any policy knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from cerebro_spark.scheduling.board import NEVER, Board, Floats, Ints
from cerebro_spark.scheduling.costs import CostModel

Member = tuple[int, int]
"""A worker and a column, by row and number on the board."""


@dataclass(frozen=True, slots=True)
class Teams:
    """The teams of a size, and the classes of columns that each trains on at a time.

    Attributes:
        size: The most workers of a team.
        workers: The workers of each team.
        classes: The members that train on each class: workers of one team, each with a column of its own.
        team_of: By class, the team that trains on it.
        across_hosts: Whether some team has workers on several hosts.
    """

    size: int
    workers: list[list[int]]
    classes: list[list[Member]]
    team_of: list[int]
    across_hosts: bool = False

    def membership(self, columns: int) -> Ints:
        """Return, by column and class, 1 where the column is of the class, else 0."""
        members = np.zeros((columns, len(self.classes)), dtype=np.int64)
        for number, pairs in enumerate(self.classes):
            members[[column for _, column in pairs], number] = 1
        return members

    def weights(self, costs: CostModel) -> Floats:
        """Return, by class, the size of its largest column, each weighed by the slowness of its worker."""
        slow, sizes = costs.slowness, costs.sizes
        return np.array(
            [max(float(slow[worker] * sizes[column]) for worker, column in pairs) for pairs in self.classes]
        )


def form_teams(
    homes: Ints,
    hosts: Sequence[str],
    slowness: Floats,
    workers: Sequence[int],
    size: int,
    on_one_host: bool = False,
) -> Teams:
    """Put workers into teams of about one size: those of one host together as far as that goes, then the equally fast.

    Args:
        homes: By column, the worker that trains on it; -1 for none.
        hosts: By worker, its host.
        slowness: By worker, how slow it is: a team is as slow as its slowest.
        workers: The workers that are there.
        size: The most workers of a team.
        on_one_host: Whether no team has workers of several hosts. Defaults to False: those that are left over may.

    Returns:
        The teams. Where workers have several columns a team has several classes.

    >>> teams = form_teams(np.array([0, 1, 2, 0]), ["a", "a", "b"], np.ones(3), [0, 1, 2], size=2)
    >>> teams.workers, teams.classes
    ([[0, 1], [2]], [[(0, 0), (1, 1)], [(0, 3)], [(2, 2)]])
    """
    held: dict[int, list[int]] = {worker: [] for worker in workers}
    for column, worker in enumerate(homes.tolist()):
        if worker in held:
            held[worker].append(column)
    able = [worker for worker in workers if held[worker]]
    # Those with as many columns are equal partners too: a team takes as many units as its worker with most.
    alike = {worker: (-len(held[worker]), float(slowness[worker]), worker) for worker in able}
    together, others = _within_hosts(able, hosts, alike, size)
    left = sorted(others, key=alike.__getitem__)
    places = sorted({hosts[worker] for worker in left}) if on_one_host else [None]
    for place in places:
        together += _split([worker for worker in left if place in (None, hosts[worker])], size)
    teams = together
    classes: list[list[Member]] = []
    team_of: list[int] = []
    for number, team in enumerate(teams):
        for layer in range(max(len(held[worker]) for worker in team)):
            classes.append([(worker, held[worker][layer]) for worker in team if layer < len(held[worker])])
            team_of.append(number)
    apart = any(len({hosts[worker] for worker in team}) > 1 for team in teams)
    return Teams(size, teams, classes, team_of, apart)


def _within_hosts(
    workers: Sequence[int], hosts: Sequence[str], alike: dict[int, tuple[int, float, int]], size: int
) -> tuple[list[list[int]], list[int]]:
    """Return full teams whose workers are on one host each, and the workers that are left."""
    teams: list[list[int]] = []
    others: list[int] = []
    by_host = sorted(workers, key=lambda worker: (hosts[worker], alike[worker]))
    for _, there in groupby(by_host, key=lambda worker: hosts[worker]):
        mates = list(there)
        full = len(mates) // size
        teams += [mates[place * size : (place + 1) * size] for place in range(full)]
        others += mates[full * size :]
    return teams, others


def _split(workers: Sequence[int], size: int) -> list[list[int]]:
    """Return workers in as few teams as there can be, none larger than the others by more than one.

    >>> _split([0, 1, 2, 3, 4, 5, 6], 3)
    [[0, 1], [2, 3], [4, 5, 6]]
    """
    count = -(-len(workers) // size)
    bounds = [len(workers) * place // count for place in range(count + 1)] if count else []
    return [list(workers[low:high]) for low, high in pairwise(bounds)]


class TeamBoard(Board):
    """The board as it is if every team is a worker and every class a column.

    A trial has to train on a class as long as it lacks one of its columns.

    Args:
        board: The board of workers and columns.
        teams: The teams.
        efficiency: Returns the efficiency of such teams with the trial in a row.
        now: The time.
    """

    def __init__(self, board: Board, teams: Teams, efficiency: Callable[[int], float], now: float) -> None:
        self._source = board
        self._teams = teams
        super().__init__(len(teams.classes), _TeamCosts(board, teams, efficiency))
        # A plan that was made for other teams is void.
        self.layout = hash((board.layout, tuple(map(tuple, teams.classes))))
        self.trial_ids = board.trial_ids
        self.worker_ids = [str(number) for number in range(len(teams.workers))]
        self._todo = (board.todo @ teams.membership(board.columns)) > 0
        self._open = np.count_nonzero(self._todo, axis=1)
        self._active, self._free, self._later = board.active.copy(), board.free.copy(), board.later.copy()
        self._skip, self._turn, self._slot = np.where(board.later, 1, NEVER), board.turn.copy(), board.slot.copy()
        self._until = board.until.copy()
        self._seat_teams(now)
        self._show_trials()
        self._show_workers()

    def _seat_teams(self, now: float) -> None:
        """Say of each team what it holds, whether it is idle, and when it will be."""
        source, workers = self._source, self._teams.workers
        self._holds = np.zeros((len(workers), self.columns), dtype=np.bool_)
        self._holds[self._teams.team_of, np.arange(self.columns)] = True
        self._holders = np.ones(self.columns, dtype=np.int64)
        self._live = np.ones(len(workers), dtype=np.bool_)
        self._idle = np.array([source.idle[team].all() for team in workers], dtype=np.bool_)
        self._ready_at = np.array([max(now, source.ready_at[team].max()) for team in workers])

    def members(self, trial: int, number: int) -> list[Member]:
        """Return the workers that train a trial on a class, each with its column: those whose column it lacks."""
        return [member for member in self._teams.classes[number] if self._source.todo[trial, member[1]]]


class _TeamCosts(CostModel):
    """What units cost teams: those of a trial last as long as on the slowest of its workers, over the efficiency."""

    def __init__(self, board: Board, teams: Teams, efficiency: Callable[[int], float]) -> None:
        # How slow its workers are is in the size of a class: so all teams are equally fast.
        super().__init__(teams.weights(board.costs).tolist())
        self.slowness = np.ones(len(teams.workers))
        self.cost = board.costs.cost[: board.active.size].copy()
        for row in np.flatnonzero(board.active):
            self.cost[row] /= efficiency(int(row))
