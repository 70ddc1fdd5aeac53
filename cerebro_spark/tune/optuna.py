"""Optuna as the leader of a run: a study is asked for trials and told their outcome. It keeps nothing itself.

Storage, samplers, pruners and the dashboard are those of the study; only the training is done here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import deepcopy
from typing import Any, Literal

import numpy as np

from cerebro_spark.backend.base import Backend
from cerebro_spark.checks import check_at_least
from cerebro_spark.data.input.inputs import ColumnNames
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.result import Result
from cerebro_spark.store.base import Store
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.spec import Framework
from cerebro_spark.tune.arguments import check_progress, concurrent_trials
from cerebro_spark.tune.libraries import needed_by
from cerebro_spark.tune.options import ModelFn, TrainingOptions
from cerebro_spark.tune.plugins.led import Absent, LedSearch, TrialProgress
from cerebro_spark.tune.plugins.led_training import LedTraining
from cerebro_spark.tune.signatures import completed_from, refusing_unknown
from cerebro_spark.tune.trackers.base import Tracker
from cerebro_spark.types import Objective, Report, TrialId

with needed_by("cerebro_spark.tune.optuna", "optuna", "optuna"):
    import optuna
    from optuna.distributions import distribution_to_json, json_to_distribution
    from optuna.trial import TrialState

    from cerebro_spark.tune.plugins.study_arguments import (
        Callback,
        check_space,
        check_study,
        find_mode,
        list_callbacks,
    )

Define = Callable[[Any], Mapping[str, Any]]

_ABSENT = Absent("an Optuna study", "call optimize again, with run_id='{run}'")
_RUN, _TRIAL = "cerebro_run", "cerebro_trial"
"""The user attributes of a study's trial that say where it was trained."""
_ELSEWHERE = {
    "n_jobs": "optimize(..., max_concurrent=8)",
    "show_progress_bar": "optimize(..., progress=True)",
    "func": "optimize(study, model_fn, space, ...)",
    "time_budget": "optimize(..., timeout=600)",
    "catch": "leave it out: a trial that fails is told to the study as failed, and the others go on",
    "gc_after_trial": "leave it out: trials are trained by workers, which free their memory themselves",
    "patience": "a pruner of the study, such as optuna.pruners.PatientPruner",
    "target": "a pruner of the study, such as optuna.pruners.ThresholdPruner",
}


@refusing_unknown(_ELSEWHERE)
@completed_from(TrainingOptions)
def optimize(
    study: optuna.Study,
    model_fn: ModelFn,
    space: Define | Mapping[str, optuna.distributions.BaseDistribution],
    *,
    data: Any,
    store: Store | str,
    metric: str,
    epochs: int,
    n_trials: int | None = None,
    timeout: float | None = None,
    callbacks: Iterable[Callback] | None = None,
    max_concurrent: int | None = None,
    progress: bool | None = None,
    run_id: str | None = None,
    mode: str | None = None,
    backend: Backend | None = None,
    features: ColumnNames | None = None,
    label: ColumnNames | None = None,
    weight: str | None = None,
    validation: Any = None,
    partitions: int | None = None,
    allow_nan: bool = False,
    seed: int = 0,
    input_fn: Callable[..., Any] | None = None,
    train_fn: Callable[..., Any] | None = None,
    eval_fn: Callable[..., Any] | None = None,
    framework: Framework = "auto",
    resources: Resources | None = None,
    replicas: int = 1,
    max_kills: int | None = None,
    unit_timeout: float | None = None,
    fuse: Literal["auto"] | bool | int = False,
    workers_per_trial: Literal["auto"] | int = 1,
    kind: str | None = None,
    trackers: Sequence[Tracker] = (),
) -> Result:
    """Train what an Optuna study proposes, and tell it the outcome.

    The value of a trial is its best value of `metric`. Each epoch is reported, the first as step 0, and a trial that
    the study's pruner gives up is pruned. Failed trials are told as failed. Each trial of the study has the user
    attributes `cerebro_run`, `cerebro_trial`, and the metrics of its best epoch; of its last one if `metric` was finite
    in none. A sampler asks its `constraints_func` about such trials as well, if they are pruned: return a number for
    them, because Optuna raises an error for NaN.

    A run that was interrupted goes on if `run_id` is its id, with the same study or with a new one, which then learns
    all that the run knows, with the user attributes that `space` set: no finished unit is trained again. Its data and
    functions are those that it began with; `n_trials` counts the trials that it has, and the sampler is the study's as
    it is now. Callbacks are called for trials that had ended only if the study does not know them yet, as a new one
    does not.

    While it trains, other threads and processes can look at the run and command it, with `cs.attach`. A trial that a
    person stops is pruned; if a person ends the run, so are those in training. Those of which no epoch is known have
    failed.

    Args:
        study: The study; storage, sampler and pruner are its own. It must have one objective.
        model_fn: Called as `model_fn(params)`; returns a compiled Keras model or a `cs.TorchModel`.
        space: Called as `space(trial)`; returns params, made with `trial.suggest_float` and the like. Or a dict from
            names to distributions of Optuna.
        data: A DataFrame (of Spark or pandas), a dict of arrays, or a Dataset from `cs.prepare` or `cs.open_dataset`.
        epochs: How many epochs a trial is trained for, unless it is pruned.
        n_trials: How many trials are begun. Defaults to None: no limit.
        timeout: The seconds of the run after which no trial is begun; those that are being trained are finished. They
            stand still while a person pauses the run. Defaults to None: none.
        callbacks: Each is called as `callback(study, trial)` whenever a trial has ended. After `study.stop()`, there or
            in `space`, no trial is begun; those that are being trained are finished. Defaults to None: none.
        max_concurrent: How many trials are trained at a time. Defaults to None: the number of workers; with `fuse`
            eight for each worker, but no more than a quarter of `n_trials`.
        progress: Whether to show a progress bar. Defaults to None: only where it can be seen, in a terminal or
            notebook.
        run_id: The id of the run. If the store has that run, it goes on. Defaults to None: one is made.
        mode: "min" or "max", which must agree with the direction of the study. Defaults to None: that direction.

    Returns:
        The result of the run.

    Raises:
        ConfigurationError: An argument is unknown, or does not fit the study or the data. No trial was begun then.

    >>> study = optuna.create_study(direction="maximize")
    >>> optimize(study, print, {}, store="/tmp/runs", data={}, metric="val_loss", epochs=2, n_trials=3)
    Traceback (most recent call last):
    ...
    cerebro_spark.errors.ConfigurationError: the study would maximize 'val_loss', of which less is better: make it
    with direction='minimize', or say mode='max' if it is the other way round
    """
    called = list_callbacks(callbacks)
    check_study(study, n_trials, timeout, bool(called))
    check_space(space)
    check_progress(progress)
    options = TrainingOptions(
        store=store,
        metric=metric,
        mode=find_mode(study, metric, mode),
        backend=backend,
        features=features,
        label=label,
        weight=weight,
        validation=validation,
        partitions=partitions,
        allow_nan=allow_nan,
        seed=seed,
        input_fn=input_fn,
        train_fn=train_fn,
        eval_fn=eval_fn,
        framework=framework,
        resources=resources,
        replicas=replicas,
        max_kills=max_kills,
        unit_timeout=unit_timeout,
        fuse=fuse,
        workers_per_trial=workers_per_trial,
        kind=kind,
        trackers=trackers,
    )
    training = LedTraining(model_fn, options, _ABSENT)
    if max_concurrent is None:
        max_concurrent = concurrent_trials(fuse, training.backend.num_workers, 1, n_trials)
    check_at_least("max_concurrent", max_concurrent, 1)
    search = StudySearch(study, space, n_trials, timeout, training.objective, epochs, max_concurrent, called)
    with _in_its_loop(study):
        try:
            if training.has(run_id):
                assert run_id is not None
                return training.go_on(search, run_id, progress)
            return training.lead(search, training.dataset(data), progress, run_id)
        finally:
            search.leave()


class StudySearch(LedSearch):
    """Asks a study for trials, and tells it their outcome."""

    prunes = True

    def __init__(
        self,
        study: optuna.Study,
        space: Define | Mapping[str, Any],
        n_trials: int | None,
        timeout: float | None,
        objective: Objective,
        epochs: int,
        at_once: int,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        super().__init__(objective, epochs, at_once, sliced=True, timeout=timeout)
        self._study, self._space, self._n_trials = study, space, n_trials
        self._begun = 0
        self._trials: dict[TrialId, optuna.Trial] = {}
        self._names: set[TrialId] = set()
        self._pruned_after: dict[TrialId, int] = {}
        """Of trials that the study knows as pruned already: after how many epochs."""
        self._known_steps: dict[TrialId, set[int]] = {}
        """Of trials that a driver left unfinished: what it had reported."""
        self._callbacks = callbacks

    def enough(self) -> bool:
        return False

    def propose(self) -> tuple[TrialId, Mapping[str, Any]] | None:
        while not self._over():
            self._begun += 1
            trial = self._study.ask() if callable(self._space) else self._study.ask(dict(self._space))
            params = self._params(trial)
            if params is not None:
                name = self._new_name(trial.number)
                self._trials[name] = trial
                self._mark(trial, name)
                return name, params
        return None

    def _new_name(self, number: int) -> TrialId:
        """Return a name with the trial's number, or the next that is free: a new study counts anew."""
        while f"t{number:04d}" in self._names:
            number += 1
        name = f"t{number:04d}"
        self._names.add(name)
        return name

    def _mark(self, trial: optuna.Trial, name: TrialId) -> None:
        trial.set_user_attr(_RUN, self.run_id)
        trial.set_user_attr(_TRIAL, name)

    # -- a run that was interrupted

    def described(self, trial: TrialId) -> Mapping[str, Any]:
        asked = self._trials[trial]
        kinds = {name: distribution_to_json(kind) for name, kind in asked.distributions.items()}
        noted = self._study.get_trials(deepcopy=False)[asked.number]
        own = {name: value for name, value in noted.user_attrs.items() if name not in (_RUN, _TRIAL)}
        attributes = {"system_attrs": _kept(noted.system_attrs), "user_attrs": _kept(own)}
        return {"params": asked.params, "distributions": kinds, **attributes}

    def remember(self, progress: TrialProgress, about: Mapping[str, Any]) -> bool:
        """Take a trial of the study that is there and not finished; else give the study one like it."""
        name = progress.trial
        self._begun += 1
        self._names.add(name)
        mine = [
            trial
            for trial in self._study.get_trials(deepcopy=False)
            if trial.user_attrs.get(_RUN) == self.run_id and trial.user_attrs.get(_TRIAL) == name
        ]
        # Those that an interrupted run left have failed without an error.
        for trial in mine:
            if trial.state.is_finished() and (trial.state != TrialState.FAIL or "error" in trial.user_attrs):
                if trial.state == TrialState.PRUNED:
                    self._pruned_after[name] = len(trial.intermediate_values)
                return True
        running = [trial for trial in mine if not trial.state.is_finished()]
        if running:
            self._known_steps[name] = set(running[-1].intermediate_values)
        number = running[-1].number if running else self._add_trial(about)
        self._trials[name] = optuna.Trial(self._study, self._study.get_trials(deepcopy=False)[number]._trial_id)
        self._mark(self._trials[name], name)
        return False

    def _add_trial(self, about: Mapping[str, Any]) -> int:
        kinds = {name: json_to_distribution(kind) for name, kind in about["distributions"].items()}
        made = optuna.create_trial(
            state=TrialState.RUNNING,
            params=dict(about["params"]),
            distributions=kinds,
            user_attrs=json.loads(about.get("user_attrs", "{}")),  # not kept by earlier versions
            system_attrs=json.loads(about["system_attrs"]),
        )
        self._study.add_trial(made)
        return len(self._study.get_trials(deepcopy=False)) - 1

    def remember_epoch(self, progress: TrialProgress, report: Report, value: float, goes_on: bool) -> None:
        self._report(progress, report, value)
        if not goes_on:
            self._tell(progress, TrialState.PRUNED)

    def settled_epoch(self, progress: TrialProgress, report: Report, value: float) -> bool:
        pruned_after = self._pruned_after.get(progress.trial)
        return pruned_after is None or report.epoch < pruned_after

    def _over(self) -> bool:
        # Samplers with nothing left to propose stop the study, too.
        stopped = getattr(self._study, "_stop_flag", False)
        return self.timed_out() or stopped or (self._n_trials is not None and self._begun >= self._n_trials)

    def _params(self, trial: optuna.Trial) -> Mapping[str, Any] | None:
        """Return the params of a trial; None if the user's function pruned it."""
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
            self._study.tell(trial, state=TrialState.PRUNED)
            self._call_back(trial)
            return None
        except BaseException:
            # As in Optuna, callbacks are not called for what is raised.
            self._study.tell(trial, state=TrialState.FAIL)
            raise
        return params

    def epoch(self, progress: TrialProgress, report: Report, value: float) -> bool:
        self._report(progress, report, value)
        if report.epoch < self.epochs and self._trials[progress.trial].should_prune():
            self._tell(progress, TrialState.PRUNED)
            return False
        return True

    def _report(self, progress: TrialProgress, report: Report, value: float) -> None:
        """Report an epoch, unless the study knows it from an earlier driver."""
        step = report.epoch - 1  # pruners count steps from zero
        if step not in self._known_steps.get(progress.trial, ()):
            self._trials[progress.trial].report(value, step)

    def finished(self, progress: TrialProgress) -> None:
        self._tell(progress, TrialState.COMPLETE)

    def ended(self, progress: TrialProgress) -> None:
        if progress.reported:
            self._tell(progress, TrialState.PRUNED)
        else:
            super().ended(progress)  # nothing is known of it that a sampler could learn from

    def failed(self, progress: TrialProgress, error: str) -> None:
        self._trials[progress.trial].set_user_attr("error", error)
        self._tell(progress, TrialState.FAIL)

    def _tell(self, progress: TrialProgress, state: TrialState) -> None:
        trial = self._trials.pop(progress.trial)
        for name, value in progress.metrics.items():
            trial.set_user_attr(name, value)
        self._study.tell(trial, progress.best if state == TrialState.COMPLETE else None, state)
        self._call_back(trial)

    def _call_back(self, trial: optuna.Trial) -> None:
        for callback in self._callbacks:
            callback(self._study, deepcopy(self._study.get_trials(deepcopy=False)[trial.number]))

    def leave(self) -> None:
        """Tell the study that the trials which were not finished have failed, so that it does not wait for them."""
        left, self._trials = list(self._trials.values()), {}
        with ExitStack() as told:  # each of them, even if the sampler raises for another
            for trial in reversed(left):
                told.callback(self._study.tell, trial, state=TrialState.FAIL)


def _kept(attributes: Mapping[str, Any]) -> str:
    """What a sampler or the user noted at a trial, as JSON: Optuna keeps nothing else either, but in memory."""
    kept = {}
    for name, value in attributes.items():
        with suppress(TypeError, ValueError):
            kept[name] = json.loads(json.dumps(value, default=_plain))
    return json.dumps(kept)


def _plain(value: Any) -> Any:
    """Return a number or an array of NumPy as JSON has them; a study in memory may hold one."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{value!r} is nothing for JSON")


@contextmanager
def _in_its_loop(study: optuna.Study) -> Iterator[None]:
    """Allow `study.stop()` in this thread, as Optuna does while it optimizes a study itself."""
    inside = study._thread_local
    if inside.in_optimize_loop:
        raise ConfigurationError("the study is being optimized already: wait until that has ended")
    study._stop_flag = False
    inside.in_optimize_loop = True
    try:
        yield
    finally:
        inside.in_optimize_loop = False
