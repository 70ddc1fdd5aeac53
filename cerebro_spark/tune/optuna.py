"""Optuna as the leader of a run: a Study is asked for trials and told what became of them. It keeps nothing itself.

Storage, samplers, pruners and the dashboard are the study's own and work as ever; only the training is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from time import monotonic
from typing import Any, Unpack

from cerebro_spark.errors import ConfigurationError, MissingDependency
from cerebro_spark.result import Result
from cerebro_spark.store.base import Store
from cerebro_spark.tune.algorithms.base import at_least
from cerebro_spark.tune.estimator import ModelFn, Options
from cerebro_spark.tune.objective import objective_for
from cerebro_spark.tune.plugins.led import Absent, Course, LedSearch, LedTraining, check_led_names
from cerebro_spark.types import Report, TrialId

try:
    import optuna
    from optuna.study import StudyDirection
    from optuna.trial import TrialState
except ImportError as error:
    raise MissingDependency(
        f"cerebro_spark.tune.optuna needs optuna, which cannot be imported ({error}): pip install"
        " 'cerebro-spark[optuna]'"
    ) from error

Define = Callable[[Any], Mapping[str, Any]]
Callback = Callable[[optuna.Study, optuna.trial.FrozenTrial], None]

_ABSENT = Absent("an Optuna study", "another optimize with the same study goes on where it stopped")
_OWN = ("study", "model_fn", "space", "store", "data", "metric", "epochs", "n_trials", "timeout", "callbacks")
_CALLED_OTHERWISE = {
    "n_jobs": "optimize(..., max_concurrent=8)",
    "show_progress_bar": "optimize(..., progress=True)",
    "func": "optimize(study, model_fn, space, ...)",
}
_INSTEAD = {
    "time_budget": "optimize(..., timeout=600)",
    "patience": "a pruner of the study, such as optuna.pruners.PatientPruner",
    "target": "a pruner of the study, such as optuna.pruners.ThresholdPruner",
}


def optimize(
    study: optuna.Study,
    model_fn: ModelFn,
    space: Define | Mapping[str, optuna.distributions.BaseDistribution],
    *,
    store: Store | str,
    data: Any,
    metric: str,
    epochs: int,
    n_trials: int | None = None,
    timeout: float | None = None,
    callbacks: Iterable[Callback] | None = None,
    **options: Unpack[Options],
) -> Result:
    """Train what a study proposes, tell it the outcome, and return the Result of the run.

    `space(trial)` returns params, made with `trial.suggest_...`; or it is a dict of distributions by name. A trial's
    value is its best one of `metric`; every epoch is reported (the first as step 0, as Optuna counts), and a trial that
    the study's pruner gives up is pruned.
    Failed trials are told as failed. After `timeout` seconds no trial is begun any more; those under way come to their
    end. `max_concurrent` trials are under way at a time: as many as there are workers, if not given. Every trial of the
    study has the user attributes `cerebro_run`, `cerebro_trial`, and the metrics of its best epoch.

    `callbacks` are called with the study and a trial whenever one has ended, whatever it ended with. `study.stop()`, in
    one of them or in `space`, means what it means in `Study.optimize`: no trial is begun any more, and those under way
    come to their end.

    >>> study = optuna.create_study(direction="maximize")
    >>> optimize(study, print, {}, store="/tmp/runs", data={}, metric="val_loss", epochs=2, n_trials=3)
    Traceback (most recent call last):
    ...
    cerebro_spark.errors.ConfigurationError: the study would maximize 'val_loss', of which less is better: make it
    with direction='minimize', or say mode='max' if it is the other way round
    """
    check_led_names("optimize", options, _OWN, _CALLED_OTHERWISE)
    called = _checked_callbacks(callbacks)
    _check(study, n_trials, timeout, bool(called))
    chosen: Options = {**options, "mode": _mode(study, metric, options.get("mode"))}
    at_once = chosen.pop("max_concurrent", None)
    training = LedTraining(model_fn, _ABSENT, _INSTEAD, store, metric, **chosen)
    at_once = training.backend.num_workers if at_once is None else at_once
    at_least("max_concurrent", at_once, 1)
    search = StudySearch(study, space, n_trials, timeout, training, epochs, at_once, called)
    dataset = training.dataset(data)
    with _in_its_loop(study):
        try:
            training.lead(search, dataset, options.get("progress"))
        finally:
            search.leave()
    result: Result = training.result(search.run_id)
    return result


class StudySearch(LedSearch):
    """Asks a study, and tells it."""

    def __init__(
        self,
        study: optuna.Study,
        space: Define | Mapping[str, Any],
        n_trials: int | None,
        timeout: float | None,
        training: LedTraining,
        epochs: int,
        at_once: int,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        super().__init__(training.objective, epochs, at_once, sliced=True)
        self._study, self._space, self._n_trials, self._timeout = study, space, n_trials, timeout
        self._began: float | None = None
        self._begun = 0
        self._trials: dict[TrialId, optuna.Trial] = {}
        self._exhausted = False
        self._callbacks = callbacks

    def enough(self) -> bool:
        return False

    def propose(self) -> tuple[TrialId, Mapping[str, Any]] | None:
        while not self._over():
            self._begun += 1
            trial = self._study.ask() if callable(self._space) else self._study.ask(dict(self._space))
            params = self._params(trial)
            if params is not None:
                name = f"t{trial.number:04d}"
                self._trials[name] = trial
                return name, params
        return None

    def _over(self) -> bool:
        now = monotonic()
        self._began = now if self._began is None else self._began
        late = self._timeout is not None and now - self._began >= self._timeout
        stopped = self._exhausted or getattr(self._study, "_stop_flag", False)
        return late or stopped or (self._n_trials is not None and self._begun >= self._n_trials)

    def _params(self, trial: optuna.Trial) -> Mapping[str, Any] | None:
        """What is to be trained; None if the user's function would rather not."""
        if not callable(self._space):
            return trial.params
        try:
            params = self._space(trial)
            if not isinstance(params, Mapping):
                raise ConfigurationError(
                    f"`space` returned {params!r}, but must return a dict of params, made with trial.suggest_float and"
                    " the like"
                )
        except optuna.TrialPruned:
            self._inform(trial, TrialState.PRUNED)
            self._call_back(trial)
            return None
        except BaseException:
            self._inform(trial, TrialState.FAIL)  # no callback hears of what is raised, nor does one in Optuna
            raise
        return params

    def epoch(self, course: Course, report: Report, value: float) -> bool:
        trial = self._trials[course.trial]
        trial.report(value, report.epoch - 1)  # pruners count steps from zero
        if report.epoch < self.epochs and trial.should_prune():
            self._tell(course, TrialState.PRUNED)
            return False
        return True

    def finished(self, course: Course) -> None:
        if course.best != course.best:
            self.failed(course, f"{self.objective.metric} was no finite number in any of its epochs")
            return
        self._tell(course, TrialState.COMPLETE)

    def failed(self, course: Course, error: str) -> None:
        self._trials[course.trial].set_user_attr("error", error)
        self._tell(course, TrialState.FAIL)

    def _tell(self, course: Course, state: TrialState) -> None:
        trial = self._trials.pop(course.trial)
        for name, value in {"cerebro_run": self.run_id, "cerebro_trial": course.trial, **course.metrics}.items():
            trial.set_user_attr(name, value)
        self._inform(trial, state, course.best if state == TrialState.COMPLETE else None)
        self._call_back(trial)

    def _call_back(self, trial: optuna.Trial) -> None:
        for callback in self._callbacks:
            callback(self._study, deepcopy(self._study.get_trials(deepcopy=False)[trial.number]))

    def _inform(self, trial: optuna.Trial, state: TrialState, value: float | None = None) -> None:
        """Tell the study. A sampler that has nothing left to propose calls `Study.stop` then, which raises here."""
        try:
            self._study.tell(trial, value, state)
        except RuntimeError:
            if not self._study.get_trials(deepcopy=False)[trial.number].state.is_finished():
                raise
            self._exhausted = True

    def leave(self) -> None:
        """The run is over, perhaps before its time: the study waits for no trial any more."""
        for trial in self._trials.values():
            self._inform(trial, TrialState.FAIL)
        self._trials = {}


@contextmanager
def _in_its_loop(study: optuna.Study) -> Iterator[None]:
    """While the block lasts `study.stop()` is allowed in this thread, as it is where the study itself optimizes."""
    inside = study._thread_local
    if inside.in_optimize_loop:
        raise ConfigurationError("the study is being optimized already: wait until that has come to its end")
    study._stop_flag = False
    inside.in_optimize_loop = True
    try:
        yield
    finally:
        inside.in_optimize_loop = False


def _checked_callbacks(callbacks: Iterable[Callback] | None) -> tuple[Callback, ...]:
    if callbacks is None:
        return ()
    if callable(callbacks) or not isinstance(callbacks, Iterable):
        raise ConfigurationError(f"`callbacks` is {callbacks!r}, but must be a list of functions: write [callback]")
    called = tuple(callbacks)
    for callback in called:
        if not callable(callback):
            raise ConfigurationError(
                f"`callbacks` has {callback!r}, but must be functions, called as callback(study, trial)"
            )
    return called


def _check(study: optuna.Study, n_trials: int | None, timeout: float | None, called: bool) -> None:
    if len(study.directions) != 1:
        raise ConfigurationError(
            f"the study has {len(study.directions)} objectives, but a run has one `metric`: use a study with one"
        )
    if n_trials is None and timeout is None and not called:
        raise ConfigurationError(
            "neither `n_trials` nor `timeout` is given, so it would never end: give one of them, or `callbacks` that"
            " stop the study"
        )
    if n_trials is not None:
        at_least("n_trials", n_trials, 1)
    if timeout is not None and not timeout > 0:
        raise ConfigurationError(f"`timeout` is {timeout}, but must be above 0 seconds")


def _mode(study: optuna.Study, metric: str, mode: str | None) -> str:
    """The study's direction, unless what is said or known of the metric contradicts it."""
    direction, other = ("max", "min") if study.direction == StudyDirection.MAXIMIZE else ("min", "max")
    if (mode or _known(metric)) != other:
        return direction
    better = "less" if other == "min" else "more"
    raise ConfigurationError(
        f"the study would {direction}imize {metric!r}, of which {better} is better: make it with"
        f" direction='{other}imize', or say mode='{direction}' if it is the other way round"
    )


def _known(metric: str) -> str | None:
    try:
        return objective_for(metric).mode
    except ConfigurationError:
        return None  # not one of the usual metrics: the study knows
