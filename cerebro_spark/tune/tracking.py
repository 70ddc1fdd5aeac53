"""Telling others how a run goes: what a tracker hears, and from whom. A tracker that fails never stops training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.events import Event, RunStarted, TellSearch, WorkAdded
from cerebro_spark.result import Result
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.types import Objective, TrialId

_log = logging.getLogger("cerebro_spark")


class Tracker:
    """Hears of a run, from the driver's thread, and passes it on. All methods do nothing unless overridden.

    Whatever they raise is logged once, as a warning, and the tracker hears no more of the run.
    """

    def start(self, run_id: str, objective: Objective) -> None:
        """A run begins."""

    def epoch(self, trial: TrialId, params: Mapping[str, Any], epoch: int, metrics: Mapping[str, float]) -> None:
        """An epoch of a trial was trained and evaluated."""

    def failed(self, trial: TrialId, params: Mapping[str, Any], error: str) -> None:
        """A trial failed."""

    def finish(self, result: Result) -> None:
        """The run came to its end."""

    def close(self) -> None:
        """Let go of everything, also when the run did not come to its end."""


class Tracking:
    """An observer of a run that tells trackers of it.

    What counts, the scheduler decides: it feeds the events to a scheduler of its own, and hears what the search hears.
    """

    def __init__(self, trackers: Sequence[Tracker], objective: Objective) -> None:
        for tracker in trackers:
            if not isinstance(tracker, Tracker):
                raise ConfigurationError(
                    f"`trackers` has {tracker!r}, but must be trackers, such as cs.CSVTracker('run.csv')"
                )
        self._trackers = list(trackers)
        self._objective = objective
        self._shadow: MopScheduler | None = None
        self._params: dict[TrialId, Mapping[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell(lambda tracker: tracker.close())

    def __call__(self, event: Event) -> None:
        if not self._trackers:
            return
        if isinstance(event, RunStarted):
            self._shadow = MopScheduler(event.settings)
            self._tell(lambda tracker: tracker.start(event.run, self._objective))
        elif isinstance(event, WorkAdded):
            self._params[event.work.trial] = event.work.params
        assert self._shadow is not None
        for action in self._shadow.handle(event):
            if isinstance(action, TellSearch):
                self._report(action)

    def finish(self, result: Result) -> None:
        """The run came to its end."""
        self._tell(lambda tracker: tracker.finish(result))

    def _report(self, news: TellSearch) -> None:
        report = news.report
        params = self._params[report.trial]
        if report.error is not None:
            error = report.error
            self._tell(lambda tracker: tracker.failed(report.trial, params, error))
        else:
            self._tell(lambda tracker: tracker.epoch(report.trial, params, report.epoch, report.metrics))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                what(tracker)
            except Exception as error:
                _log.warning(
                    "%s failed and hears no more of this run: %s: %s",
                    type(tracker).__name__,
                    type(error).__name__,
                    error,
                )
                self._trackers.remove(tracker)
