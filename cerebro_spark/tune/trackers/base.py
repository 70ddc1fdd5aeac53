"""What a tracker is told of a run, and what tells it. A tracker that fails never stops training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import TracebackType
from typing import Any, Self

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.eventlog import taken_from_log
from cerebro_spark.events import RunStarted
from cerebro_spark.result import Result
from cerebro_spark.run_view import RunView
from cerebro_spark.timeline import Timeline
from cerebro_spark.tune.libraries import needed_by
from cerebro_spark.turns import Turn
from cerebro_spark.types import Objective, Report, TrialId

_log = logging.getLogger("cerebro_spark")
Params = Mapping[str, Any]


class Tracker:
    """Is told of a run, in the driver's thread. Methods do nothing unless overridden; only `resume` calls `start`.

    What they raise is logged once, as a warning, and the tracker is told no more of the run.

    >>> class Printing(Tracker):
    ...     def epoch(self, trial, params, epoch, metrics):
    ...         print(trial, epoch, metrics["val_loss"])
    >>> Printing().epoch("t0", {"lr": 0.1}, 1, {"val_loss": 0.5})
    t0 1 0.5
    """

    def start(self, run_id: str, objective: Objective) -> None:
        """A run begins.

        Args:
            run_id: The name of the run in its store.
            objective: The metric that matters, and whether more or less of it is better.
        """

    def resume(self, run_id: str, objective: Objective) -> None:
        """A run goes on that another driver began: only what is new is told. By default, the same as `start`.

        Args:
            run_id: The name of the run in its store.
            objective: The metric that matters, and whether more or less of it is better.
        """
        self.start(run_id, objective)

    def epoch(self, trial: TrialId, params: Mapping[str, Any], epoch: int, metrics: Mapping[str, float]) -> None:
        """An epoch of a trial was trained and evaluated.

        Args:
            trial: The trial.
            params: The params that the epoch was trained with.
            epoch: Its number, from 1 on.
            metrics: All metrics of the epoch by name; those of the validation rows begin with "val_".
        """

    def failed(self, trial: TrialId, params: Mapping[str, Any], error: str) -> None:
        """A trial failed.

        Args:
            trial: The trial.
            params: Its params.
            error: What was raised, with the traceback.
        """

    def finish(self, result: Result) -> None:
        """The run came to its end.

        Args:
            result: What the search returns.
        """

    def close(self) -> None:
        """Let go of everything, also when the run did not come to its end."""


class Tracking:
    """An observer of a run that tells trackers what the search is told.

    Args:
        trackers: The trackers to tell.
        objective: The objective of the search.

    Raises:
        ConfigurationError: One of them is no tracker.
    """

    def __init__(self, trackers: Sequence[Tracker], objective: Objective) -> None:
        for tracker in trackers:
            if not isinstance(tracker, Tracker):
                raise ConfigurationError(
                    f"`trackers` has {tracker!r}, but must be trackers, such as cs.CSVTracker('run.csv')"
                )
        self._trackers = list(trackers)
        self._objective = objective
        self._view = RunView(timeline=Timeline(keep_units=False))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tell(lambda tracker: tracker.close())

    def recall(self, earlier: Iterable[Turn]) -> None:
        """Go on with a run: trackers hear that it goes on, and nothing of what it has behind it.

        Args:
            earlier: All turns of its log, with their outcomes.
        """
        if not self._trackers:
            return
        for turn in earlier:
            with taken_from_log(turn.events[0]):
                self._view.apply(turn)
        self._tell(lambda tracker: tracker.resume(self._view.run, self._objective))

    def __call__(self, turn: Turn) -> None:
        if not self._trackers:
            return
        for step in turn.split():
            self._view.apply(step)
            for event in step.events:
                if isinstance(event, RunStarted):
                    self._start(event.run)
            for report in step.reports:
                self._report(report)

    def _start(self, run: str) -> None:
        self._tell(lambda tracker: tracker.start(run, self._objective))

    def finish(self, result: Result) -> None:
        """The run came to its end."""
        self._tell(lambda tracker: tracker.finish(result))

    def _report(self, report: Report) -> None:
        trial, error = report.trial, report.error
        if report.ended:
            return
        if error is not None:
            params = self._view.trials[trial].params
            self._tell(lambda tracker: tracker.failed(trial, params, error))
        else:
            row = self._view.epochs[trial, report.epoch]
            self._tell(lambda tracker: tracker.epoch(trial, row.params, row.epoch, row.metrics))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                what(tracker)
            except Exception as error:
                names = type(tracker).__name__, type(error).__name__
                _log.warning("%s failed and hears no more of this run: %s: %s", *names, error)
                self._trackers.remove(tracker)


def require(tracker: str, module: str) -> None:
    """Raise MissingDependency now, and not in the middle of a run, if a library is missing."""
    with needed_by(tracker, module.partition(".")[0], "trackers"):
        import_module(module)


def flat_params(params: Params, before: str = "") -> dict[str, bool | int | float | str]:
    """Params as one flat dict of numbers, booleans and strings.

    >>> flat_params({"lr": 0.1, "net": {"kind": "cnn", "layers": [64, 32]}, "clip": None})
    {'lr': 0.1, 'net.kind': 'cnn', 'net.layers': '[64, 32]', 'clip': 'None'}
    """
    simple: dict[str, bool | int | float | str] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            simple.update(flat_params(value, f"{before}{name}."))
        else:
            simple[before + name] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return simple
