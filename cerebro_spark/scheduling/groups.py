"""How many workers train a trial together, and what that takes. PURE; which workers is chosen in `dispatch/grouped.py`.

A group trains one unit: it forms when the unit is given out, and dissolves when that ends. Nobody else waits for it.
Trials that go with others in a bundle, or that no group can train, are trained by one worker at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from cerebro_spark.actions import RunUnit
from cerebro_spark.scheduling.board import Ints
from cerebro_spark.scheduling.efficiencies import Efficiencies
from cerebro_spark.scheduling.group_sizes import Prospects, candidate_sizes, choose_sizes, share_idle
from cerebro_spark.scheduling.homes import choose_homes
from cerebro_spark.scheduling.matching import Matching
from cerebro_spark.scheduling.records import TrialRecord
from cerebro_spark.scheduling.state import State
from cerebro_spark.scheduling.teams import Teams, form_teams

# After so many units in a row that a trial's groups gave up, it is trained by single workers until its epoch ends.
_MOST_LOST = 2
# After so many groups that gave up, and none that trained a unit, workers are taken to be unable to reach each other.
_HOPELESS = 4
# Speeds are measured with some noise. Other teams must make an epoch shorter by this factor to be worth a change.
_NOTICEABLE = 0.9
# What was estimated may be off by about as much: such a group must be faster than a single worker by this factor.
_CLEAR_GAIN = 1.5
# Parts of a batch fit caches better than the whole, but not by more than that.
_BEST_EFFICIENCY = 1.5
# With so many trials sizes are found anew for every unit that begins; with as many times more, for every so many units.
_STEADY = 8


class GroupRules:
    """Sizes groups, and learns how well they do.

    Attributes:
        never: By kin that no group can train, the reason.
    """

    def __init__(self, state: State) -> None:
        settings = state.settings
        self._state = state
        self._on = settings.group > 1
        self._auto = settings.group_auto
        self._scripts = {script.trial: script for script in settings.script if script.groups}
        self._scripted = bool(self._scripts)
        self._efficiencies = Efficiencies(settings.efficiency)
        self._size = 1
        """The size that all trials had when it was last chosen; 0 if they had different ones."""
        self._sized: Ints | None = None
        self._layout = self._age = 0
        self._instant = -1.0
        self._last_trials = self._most_trials = 0
        """How many trials were active when sizes were last asked for; the most of this instant and just before it."""
        self._homes: Ints = np.zeros(0, dtype=np.int64)
        self._teams: dict[int, Teams] = {}
        self._current: dict[int, Teams] = {}
        self._seen = (-1, -1)
        self._works, self._given_up = False, 0
        """Whether a group has ever trained a unit, and how many gave theirs up."""
        self._doubted: set[str] = set()
        """The kin that one worker has to train before a group does again: what was estimated of it may be wrong."""
        self.never: dict[str, str] = {}

    @property
    def may_form(self) -> bool:
        """Whether any trial may ever be trained by several workers."""
        return self._scripted or (self._on and (self._works or self._given_up < _HOPELESS))

    @property
    def exact(self) -> bool:
        """Whether a unit has to wait until there are as many workers as its size says."""
        return self._scripted or not self._auto

    @property
    def on_one_host(self) -> bool:
        """Whether no group may have workers of several hosts. What a script says counts for more."""
        return self._state.settings.group_on_host and not self._scripted

    @property
    def must_wait(self) -> bool:
        """Whether groups are to begin once all workers have loaded what they begin with: nothing was given out yet."""
        if not self._on or self._state.attempts or not self.are_loading:
            return False
        return not self._auto or bool(self._state.settings.efficiency) or self._may_begin_with_groups()

    @property
    def are_loading(self) -> bool:
        """Whether some worker is about to hold more partitions than it does."""
        return any(worker.loading for worker in self._state.holdings.available())

    def sizes(self) -> Ints | None:
        """Return, by row of the board, how many workers a trial's next unit is to have; None if all have one."""
        if self._scripted:
            return self._sizes_of_scripts()
        if not self._on or self._state.settings.script:
            return None
        sizes = self._best_sizes() if self._auto else self._fixed_sizes()
        return sizes if sizes is not None and sizes.max(initial=1) > 1 else None

    def efficiency(self, row: int, size: int, across_hosts: bool = False) -> float:
        """Return the efficiency that a group of this size can be expected to have with the trial in this row."""
        return self._efficiencies.estimate(self._trial(row).kin, size, across_hosts)

    def are_apart(self, workers: Sequence[int]) -> bool:
        """Return whether these workers, by row, are on several hosts."""
        board, records = self._state.board, self._state.workers
        return len({records[board.worker_ids[row]].host for row in workers}) > 1

    def hosts(self) -> list[str]:
        """Return the host of each worker, by row."""
        return [self._state.workers[name].host for name in self._state.board.worker_ids]

    def ranked(self, trial: TrialRecord, members: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the members of a group by rank: the order of a script, if the trial follows one."""
        script = self._scripts.get(trial.id)
        if script is None:
            return list(members)
        done = (trial.epoch - 1) * self._state.board.columns + trial.step
        visits = [self._state.columns[partition] for partition in script.visits[done : done + len(members)]]
        return sorted(members, key=lambda member: visits.index(member[1]))

    def teams(self, size: int) -> Teams:
        """Return the teams of a size. They stay until workers or partitions change, or others are much better."""
        board = self._state.board
        if self._seen != (board.layout, board.costs.version):
            self._seen = board.layout, board.costs.version
            homes = choose_homes(board)
            if not np.array_equal(homes, self._homes):
                self._homes, self._teams = homes, {}
            self._current.clear()
        if size not in self._current:
            self._current[size] = self._teams[size] = self._renewed(size)
        return self._current[size]

    def _renewed(self, size: int) -> Teams:
        board, known = self._state.board, self._teams.get(size)
        workers = [int(row) for row in np.flatnonzero(board.holds.any(axis=1))]
        formed = form_teams(self._homes, self.hosts(), board.costs.slowness, workers, size, self.on_one_host)
        if known is None or formed.weights(board.costs).sum() < _NOTICEABLE * known.weights(board.costs).sum():
            return formed
        return known

    def spread_out(self) -> None:
        """Have partitions loaded that are at one worker, and that a script has several workers train on at a time."""
        state, board = self._state, self._state.board
        if not self._scripted or self.are_loading:
            return
        for row in board.free.nonzero()[0]:
            wanted = [int(column) for column in board.may[row].nonzero()[0]]
            there = {worker.row: worker for worker in state.holdings.available()}
            matching = Matching({worker: [c for c in wanted if board.holds[worker, c]] for worker in there})
            seated = dict(_all_of(matching, there))
            missing = [column for column in wanted if column not in seated.values()]
            free = sorted((w for w in there if w not in seated), key=lambda w: (len(there[w].holds), w))
            for column, worker in zip(missing, free, strict=False):
                partition = next(name for name, number in state.columns.items() if number == column)
                state.actions += state.holdings.add_holder(there[worker], partition)

    # -- learning

    def learn(self, order: RunUnit, seconds: float) -> None:
        """A group trained a unit in so many seconds."""
        state, costs = self._state, self._state.board.costs
        trial = state.trials[order.unit.trial]
        members = self._members(order)
        if costs.is_unknown(trial.row):  # what it takes one worker was never measured: all groups count as efficient
            worker, column = members[0]
            costs.observe([trial.row], worker, column, seconds)
            return
        alone = max(costs.seconds_alone(trial.row, worker, column) for worker, column in members)
        apart = self.are_apart([worker for worker, _ in members])
        efficiency = alone / max(seconds, 1e-9)
        if costs.is_estimated(trial.row) and not _is_credible(efficiency, len(members)):
            self._doubted.add(trial.kin)
        self._efficiencies.observe(trial.kin, len(members), efficiency, apart)

    def learn_alone(self, trial: TrialRecord, worker: int, column: int, seconds: float) -> None:
        """A single worker, in this row, trained a unit on this column in so many seconds."""
        costs = self._state.board.costs
        estimated = costs.together([trial.row]) if costs.is_estimated(trial.row) else None
        costs.observe([trial.row], worker, column, seconds)
        if estimated is not None:  # groups were compared with that
            self._efficiencies.correct(trial.kin, costs.together([trial.row]) / estimated)

    def note_success(self, trial: TrialRecord) -> None:
        """A unit that a group trained ended well."""
        trial.lost_groups = 0
        self._works = True

    def note_loss(self) -> None:
        """A group gave up a unit, not for what its trial is."""
        self._given_up += 1

    def forbid(self, trial: TrialRecord, reason: str) -> None:
        """No group can train trials of this kin."""
        self.never.setdefault(trial.kin, reason)

    def expected_seconds(self, row: int, members: Sequence[tuple[int, int]]) -> float:
        """Return what a unit of a trial is expected to take these workers, each with its column."""
        costs = self._state.board.costs
        alone = max(costs.seconds_alone(row, worker, column) for worker, column in members)
        return alone / self.efficiency(row, len(members), self.are_apart([worker for worker, _ in members]))

    # -- sizes

    def _sizes_of_scripts(self) -> Ints:
        board = self._state.board
        sizes = np.ones(board.active.size, dtype=np.int64)
        for row in np.flatnonzero(board.free):
            sizes[row] = max(1, np.count_nonzero(board.may[row]))
        return sizes

    def _fixed_sizes(self) -> Ints:
        sizes = np.ones(self._state.board.active.size, dtype=np.int64)
        rows = np.flatnonzero(self._state.board.active)
        able = [self._may_be_trained_by_several(self._trial(int(row))) for row in rows]
        sizes[rows[np.asarray(able, dtype=bool)]] = self._state.settings.group
        return sizes

    def _best_sizes(self) -> Ints | None:
        """Return sizes that are the best, or were so a few units ago: large boards are looked at now and then."""
        board = self._state.board
        self._count_trials(int(np.count_nonzero(board.active)))
        self._age += 1
        known = self._sized
        if known is None or self._layout != board.layout or self._age > np.count_nonzero(board.active) // _STEADY:
            self._sized, self._layout, self._age = self._find_sizes(), board.layout, 0
        return self._sized

    def _count_trials(self, active: int) -> None:
        """Count those of this instant: a search that is told of a trial's end mostly asks for another one at once."""
        if self._state.now > self._instant:
            self._instant, self._most_trials = self._state.now, self._last_trials
        self._most_trials = max(self._most_trials, active)
        self._last_trials = active

    def _find_sizes(self) -> Ints | None:
        state, board = self._state, self._state.board
        workers = len(state.holdings.available())
        (rows,) = board.active.nonzero()
        if workers < 2 or not rows.size or not self._may_gain(rows, workers):
            return None
        options = candidate_sizes(board.columns, min(state.settings.group, workers))
        before = options.index(self._size) if self._size in options else None
        prospects = self._prospects(rows, [self.teams(size) for size in options])
        if state.search_ended:
            chosen = choose_sizes(prospects, workers, before)
        else:  # there will be more than there is now, nobody knows what
            chosen = share_idle(prospects, workers, self._most_trials)
        sizes = np.ones(board.active.size, dtype=np.int64)
        sizes[rows] = np.asarray(options)[chosen]
        self._size = options[chosen[0]] if (chosen == chosen[0]).all() else 0
        return sizes

    def _may_gain(self, rows: Ints, workers: int) -> bool:
        """Whether groups may be of use: a quick look, as most runs have enough trials for all workers."""
        if not self._state.search_ended:
            return self._most_trials < workers
        if self._size != 1:
            return True
        # Some trial lasts longer than all workers need for everything.
        remaining = self._state.board.remaining(self._state.now)[rows]
        return float(remaining.max()) > 1.05 * float(remaining.sum()) / workers

    def _prospects(self, rows: Ints, options: Sequence[Teams]) -> Prospects:
        """Return what it takes until the trials in these rows are done, by teams of each size."""
        board = self._state.board
        running = np.where(board.free[rows], 0.0, np.maximum(board.until[rows] - self._state.now, 0.0))
        able = np.array([self._may_be_trained_by_several(self._trial(int(row))) for row in rows])
        kins = [self._trial(int(row)).kin for row in rows]
        left, mean = board.open[rows] + board.later[rows] * board.columns, float(board.column_weight.mean())
        ends, spent, waits, in_teams = [], [], [], []
        busiest = 0.0
        for teams in options:
            efficiency = {kin: self._efficiencies.estimate(kin, teams.size, teams.across_hosts) for kin in set(kins)}
            cost = board.costs.cost[rows] / np.array([efficiency[kin] for kin in kins])
            units = -(-board.open[rows] // teams.size) + board.later[rows] * -(-board.columns // teams.size)
            ends.append(running + cost * units * mean)
            spent.append(running + cost * left * mean)
            by_class = (board.todo[rows] @ teams.membership(board.columns) > 0) + board.later[rows][:, None]
            seconds = cost[:, None] * by_class * teams.weights(board.costs)
            loads = float(np.bincount(teams.team_of, seconds.sum(axis=0)).max(initial=0.0))
            in_teams.append(max(loads, float((running + seconds.sum(axis=1)).max(initial=0.0))))
            # Single workers, and a team that is alone, are in nobody's way.
            share = 1.0 - 1.0 / len(teams.workers) if teams.size > 1 and len(rows) > 1 else 0.0
            waits.append(share * cost * float(teams.weights(board.costs).max()))
            if teams.size == 1:
                busiest = loads
            elif not able.all():
                ends[-1][~able] = in_teams[-1] = np.inf
        sizes = np.array([teams.size for teams in options])
        return Prospects(
            sizes,
            np.array(ends).T,
            np.array(spent).T,
            np.array(waits).T,
            np.array(in_teams),
            busiest,
            float(running.max(initial=0.0)),
        )

    def _may_be_trained_by_several(self, trial: TrialRecord) -> bool:
        """Whether a group may train the trial now. What it takes one worker must be known, unless sizes are fixed.

        An estimate will do where many workers would idle meanwhile.
        """
        if trial.alone or trial.followers or trial.kin in self.never or trial.lost_groups >= _MOST_LOST:
            return False
        costs = self._state.board.costs
        if not self._auto or not costs.is_new(trial.row):
            return True
        return self._are_few and trial.kin not in self._doubted and not costs.is_unknown(trial.row)

    def _may_begin_with_groups(self) -> bool:
        """Whether it was estimated what each trial costs, and many workers would idle."""
        (rows,) = self._state.board.active.nonzero()
        return self._are_few and not any(self._state.board.costs.is_unknown(int(row)) for row in rows)

    @property
    def _are_few(self) -> bool:
        """Whether half of the workers would idle. With more trials there is time to measure them first."""
        active = np.count_nonzero(self._state.board.active)
        return 0 < 2 * active <= len(self._state.holdings.available())

    def _members(self, order: RunUnit) -> list[tuple[int, int]]:
        """Return the rows of the workers of an order, and their columns."""
        state = self._state
        pairs = zip(order.workers, order.unit.partitions, strict=True)
        return [(state.workers[worker].row, state.columns[partition]) for worker, partition in pairs]

    def _trial(self, row: int) -> TrialRecord:
        return self._state.trials[self._state.board.trial_ids[row]]


def _is_credible(efficiency: float, size: int) -> bool:
    """Whether a group that is compared with an estimate surely pays, and is not far too good to be true."""
    return efficiency * size >= _CLEAR_GAIN and efficiency <= _BEST_EFFICIENCY


def _all_of(matching: Matching, workers: Iterable[int]) -> list[tuple[int, int]]:
    for worker in workers:
        matching.add(worker)
    return matching.pairs()
