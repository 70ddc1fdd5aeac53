"""The one loop: search <-> scheduler <-> backend. It logs every turn before it acts on it, and decides nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from cerebro_spark.backend.base import Backend
from cerebro_spark.codec import encode
from cerebro_spark.errors import BackendError, EventLogError, PreflightFailed, RunStalled
from cerebro_spark.eventlog import EventLog, taken_from_log
from cerebro_spark.events import (
    Action,
    Event,
    FailRun,
    FinishRun,
    GatheringBegan,
    RunStarted,
    SearchEnded,
    Settings,
    TellSearch,
    WorkAdded,
    WorkerLost,
)
from cerebro_spark.outcomes import OutcomeRecorder
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.search import Done, Search, Wait
from cerebro_spark.turns import Outcome, Turn
from cerebro_spark.types import Report, Work

Observer = Callable[[Turn], None]
CostOf = Callable[[Mapping[str, Any]], float]
_MOST_REHEARSALS = 3


class Engine:
    """Runs one search to its end on one backend.

    Args:
        search: What is asked for work, and told of reports.
        settings: What the scheduler is made from.
        backend: Where units run. It is started by `run` and `resume`, and closed when they return.
        log: Where turns are kept before they are acted on.
        run: The id of the run.
        observers: Called with every turn after it was logged, in the driver's thread: progress bars, trackers, charts.
        cost_of: The expected cost of a configuration, where it is known beforehand.
        recipe: The digest of what the run is made from, which its log keeps.
        clock: The wall clock of turns, in seconds since 1970. Nothing is decided by it.
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
        recipe: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._search = search
        self._backend = backend
        self._log = log
        self._run = run
        self._observers = tuple(observers)
        self._cost_of = cost_of
        self._recipe = recipe
        self._clock = clock
        self._settings = settings
        self._asking = True
        self._over = False
        self.scheduler = MopScheduler(settings)
        self._recorder = OutcomeRecorder(self.scheduler)

    def run(self) -> None:
        """Start the run and stay until all that the search asked for is done.

        Raises BackendError when the run cannot go on; its log then allows to resume it.
        """
        self._go([RunStarted(0.0, self._run, self._settings, self._recipe), *self._ask(0.0)])

    def resume(self) -> None:
        """Go on with a run whose driver died: repeat what the log says, then treat its workers as lost."""
        events = list(self._log.read())
        unlogged = self._repeat(events)
        if self.scheduler.finished:
            return
        at = events[-1].at
        alive = [worker.id for worker in self.scheduler.state.workers.values() if worker.live]
        lost = [WorkerLost(at, worker, "the driver died", blames_unit=False) for worker in alive]
        # Nothing moves before those are there who will come now: else the first of them was told to load everything.
        gathering = GatheringBegan(at, self._backend.num_workers)
        self._go([*unlogged, gathering, *lost], at)

    def _go(self, opening: list[Event], at: float = 0.0) -> None:
        try:
            self._backend.start(self._settings.partitions, at)
            self._rehearse([event.work for event in opening if isinstance(event, WorkAdded)])
            self._turn(opening)
            while not self._over:
                self._check_that_something_can_come()
                self._turn(self._backend.events())
        finally:
            self._backend.close()

    def _check_that_something_can_come(self) -> None:
        if self._asking and self.scheduler.at_rest:
            raise RunStalled(
                f"the search ({type(self._search).__name__}) waits, but nothing is under way that it could hear of: it"
                " must answer Work or Done then"
            )

    def _rehearse(self, works: list[Work]) -> None:
        """Try one batch of a trial before anything is logged.

        One bad trial is no reason to stop; three are, or as many as there will ever be.
        """
        failures = []
        for work in works[:_MOST_REHEARSALS]:
            error = self._backend.rehearse(work.params)
            if error is None:
                return
            failures.append(f"with params {dict(work.params)}: {error}")
        if len(failures) == _MOST_REHEARSALS or (failures and not self._asking):
            raise PreflightFailed(
                f"one batch of {len(failures)} trials was tried before the run, and each failed; the first"
                f" {failures[0]}"
            )

    def _turn(self, facts: Iterable[Event]) -> None:
        """Take in facts and what the search makes of them; log them all; only then act."""
        turn, actions = self._decide(facts)
        self._log.append(turn)
        for observer in self._observers:
            observer(turn)
        for action in actions:
            self._act(action)

    def _decide(self, facts: Iterable[Event]) -> tuple[Turn, list[Action]]:
        pending = deque(facts)
        events: list[Event] = []
        outcomes: list[Outcome] = []
        actions: list[Action] = []
        while pending:
            event = pending.popleft()
            ordered, outcome = self._recorder.handle(event)
            events.append(event)
            outcomes.append(outcome)
            actions += [action for action in ordered if not isinstance(action, TellSearch)]
            # Before any further fact: what the search answers must still be true when the scheduler hears it.
            pending.extendleft(reversed(self._answers(outcome.reports)))
        return Turn(events, outcomes, self._clock()), actions

    def _answers(self, reports: Sequence[Report]) -> list[Event]:
        """Tell the search all news of one event, then ask what it makes of them."""
        for report in reports:
            self._search.tell(report)
        return self._ask(reports[-1].at) if reports else []

    def _ask(self, at: float) -> list[Event]:
        """Ask until the search has nothing more to say for now."""
        asked: list[Event] = []
        while self._asking:
            answer = self._search.ask()
            if isinstance(answer, Work):
                cost = self._cost_of(answer.params) if self._cost_of else None
                asked.append(WorkAdded(at, answer, cost))
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
        else:
            self._backend.submit(action)

    def _repeat(self, events: list[Event]) -> list[Event]:
        """Feed logged facts to search and scheduler, and check that the search says again what it said before.

        Returns what the search said and the log, cut off by the driver's death, does not hold.
        """
        if not events or not isinstance(events[0], RunStarted):
            raise EventLogError("the log does not begin with the start of a run: there is nothing to resume")
        answers = deque(self._ask(events[0].at))
        for event in events:
            if isinstance(event, (WorkAdded, SearchEnded)):
                said = answers.popleft() if answers else None
                if said is None or encode(said) != encode(event):
                    raise EventLogError(
                        f"the search now says {said}, but the log has {event}:"
                        " resume with the search, space and seed of that run"
                    )
            with taken_from_log(event):
                self.scheduler.check_logged(event)
                _, outcome = self._recorder.handle(event)
            # In the order in which `_decide` takes them.
            answers.extendleft(reversed(self._answers(outcome.reports)))
        return list(answers)
