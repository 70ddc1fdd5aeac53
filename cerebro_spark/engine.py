"""The one loop: search <-> scheduler <-> backend. It logs every turn before it acts on it, and decides nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cerebro_spark.backend.base import Backend
from cerebro_spark.codec import encode
from cerebro_spark.commands import Command
from cerebro_spark.errors import BackendError, EventLogError, PreflightFailed, RunKilled, RunStalled
from cerebro_spark.eventlog import EventLog, taken_from_log
from cerebro_spark.events import (
    Action,
    AnswerCommand,
    CarryOut,
    CommandAnswered,
    CommandReceived,
    CostEstimated,
    Event,
    FailRun,
    FinishRun,
    GatheringBegan,
    RunStarted,
    SearchEnded,
    Settings,
    TellSearch,
    WorkAdded,
    WorkCommanded,
    WorkerLost,
)
from cerebro_spark.inbox import Inbox
from cerebro_spark.outcomes import OutcomeRecorder
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.search import Done, Search, Wait
from cerebro_spark.turns import Outcome, Turn
from cerebro_spark.types import Report, Work

Observer = Callable[[Turn], None]
CostOf = Callable[[Mapping[str, Any]], float]
Expected = Callable[[Mapping[str, Any]], float | None]
"""Returns the seconds that a training unit of a configuration was measured to take, before the run; None if unknown."""
_MOST_REHEARSALS = 3
_ENDS_THE_RUN = ("kill", "end")
_DRIVER_DIED = "the driver ended before it was done: say it again"


class Engine:
    """Runs one search to its end on one backend.

    Args:
        search: What is asked for work, and told of reports.
        settings: What the scheduler is made from.
        backend: Where units run. It is started by `run` and `resume`, and closed when they return. It has one run at a
            time: that of another engine is left alone.
        log: Where turns are kept before they are acted on.
        run: The id of the run.
        observers: Called with every turn after it was logged, in the driver's thread: progress bars, trackers, charts.
        cost_of: The cost of a configuration, where it is known beforehand and does not have to be measured.
        expected: What trial runs have measured of a configuration, which the run's own units correct.
        recipe: The digest of what the run is made from, which its log keeps.
        clock: The wall clock of turns, in seconds since 1970. Nothing is decided by it.
        inbox: Where commands come in. Defaults to None: `post` is the only way.
    """

    def __init__(
        self,
        search: Search,
        settings: Settings,
        backend: Backend,
        log: EventLog,
        run: str = "run",
        observers: Sequence[Observer] = (),
        cost_of: CostOf | None = None,
        expected: Expected = lambda params: None,
        recipe: str = "",
        clock: Callable[[], float] = time.time,
        inbox: Inbox | None = None,
    ) -> None:
        self._search = search
        self._backend = backend
        self._log = log
        self._run = run
        self._observers = tuple(observers)
        self._cost_of = cost_of
        self._expected = expected
        self._recipe = recipe
        self._clock = clock
        self._settings = settings
        self._asking = True
        self._over = False
        self._inbox = inbox or Inbox()
        self._called_off = self._rehearsing = False
        self._heard: set[str] = set()
        self._unanswered: dict[str, Command] = {}
        """Commands that were logged and not answered yet: the backend was to carry them out."""
        self._replies: list[Event] = []
        """What the backend answered in this turn."""
        self._killed: RunKilled | None = None
        self.scheduler = MopScheduler(settings)
        self._recorder = OutcomeRecorder(self.scheduler)

    def post(self, command: Command) -> None:
        """Tell the run to do something. Any thread may call it, at any time; it never blocks.

        The command is logged, and then carried out, between two turns. What became of it comes to observers, as a
        CommandAnswered. One whose id was heard before is ignored, and so are all that come after the end of the run.
        One that ends the run does not wait until workers have come and have tried a batch.

        Args:
            command: The command.

        Raises:
            ConfigurationError: If the command holds something that no log can keep.
        """
        self._inbox.post(command)
        if command.verb in _ENDS_THE_RUN:
            self._called_off = True
            if self._rehearsing:
                self._backend.skip_rehearsal()

    def run(self) -> None:
        """Start the run and stay until all that the search asked for is done.

        Raises BackendError when the run cannot go on, RunKilled when a person does not want it to; its log then allows
        to resume it.
        """
        self._go([RunStarted(0.0, self._run, self._settings, self._recipe), *self._ask(0.0)])

    def resume(self) -> None:
        """Go on with a run whose driver died: repeat what the log says, then treat its workers as lost."""
        events = list(self._log.read())
        unlogged = self._repeat(events)
        at = events[-1].at
        unlogged += self._last_answers(at, unlogged)
        if self.scheduler.finished:
            if unlogged:
                self._turn(unlogged)
            return
        alive = [worker.id for worker in self.scheduler.state.workers.values() if worker.live]
        lost = [WorkerLost(at, worker, "the driver died", blames_unit=False) for worker in alive]
        # Nothing moves before those are there who will come now: else the first of them was told to load everything.
        gathering = GatheringBegan(at, self._backend.num_workers)
        self._go([*unlogged, gathering, *lost], at)

    def _last_answers(self, at: float, unlogged: Sequence[Event]) -> list[Event]:
        """Return answers to what the backend of a driver that died was to do."""
        answered = {event.command for event in unlogged if isinstance(event, CommandAnswered)}
        open_ones = [command for name, command in self._unanswered.items() if name not in answered]
        return [_refused(at, command, _DRIVER_DIED) for command in open_ones]

    def _go(self, opening: list[Event], at: float = 0.0) -> None:
        # Not in the block below: a backend that has the run of another engine is not to be closed here.
        self._backend.start(self._settings.partitions, at)
        try:
            self._rehearsing = True
            asked = [event.work for event in opening if type(event) is WorkAdded]
            self._rehearse(asked)
            estimates = self._estimate(asked, at)
            self._rehearsing = False
            self._inbox.connect(self._backend.wake)
            self._turn([*opening, *estimates])
            while not self._over:
                self._check_that_something_can_come()
                self._turn(self._news())
        finally:
            self._rehearsing = False
            self._inbox.connect(None)
            self._backend.close()

    def _news(self) -> list[Event]:
        """Wait for facts of the backend, or for commands; what comes first ends the wait."""
        commands = self._inbox.take()
        facts = [] if commands else self._backend.events()
        commands += self._inbox.take()
        return [*facts, *(CommandReceived(self._backend.now(), command) for command in commands)]

    def _check_that_something_can_come(self) -> None:
        if self._asking and self.scheduler.at_rest:
            raise RunStalled(
                f"the search ({type(self._search).__name__}) waits, but nothing is under way that it could hear of: it"
                " must answer Work or Done then"
            )

    def _rehearse(self, works: list[Work]) -> None:
        """Try one batch of a trial before anything is logged.

        One bad trial is no reason to stop; three are, or as many as there will ever be. A run that is to end at once
        tries nothing.
        """
        failures = []
        for work in works[:_MOST_REHEARSALS]:
            error = None if self._called_off else self._backend.rehearse(work.params)
            if error is None or self._called_off:
                return
            failures.append(f"with params {dict(work.params)}: {error}")
        if len(failures) == _MOST_REHEARSALS or (failures and not self._asking):
            raise PreflightFailed(
                f"one batch of {len(failures)} trials was tried before the run, and each failed; the first"
                f" {failures[0]}"
            )

    def _estimate(self, works: list[Work], at: float) -> list[Event]:
        """Return what trial runs say of each kin of trials, before its first unit.

        Those of a plan were made already. Where they matter, before trials get groups of workers, others are made now.
        """
        settings = self._settings
        if settings.script or self._called_off:
            return []
        first: dict[str, Work] = {}
        for work in works:
            first.setdefault(kin_of(work.params), work)
        seconds = {kin: self._expected(work.params) for kin, work in first.items()}
        unknown = [kin for kin, known in seconds.items() if known is None]
        if settings.group_auto and not settings.efficiency and unknown:
            tried = self._backend.estimate([first[kin].params for kin in unknown])
            seconds |= dict(zip(unknown, tried, strict=True))
        return [CostEstimated(at, first[kin].trial, known) for kin, known in seconds.items() if known is not None]

    def _turn(self, facts: Iterable[Event]) -> None:
        """Take in facts and what the search makes of them; log them all; only then act."""
        turn, actions = self._decide(facts)
        if not turn.events:
            return
        self._log.append(turn)
        for observer in self._observers:
            observer(turn)
        for action in actions:
            self._act(action)
        replies, self._replies = self._replies, []
        self._turn(replies)
        # Last, so that everybody else has an answer. What is over cannot be killed.
        if self._killed is not None and not self._over:
            raise self._killed

    def _decide(self, facts: Iterable[Event]) -> tuple[Turn, list[Action]]:
        pending = deque(facts)
        events: list[Event] = []
        outcomes: list[Outcome] = []
        actions: list[Action] = []
        while pending:
            event = pending.popleft()
            if isinstance(event, CommandReceived) and event.command.id in self._heard:
                continue
            ordered, outcome = self._recorder.handle(event)
            events.append(event)
            outcomes.append(outcome)
            actions += [action for action in ordered if not isinstance(action, (TellSearch, AnswerCommand))]
            # Before any further fact: what the search answers must still be true when the scheduler hears it.
            pending.extendleft(reversed(self._follow_ups(event, ordered)))
        return Turn(events, outcomes, self._clock()), actions

    def _follow_ups(self, event: Event, ordered: Sequence[Action]) -> list[Event]:
        """Return what comes of an event before all else: the answer to a command, and what the search wants then."""
        if isinstance(event, CommandReceived):
            self._heard.add(event.command.id)
            self._unanswered[event.command.id] = event.command
        elif isinstance(event, CommandAnswered):
            self._unanswered.pop(event.command, None)
        made: list[Event] = []
        for answer in ordered:
            if isinstance(answer, AnswerCommand):
                made += self._answered(event.at, answer)
        return [*made, *self._answers([one.report for one in ordered if isinstance(one, TellSearch) and one.heard])]

    def _answered(self, at: float, answer: AnswerCommand) -> list[Event]:
        work = [] if answer.work is None else [WorkCommanded(at, answer.work, self._cost(answer.work), answer.command)]
        return [*work, CommandAnswered(at, answer.command, answer.done, answer.reason)]

    def _answers(self, reports: Sequence[Report]) -> list[Event]:
        """Tell the search all news of one event, then ask what it makes of them."""
        # A search knows no pauses: its time stands still meanwhile.
        paused = self.scheduler.state.seconds_paused
        for report in reports:
            self._search.tell(replace(report, at=report.at - paused) if paused else report)
        return self._ask(reports[-1].at) if reports else []

    def _cost(self, work: Work) -> float | None:
        return self._cost_of(work.params) if self._cost_of else None

    def _ask(self, at: float) -> list[Event]:
        """Ask until the search has nothing more to say for now; not at all once a person has ended the run."""
        asked: list[Event] = []
        while self._asking and not self.scheduler.state.ending:
            answer = self._search.ask()
            if isinstance(answer, Work):
                asked.append(WorkAdded(at, answer, self._cost(answer)))
                continue
            if isinstance(answer, Done):
                self._asking = False
                asked.append(SearchEnded(at))
            assert isinstance(answer, (Done, Wait))
            break
        return asked

    def _act(self, action: Action) -> None:
        if isinstance(action, FinishRun):
            self._over = True
        elif isinstance(action, FailRun):
            raise BackendError(f"run {self._run} cannot go on: {action.reason}. Once that is mended, resume it")
        elif isinstance(action, CarryOut):
            self._carry_out(action.command)
        else:
            self._backend.submit(action)

    def _carry_out(self, command: Command) -> None:
        """Do what only the driver and its backend can do; what became of it is the next turn."""
        if command.verb == "kill":
            by = f" by {command.by}" if command.by else ""
            self._killed = RunKilled(f"run {self._run} was killed{by}: resume it to go on")
            return
        try:
            if command.verb == "add_workers":
                said = f"{', '.join(self._backend.add_workers(command.workers))} will join"
            else:
                self._backend.remove_worker(command.worker)
                said = f"{command.worker} leaves once its running unit has ended"
            answer = CommandAnswered(self._backend.now(), command.id, True, said)
        except BackendError as error:
            answer = _refused(self._backend.now(), command, str(error))
        self._replies.append(answer)

    def _repeat(self, events: list[Event]) -> list[Event]:
        """Feed logged facts to search and scheduler, and check that both say again what they said before.

        What people said is in the log. Only a backend could say again what it answered them.

        Returns what was said and the log, cut off by the driver's death, does not hold.
        """
        if not events or not isinstance(events[0], RunStarted):
            raise EventLogError("the log does not begin with the start of a run: there is nothing to resume")
        answers = deque(self._ask(events[0].at))
        for event in events:
            if isinstance(event, (WorkAdded, SearchEnded)) or (answers and isinstance(event, CommandAnswered)):
                said = answers.popleft() if answers else None
                if said is None or encode(said) != encode(event):
                    raise EventLogError(
                        f"the search now says {said}, but the log has {event}:"
                        " resume with the search, space and seed of that run"
                    )
            with taken_from_log(event):
                self.scheduler.check_logged(event)
                ordered, _ = self._recorder.handle(event)
            # In the order in which `_decide` takes them.
            answers.extendleft(reversed(self._follow_ups(event, ordered)))
        return list(answers)


def _refused(at: float, command: Command, reason: str) -> CommandAnswered:
    return CommandAnswered(at, command.id, False, reason)
