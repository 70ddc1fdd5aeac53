"""Says what a scheduler made of events. It is used by the engine, and to read logs that do not say so themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from cerebro_spark.errors import EventLogError
from cerebro_spark.eventlog import taken_from_log
from cerebro_spark.events import (
    Action,
    CommandReceived,
    Event,
    FinishRun,
    GroupGaveUp,
    LoadPartition,
    RetireWorker,
    RunStarted,
    RunUnit,
    TellSearch,
    TrialStopped,
    UnitFailed,
    UnitFinished,
    UnitWithdrawn,
    WorkAdded,
)
from cerebro_spark.run_view import RunView
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.turns import LoadOrder, Outcome, TrialState, Turn, UnitOrder
from cerebro_spark.types import Report, TrialId, WorkerId


class OutcomeRecorder:
    """Hands events to a scheduler, and says what it made of each. It must see all events of a run from the first on."""

    def __init__(self, scheduler: MopScheduler) -> None:
        self._scheduler = scheduler
        self._states: dict[TrialId, TrialState] = {}

    def handle(self, event: Event) -> tuple[list[Action], Outcome]:
        """Have an event handled.

        Args:
            event: The next event of the run.

        Returns:
            What the scheduler orders, and the outcome of the event.
        """
        counted = self._counts(event)
        actions = self._scheduler.handle(event)
        orders: list[UnitOrder] = []
        loads: list[LoadOrder] = []
        reports: list[Report] = []
        retired: list[WorkerId] = []
        finished = False
        for action in actions:  # one pass: this is done for every event of a run
            if isinstance(action, RunUnit):
                bundle = action.attempt if action.others else None
                orders += [UnitOrder(one.attempt, one.worker, one.unit, bundle, one.partners) for one in action.members]
            elif isinstance(action, TellSearch):
                reports.append(action.report)
            elif isinstance(action, LoadPartition):
                loads.append(LoadOrder(action.worker, action.partition))
            elif isinstance(action, RetireWorker):
                retired.append(action.worker)
            elif isinstance(action, FinishRun):
                finished = True
        changed = self._changed(event, reports)
        return actions, Outcome(counted, tuple(orders), tuple(loads), tuple(reports), changed, tuple(retired), finished)

    def _counts(self, event: Event) -> bool:
        if isinstance(event, (UnitFinished, UnitFailed, UnitWithdrawn, GroupGaveUp)):
            return self._scheduler.expects(event)
        return not isinstance(event, WorkAdded) or self._scheduler.takes(event)

    def _changed(self, event: Event, reports: Sequence[Report]) -> tuple[TrialState, ...]:
        """The new states of trials. An event changes the trial it is about, and those of which it is reported."""
        ended = isinstance(event, CommandReceived) and event.command.verb == "end"
        about = list(self._scheduler.state.trials) if ended else _trial_of(event)
        touched = dict.fromkeys([*about, *(report.trial for report in reports)])
        return tuple(state for trial in touched if (state := self._new_state(trial)) is not None)

    def _new_state(self, trial_id: TrialId) -> TrialState | None:
        trial = self._scheduler.state.trials.get(trial_id)
        if trial is None:
            return None
        best = trial.best.epoch if trial.best else None
        state = TrialState(trial_id, trial.status, trial.until, trial.works, best)
        if self._states.get(trial_id) == state:
            return None
        self._states[trial_id] = state
        return state


def with_outcomes(turns: Iterable[Turn]) -> list[Turn]:
    """The turns of a log, with outcomes where it does not have them all: then a scheduler hears all events again.

    Raises:
        EventLogError: The log lacks outcomes, and this scheduler would not have written it.
    """
    turns = list(turns)
    if all(turn.recorded for turn in turns):
        return turns
    start = _start(turns[0].events[0])
    with taken_from_log(start):
        scheduler = MopScheduler(start.settings)
    recorder = OutcomeRecorder(scheduler)

    def judge(event: Event) -> Outcome:
        with taken_from_log(event):
            scheduler.check_logged(event)
            return recorder.handle(event)[1]

    return [Turn(turn.events, [judge(event) for event in turn.events], turn.wall_clock) for turn in turns]


def view_of(turns: Iterable[Turn]) -> RunView:
    """What became of the run whose log has these turns.

    Args:
        turns: All turns of the log, with or without their outcomes.

    Returns:
        The view of the run.

    Raises:
        EventLogError: The log does not begin with the start of a run, or is damaged.

    >>> from cerebro_spark.events import Settings
    >>> from cerebro_spark.types import Partition, Work
    >>> start = RunStarted(0.0, "r1", Settings((Partition("p0", rows=10),), workers=1))
    >>> view_of([Turn([start, WorkAdded(0.0, Work("t0", {"lr": 0.1}, until_epoch=1))])]).status("t0")
    'running'
    """
    stream = (turn for turn in turns if turn.events)
    first = next(stream, None)
    _start(first.events[0] if first else None)
    assert first is not None
    # A log with outcomes is read turn by turn: keeping all of them costs more time than applying them.
    whole = chain([first], stream) if first.recorded else with_outcomes([first, *stream])
    view = RunView()
    for turn in whole:
        with taken_from_log(turn.events[0]):
            view.apply(turn)
    return view


def _start(event: Event | None) -> RunStarted:
    if not isinstance(event, RunStarted):
        raise EventLogError(f"the log begins with {event}, but must begin with the start of a run: it is damaged")
    return event


def _trial_of(event: Event) -> list[TrialId]:
    if isinstance(event, (UnitFinished, UnitFailed, GroupGaveUp)):
        return [event.unit.trial]
    if isinstance(event, WorkAdded):
        return [event.work.trial]
    if isinstance(event, CommandReceived):
        return [event.command.trial]
    return [event.trial] if isinstance(event, TrialStopped) else []
