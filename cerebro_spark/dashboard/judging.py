"""Outcomes for the turns of logs that do not have them. Other turns pass through as they are."""

from __future__ import annotations

from cerebro_spark.errors import EventLogError
from cerebro_spark.eventlog import taken_from_log
from cerebro_spark.events import Event, RunStarted
from cerebro_spark.outcomes import OutcomeRecorder
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.turns import Outcome, Turn


class OutcomesMissing(EventLogError):
    """A log has outcomes at first and lacks them later: it must be read anew, by a judge that hears everything."""


class TurnJudge:
    """Completes turns, one after another, from the first of a run on.

    Args:
        hears_all: Whether to let a scheduler judge every turn, also those that have their outcomes. It does so by
            itself if the first turn has none.
    """

    def __init__(self, hears_all: bool = False) -> None:
        self._hears_all = hears_all
        self._begun = False
        self._recorder: OutcomeRecorder | None = None
        self._scheduler: MopScheduler | None = None

    def judge(self, turn: Turn) -> Turn:
        """The turn with its outcomes.

        Raises:
            OutcomesMissing: This turn lacks outcomes, and earlier ones did not: begin again with `hears_all`.
            EventLogError: The log does not begin with the start of a run, or this scheduler would not have written it.
        """
        if not self._begun:
            self._begin(turn)
        if self._scheduler is None:
            if turn.recorded:
                return turn
            raise OutcomesMissing("an older version went on with this log")
        return Turn(turn.events, [self._outcome(event) for event in turn.events], turn.wall_clock)

    def _begin(self, turn: Turn) -> None:
        start = turn.events[0]
        if not isinstance(start, RunStarted):
            raise EventLogError(f"the log begins with {start!r:.200}, but must begin with the start of a run")
        if self._hears_all or not turn.recorded:
            with taken_from_log(start):
                self._scheduler = MopScheduler(start.settings)
            self._recorder = OutcomeRecorder(self._scheduler)
        self._begun = True

    def _outcome(self, event: Event) -> Outcome:
        assert self._scheduler is not None
        assert self._recorder is not None
        with taken_from_log(event):
            self._scheduler.check_logged(event)
            return self._recorder.handle(event)[1]
