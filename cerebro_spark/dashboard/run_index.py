"""All that a dashboard shows of one run, kept up to date turn by turn. It reads no store, and has no thread.

Its version is the number of events that it has taken in: whoever has seen a version asks for what came after it.
"""

from __future__ import annotations

import secrets
from collections import deque

from cerebro_spark.commands import Command
from cerebro_spark.dashboard.json_values import first_line
from cerebro_spark.dashboard.judging import TurnJudge
from cerebro_spark.dashboard.records import (
    AskedWork,
    CommandRow,
    Failure,
    Improvement,
    Note,
    UnitError,
    WorkerTally,
)
from cerebro_spark.dashboard.unit_table import UnitTable
from cerebro_spark.dashboard.words import Words, command_words, describe, describe_report
from cerebro_spark.eventlog import taken_from_log
from cerebro_spark.events import (
    CommandAnswered,
    CommandReceived,
    Event,
    PartitionLoaded,
    PartitionLost,
    UnitFailed,
    UnitFinished,
    WorkAdded,
    WorkCommanded,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.run_view import EpochRow, RunView
from cerebro_spark.timeline import Timeline
from cerebro_spark.turns import Outcome, Turn
from cerebro_spark.types import Report

_ERRORS_A_TRIAL = 5
_LONGEST_ERROR = 10_000


class RunIndex:
    """A run as the dashboard has it. For one thread at a time.

    Args:
        run: The id of the run.
        hears_all: Whether to let a scheduler judge every turn: see `TurnJudge`.

    Attributes:
        generation: Another one means another log, or another reader of it.
        view: The run.
        units: The finished units.
        points: The reported epochs in the order of their reports, and the version of each in `point_versions`.
        changes: By trial, the version of its last change; the latest one last.
        notes: Notable events, in words.
        failures: What went wrong at workers.
        errors: By trial, its newest failed units, and how many there were of them in `failed_units`.
        works: By trial, what was asked of it.
        commands: By id, the commands to the run.
        tallies: By worker, what it did.
        metrics: The names of all metrics.
        params: The names of all params.
        improvements: How the best value came about.
    """

    def __init__(self, run: str, hears_all: bool = False) -> None:
        self.run = run
        self.generation = secrets.token_hex(6)
        self.view = RunView(timeline=Timeline(keep_units=False))
        self.units = UnitTable()
        self.points: list[EpochRow] = []
        self.point_versions: list[int] = []
        self.changes: dict[str, int] = {}
        self.notes: list[Note] = []
        self.failures: list[Failure] = []
        self.errors: dict[str, deque[UnitError]] = {}
        self.failed_units: dict[str, int] = {}
        self.works: dict[str, list[AskedWork]] = {}
        self.commands: dict[str, CommandRow] = {}
        self.tallies: dict[str, WorkerTally] = {}
        self.metrics: set[str] = set()
        self.params: set[str] = set()
        self.improvements: list[Improvement] = []
        self._ended = False
        self.ended_at: float | None = None
        self._judge = TurnJudge(hears_all)
        self._orders: dict[int, int] = {}
        self._clock: float | None = None

    @property
    def version(self) -> int:
        """How many events it has taken in."""
        return self.view.events

    def apply(self, turn: Turn) -> None:
        """Take in the next turn of the run.

        Raises:
            OutcomesMissing: See `TurnJudge.judge`.
            EventLogError: The turn does not follow from those before.
        """
        judged = self._judge.judge(turn)
        with taken_from_log(turn.events[0]):
            number = self.version
            self.view.apply(judged)
            self._clock = turn.wall_clock
            for event, outcome in judged:
                self._take(number, event, outcome)
                number += 1
            self._end_trials()

    def note_sent(self, command: Command, clock: float) -> CommandRow:
        """Remember a command that was sent, until the log has it."""
        row = CommandRow(command, "sent", self.version, sent_clock=clock)
        return self.commands.setdefault(command.id, row)

    def _take(self, number: int, event: Event, outcome: Outcome) -> None:
        if isinstance(event, UnitFinished):
            if outcome.counted:
                self._finish_unit(event, number + 1)
        else:
            self._take_rare(number, event, outcome)
        for order in outcome.orders:
            if order.bundle is not None:
                self._orders[order.attempt] = order.bundle
        for state in outcome.trials:
            self._change(state.trial, number)
        for report in outcome.reports:
            self._report(number, event.at, report)
        if outcome.finished and self.ended_at is None:
            self.ended_at = event.at
            self._note(number, event.at, "RunFinished", Words("the run is over"))

    def _end_trials(self) -> None:
        """Once the search has ended, trials that were paused are finished."""
        if self.view.search_ended and not self._ended:
            self._ended = True
            for trial in self.view.trials:
                self._change(trial, self.version - 1)

    def _change(self, trial: str, number: int) -> None:
        self.changes.pop(trial, None)
        self.changes[trial] = number + 1

    def _finish_unit(self, event: UnitFinished, version: int) -> None:
        self.units.add(event, self._orders.pop(event.attempt, None), version)
        self._change(event.unit.trial, version - 1)
        for worker in event.workers:
            tally = self.tallies[worker]
            self.tallies[worker] = tally._replace(units=tally.units + 1, busy=tally.busy + event.seconds)

    def _report(self, number: int, at: float, report: Report) -> None:
        self._change(report.trial, number)
        words = describe_report(report)
        if words is not None:
            self._note(number, at, "TrialFailed" if words.level == "error" else "TrialEnded", words)
            if report.failed:
                self._compare_again()
            return
        self.points.append(self.view.epochs[report.trial, report.epoch])
        self.point_versions.append(number + 1)
        self.metrics.update(report.metrics)
        self._compare(self.points[-1], len(self.points))

    def _compare(self, point: EpochRow, epochs: int) -> None:
        objective = self.view.objective
        value = point.metrics.get(objective.metric) if objective else None
        if objective is None or value is None:
            return
        best = self.improvements[-1].value if self.improvements else float("nan")
        if objective.better(value, than=best):
            self.improvements.append(Improvement(point.at, epochs, value))

    def _compare_again(self) -> None:
        """A trial failed: what it had reached does not count, as in `RunView.best`."""
        self.improvements.clear()
        for epochs, point in enumerate(self.points, 1):
            if self.view.trials[point.trial].status != "failed":
                self._compare(point, epochs)

    # -- events of which there are few

    def _take_rare(self, number: int, event: Event, outcome: Outcome) -> None:
        words = describe(event, outcome.counted)
        match event:
            case WorkAdded():
                self._ask(number, event, outcome.counted)
            case UnitFailed():
                if outcome.counted:
                    self._fail_unit(event)
            case CommandReceived():
                self._receive(number, event)
            case CommandAnswered():
                words = self._answer(number, event)
            case _:
                self._tell_worker(event)
        if words is not None:
            self._note(number, event.at, type(event).__name__, words)

    def _note(self, number: int, at: float, kind: str, words: Words) -> None:
        self.notes.append(Note(number, at, self._clock, kind, words))

    def _ask(self, number: int, event: WorkAdded, counted: bool) -> None:
        work, command = event.work, event.command if isinstance(event, WorkCommanded) else ""
        asked = AskedWork(event.at, work.until_epoch, work.params, work.warm_start, counted, command)
        self.works.setdefault(work.trial, []).append(asked)
        self.params.update(work.params)
        if command in self.commands:
            self.commands[command] = self.commands[command]._replace(made=work.trial, version=number + 1)

    def _fail_unit(self, event: UnitFailed) -> None:
        unit = event.unit
        self.failed_units[unit.trial] = self.failed_units.get(unit.trial, 0) + 1
        self.failures.append(Failure(event.at, "unit", event.worker, unit.trial, first_line(event.error)))
        error = UnitError(event.at, event.worker, unit.epoch, unit.partition, event.blame, event.error[:_LONGEST_ERROR])
        self.errors.setdefault(unit.trial, deque(maxlen=_ERRORS_A_TRIAL)).append(error)

    def _receive(self, number: int, event: CommandReceived) -> None:
        sent = self.commands.get(event.command.id)
        clock = sent.sent_clock if sent else None
        row = CommandRow(event.command, "received", number + 1, clock, event.at, self._clock)
        self.commands[event.command.id] = row

    def _answer(self, number: int, event: CommandAnswered) -> Words:
        known = self.commands.get(event.command)
        asked = f"{command_words(known.command)}: " if known else ""
        if known is not None:
            self.commands[event.command] = known._replace(
                state="done" if event.done else "refused",
                version=number + 1,
                answered_at=event.at,
                reason=event.reason,
            )
        became = "done" if event.done else "refused"
        text = f"{asked}{became}{f' ({event.reason})' if event.reason else ''}"
        return Words(text, "info" if event.done else "warning", known.command.trial if known else "")

    def _tell_worker(self, event: Event) -> None:
        match event:
            case WorkerJoined():
                known = self.tallies.get(event.worker, WorkerTally(event.at))
                self.tallies[event.worker] = known._replace(threads=event.threads, loaded=event.holds)
            case WorkerLost():
                self._lose(event.worker, event.reason)
                self.failures.append(Failure(event.at, "worker", event.worker, "", first_line(event.reason)))
            case PartitionLoaded():
                tally = self.tallies[event.worker]
                loaded = tuple(dict.fromkeys([*tally.loaded, event.partition]))
                self.tallies[event.worker] = tally._replace(loaded=loaded)
            case PartitionLost():
                tally = self.tallies[event.worker]
                left = tuple(name for name in tally.loaded if name != event.partition)
                self.tallies[event.worker] = tally._replace(loaded=left)
                self.failures.append(Failure(event.at, "load", event.worker, "", first_line(event.reason)))

    def _lose(self, worker: str, reason: str) -> None:
        tally = self.tallies.get(worker)
        if tally is not None:
            self.tallies[worker] = tally._replace(deaths=tally.deaths + 1, last_loss=first_line(reason), loaded=())
