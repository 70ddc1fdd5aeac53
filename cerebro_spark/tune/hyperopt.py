"""Hyperopt as the leader of a run: `hyperopt.fmin(model_fn, space, ..., trials=CerebroTrials(...))`.

`fmin` calls `CerebroTrials.fmin`, which asks Hyperopt's algorithms itself, one trial at a time. It never polls and
starts no thread: what ends the run ends `fmin`.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from cerebro_spark.checks import check_at_least
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.base import is_frame, is_spark_frame
from cerebro_spark.errors import CerebroError, ConfigurationError, PreflightFailed
from cerebro_spark.result import Result
from cerebro_spark.store.opening import open_store
from cerebro_spark.tune.arguments import check_backend, concurrent_trials, fused_trials
from cerebro_spark.tune.options import ModelFn, TrainingOptions, copy_options
from cerebro_spark.tune.plugins.hyperopt_search import NO_MODEL, FminSearch, Limits, checked_point, hyperopt, is_bare
from cerebro_spark.tune.plugins.led import Absent
from cerebro_spark.tune.plugins.led_training import LedTraining
from cerebro_spark.tune.saving import NOT_SAVED, address_of, pickled, saved_arguments, unpickled
from cerebro_spark.tune.signatures import explained
from cerebro_spark.tune.spaces.bare import Bare
from cerebro_spark.tune.training import open_result

_log = logging.getLogger("cerebro_spark")
_ABSENT = Absent("hyperopt.fmin", "call fmin again, with CerebroTrials(..., run_id='{run}')")
_FOR_FMIN = {
    "max_concurrent": "hyperopt.fmin(..., max_queue_len=8)",
    "time_budget": "hyperopt.fmin(..., timeout=600)",
    "patience": "hyperopt.fmin(..., early_stop_fn=no_progress_loss(10)), which is in hyperopt.early_stop",
    "target": "hyperopt.fmin(..., loss_threshold=0.1)",
    "progress": "hyperopt.fmin(..., show_progressbar=False)",
    "model_fn": "hyperopt.fmin(model_fn, ...)",
    "fn": "hyperopt.fmin(fn, ...)",
    **{
        name: f"hyperopt.fmin(..., {name}=...)"
        for name in inspect.signature(hyperopt.fmin).parameters
        if name not in ("fn", "trials", "points_to_evaluate")
    },
}
_FUNCTIONS = ("input_fn", "train_fn", "eval_fn")
# How a pickle names the options, and what earlier versions called other attributes.
_OPTIONS = "_made"
_FORMER = {"_data": "data", "_epochs": "epochs"}
_A_MODEL = (
    "With CerebroTrials the function that fmin is given builds a model from its params and returns it (a compiled Keras"
    " model or a cs.TorchModel); it does not return a loss, which is measured for it by `metric`"
)


@explained(_FOR_FMIN)
@dataclass(kw_only=True, eq=False, repr=False)
class CerebroTrials(TrainingOptions, hyperopt.Trials):  # type: ignore[misc]
    """Hyperopt's trials, trained by Model Hopper Parallelism: each evaluation is a trial of `epochs` epochs.

    `fmin` is given `model_fn` as its function. The loss of a trial is its best value of `metric`, negated if the mode
    is "max"; its result holds the metrics of that epoch, its params, trial and run. A trial that fails has the status
    "fail", and the others go on. `max_queue_len` of fmin is how many trials are trained at a time; with fewer than
    workers, some workers are idle. Where `fuse` is given and `max_queue_len` is not, they are eight for each worker,
    but no more than a quarter of all. With `timeout`, `loss_threshold` or `early_stop_fn`, trials that are being
    trained at the end are cancelled after their present epoch.

    Each call of `fmin` is a run of its own. Another call with the same trials continues with what they know, on the
    same data. A run that was interrupted goes on if `run_id` is its id, with the same trials or with new ones: no
    finished unit is trained again. Its data and functions are those that it began with.

    While `fmin` trains, other threads and processes can look at the run and command it, with `cs.attach`. A trial that
    a person stops counts by the best of its epochs; if a person ends the run, so do those that are being trained.

    A space may be a dict, or whatever else Hyperopt accepts: of `hp.uniform("lr", 0, 1)` alone, or of a list,
    `model_fn` and the other functions get the value itself, as with plain trials. Tables and logs call it "value"; a
    `batch_size` is looked for in dicts only.

    Trials can be pickled, without their backend and trackers, and with the addresses of stores alone, also of those
    that functions use. Results can be read at once, and after `trials.backend = cs.SparkBackend(spark)` another `fmin`
    continues. A Spark DataFrame is pickled only as what `fmin` prepared from it.

    Args:
        data: A DataFrame (of Spark or pandas), a dict of arrays, or a Dataset from `cs.prepare` or `cs.open_dataset`.
        epochs: How many epochs each trial is trained for.
        points_to_evaluate: Configurations to begin with, as dicts from label to value (of a choice: the index). They
            count as evaluations. Defaults to None: none.
        run_id: The id of the run of the next `fmin`. If the store has that run, `fmin` goes on with it. Defaults to
            None: one is made.

    Raises:
        ConfigurationError: An argument is unknown, or can never be right. Nothing has been started then.

    >>> from cerebro_spark.backend.local import LocalBackend
    >>> trials = CerebroTrials(
    ...     backend=LocalBackend(), store="/tmp/runs", data={"x": np.zeros(9), "y": np.zeros(9)}, features=["x"],
    ...     label="y", metric="loss", epochs=2, points_to_evaluate=[{"lr": 0.1}],
    ... )
    >>> trials.losses(), trials.run_ids
    ([], [])
    """

    data: Any
    epochs: int
    points_to_evaluate: Sequence[Mapping[str, Any]] | None = None
    run_id: str | None = None

    def __post_init__(self) -> None:
        hyperopt.Trials.__init__(self)
        check_at_least("epochs", self.epochs, 1)
        # All arguments but the function are known now, so their mistakes are reported now.
        training = LedTraining(_unknown, copy_options(self, framework="torch"), _ABSENT)
        training.check_data(self.data)
        self.backend = training.backend
        self._points = _copy_points(self.points_to_evaluate)
        self.run_ids: list[str] = []

    @property
    def result(self) -> Result:
        """The Result of the last run: tables, models, predictions."""
        if not self.run_ids:
            raise CerebroError("there is no result yet: pass these trials to hyperopt.fmin first")
        return open_result(open_store(self.store), self.run_ids[-1])

    def __setattr__(self, name: str, value: Any) -> None:
        """Check a backend when it is assigned: trials that were unpickled need a new one."""
        if name == "backend":
            check_backend(value)
        super().__setattr__(name, value)

    def __getstate__(self) -> dict[str, Any]:
        options = saved_arguments(self, TrainingOptions)
        data, options["validation"] = _kept_rows(self.data, self.validation)
        others = {name: value for name, value in vars(self).items() if name not in {*options, *NOT_SAVED}}
        # Only cloudpickle can pickle functions of a notebook, or lambdas.
        return {**others, _OPTIONS: pickled(options), "data": data}

    def __setstate__(self, state: dict[str, Any]) -> None:
        known = {field.name for field in fields(TrainingOptions)}
        options = {name: value for name, value in unpickled(state[_OPTIONS]).items() if name in known}
        own = {_FORMER.get(name, name): value for name, value in state.items() if name != _OPTIONS}
        self.__dict__.update({"run_id": None} | own | options | {"backend": None, "trackers": ()})
        if isinstance(self.data, _Lodged):
            self.data = replace(self.data.dataset, store=open_store(self.data.address))

    def fmin(
        self,
        fn: ModelFn,
        space: Any,
        algo: Callable[..., Any] | None = None,
        max_evals: int | None = None,
        timeout: float | None = None,
        loss_threshold: float | None = None,
        max_queue_len: int = 1,
        rstate: np.random.Generator | None = None,
        verbose: bool = False,
        pass_expr_memo_ctrl: bool | None = None,
        catch_eval_exceptions: bool = False,
        return_argmin: bool = True,
        show_progressbar: Any = True,
        early_stop_fn: Callable[..., Any] | None = None,
        trials_save_file: str = "",
    ) -> Any:
        """Run Hyperopt's search; `hyperopt.fmin(..., trials=self)` calls this.

        Args:
            fn: Called as `fn(params)` on a worker; builds a model and returns it: `model_fn` of the other searches.
            space: A space of Hyperopt.
            algo: What proposes configurations. Defaults to None: `hyperopt.tpe.suggest`.
            max_evals: How many trials there may be in all. Defaults to None: no limit.
            timeout: The seconds of the run after which no further epoch begins. They stand still while a person pauses
                the run. Defaults to None: no limit.
            loss_threshold: The loss at which the search ends. Defaults to None: none.
            max_queue_len: How many trials are trained at a time. Defaults to 1; if `fuse` is given, that stands for
                eight for each worker, but for no more than a quarter of the trials.
            rstate: The source of random numbers. Defaults to None: a new one.
            verbose: Whether to show progress. Defaults to False.
            pass_expr_memo_ctrl: Must be false: models are built on workers, where there is no Hyperopt. Defaults to
                None.
            catch_eval_exceptions: Ignored: a failed trial never raises. Defaults to False.
            return_argmin: Whether to return the best point as Hyperopt's numbers, rather than as values of the space.
                Defaults to True.
            show_progressbar: Whether to show a bar, or a function that makes one. Defaults to True.
            early_stop_fn: Called as `early_stop_fn(trials, *state)` after each trial; ends the search when it returns
                `(True, state)`, with a list that is its state at the next call, or True alone. Defaults to None: none.
            trials_save_file: Must be empty: a run keeps its own log. Defaults to "".

        Returns:
            The best point; None if there is none and `return_argmin` is False.

        Raises:
            ConfigurationError: An argument cannot be right; no worker was started then.
            AllTrialsFailed: Every trial failed.
        """
        _check(pass_expr_memo_ctrl, trials_save_file, max_queue_len)
        self._check_complete()
        _check_search(space, algo, max_evals, rstate)
        hyperopt.base.validate_timeout(timeout)
        hyperopt.base.validate_loss_threshold(loss_threshold)
        domain = hyperopt.base.Domain(fn, space)
        self._points = [checked_point(point, domain) for point in self._points]
        training = self._training(fn, is_bare(domain))
        limits = Limits(sys.maxsize if max_evals is None else max_evals, timeout, loss_threshold, early_stop_fn)
        again = training.has(self.run_id)
        if not again:
            if len(self) >= limits.max_evals:
                return self._outcome(space, return_argmin)
            self.data = training.dataset(self.data)  # prepared once
        at_once = self._at_once(max_queue_len, training.backend.num_workers, max_evals)
        _warn_of_idle_workers(at_once, min(training.backend.num_workers, limits.max_evals - len(self)))
        algo = algo or hyperopt.tpe.suggest
        rng = np.random.default_rng() if rstate is None else rstate
        custom = callable(show_progressbar)
        bars = show_progressbar if custom else hyperopt.progress.no_progress_callback
        with bars(initial=len(self), total=limits.max_evals) as bar:
            search = FminSearch(
                self, self._points, domain, algo, rng, limits, training.objective, self.epochs, at_once, bar
            )
            self._lead(training, search, None if verbose and show_progressbar and not custom else False)
        return self._outcome(space, return_argmin)

    def _at_once(self, max_queue_len: int, workers: int, max_evals: int | None) -> int:
        """Return how many trials are trained at a time. With `fuse`, 1, which is fmin's default, is not meant."""
        asked_for = fused_trials(self.fuse) > 1 and self.fuse != TrainingOptions.fuse
        if max_queue_len > 1 or not asked_for:
            return max_queue_len
        at_once = concurrent_trials(self.fuse, workers, 1, None if max_evals is None else max_evals - len(self))
        _log.warning(
            "`max_queue_len` is 1, with which no trials could train together: %d are trained at a time. Give fmin"
            " another number, or CerebroTrials fuse=False for one at a time",
            at_once,
        )
        return at_once

    def _check_complete(self) -> None:
        """Raise ConfigurationError if something is missing that a pickle does not keep."""
        if self.backend is None:
            raise ConfigurationError(
                "these CerebroTrials were unpickled, and backends are not pickled: say trials.backend ="
                " cs.SparkBackend(spark), or cs.LocalBackend(), and call fmin again"
            )
        if self.data is None:
            raise ConfigurationError(
                "these CerebroTrials were pickled before their `data` and `validation` were prepared, of which one is a"
                " Spark DataFrame, and that is not pickled: make new ones, with data=cs.prepare(df, ...)"
            )

    def _training(self, fn: ModelFn, no_dict: bool) -> LedTraining:
        try:
            training = LedTraining(fn, self, _ABSENT)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}. {_A_MODEL}") from error
        if not no_dict:
            return training
        bare = {name: Bare(function) for name in _FUNCTIONS if (function := getattr(self, name)) is not None}
        return LedTraining(Bare(fn), copy_options(self, **bare), _ABSENT)

    def _lead(self, training: LedTraining, search: FminSearch, progress: bool | None) -> None:
        """Run to the end, whichever it is. No document is left unfinished, so that Hyperopt waits for none."""
        try:
            if training.has(self.run_id):
                assert self.run_id is not None
                training.go_on(search, self.run_id, progress)
            else:
                training.lead(search, self.data, progress, self.run_id)
            self.run_id = None  # the next fmin is another run
        except KeyboardInterrupt:
            search.leave(hyperopt.base.JOB_STATE_CANCEL, "interrupted")
            raise
        except BaseException as error:
            search.leave(hyperopt.base.JOB_STATE_ERROR, str(error))
            if isinstance(error, PreflightFailed) and NO_MODEL in str(error):
                error.add_note(_A_MODEL)
            raise
        finally:
            search.leave(hyperopt.base.JOB_STATE_CANCEL, "the search had ended")
            if search.run_id and search.run_id not in self.run_ids:
                self.run_ids.append(search.run_id)

    def _outcome(self, space: Any, return_argmin: bool) -> Any:
        """Return what plain `fmin` returns."""
        if len(self) == 0:
            if return_argmin:
                raise CerebroError(
                    "no trial was finished, so there is no best one: allow more time or evaluations, or say"
                    " return_argmin=False"
                )
            return None
        if not any(result["status"] == hyperopt.base.STATUS_OK for result in self.results):
            first = self.results[0]
            raise hyperopt.exceptions.AllTrialsFailed(
                f"all {len(self)} trials failed; the first with params {first['params']!r}:\n{first['error']}"
            )
        return self.argmin if return_argmin else hyperopt.space_eval(space, self.argmin)


class _Lodged(NamedTuple):
    """A data set as it is pickled: with the address of its store in place of the store."""

    dataset: Dataset
    address: str


def _kept_rows(data: Any, validation: Any) -> tuple[Any, Any]:
    """Return `data` and `validation` as they are pickled.

    A Spark DataFrame exists in its session alone. If one of them is, there is no data until it is given again.
    """
    if isinstance(data, Dataset):
        no_store: Any = None
        lodged = _Lodged(replace(data, store=no_store), address_of(data.store))
        return lodged, None if is_frame(validation) else validation  # the data set has the rows
    lost = is_spark_frame(data) or is_spark_frame(validation)
    return None if lost else data, None if is_spark_frame(validation) else validation


def _copy_points(points: Any) -> list[dict[str, Any]]:
    if points is None:
        return []
    if isinstance(points, Mapping | str) or not all(isinstance(point, Mapping) for point in points):
        raise ConfigurationError(
            f"`points_to_evaluate` is {points!r}, but must be a list of dicts from label to value, as [{{'lr': 0.1}}]"
        )
    return [dict(point) for point in points]


def _unknown(params: Any) -> Any:
    raise AssertionError("only fmin gives the function that builds a model")


def _warn_of_idle_workers(max_queue_len: int, workers: int) -> None:
    if max_queue_len < workers:
        _log.warning(
            "`max_queue_len` is %d, so of %d workers only as many are busy at a time: give fmin a larger one",
            max_queue_len,
            workers,
        )


def _check(pass_expr_memo_ctrl: bool | None, trials_save_file: str, max_queue_len: int) -> None:
    check_at_least("max_queue_len", max_queue_len, 1)
    if pass_expr_memo_ctrl:
        raise ConfigurationError(
            "`pass_expr_memo_ctrl` is True, but models are built on workers, far from hyperopt: let the function take"
            " params alone"
        )
    if trials_save_file:
        raise ConfigurationError(
            f"`trials_save_file` is {trials_save_file!r}, but a run keeps its own log in its store: leave it out, and"
            " pickle the trials after fmin to keep them"
        )


def _check_search(space: Any, algo: Any, max_evals: Any, rstate: Any) -> None:
    """Refuse what Hyperopt would fail with, somewhere inside."""
    if max_evals is not None:
        check_at_least("max_evals", max_evals, 0)
    if isinstance(space, Mapping | Sequence) and not isinstance(space, str) and not space:
        raise ConfigurationError(
            f"`space` is {space!r}: give at least one, such as {{'lr': hp.loguniform('lr', -7, 0)}}"
        )
    if algo is not None and not callable(algo):
        raise ConfigurationError(f"`algo` is {algo!r}, but must be a function such as hyperopt.tpe.suggest")
    if rstate is not None and not isinstance(rstate, np.random.Generator):
        raise ConfigurationError(
            f"`rstate` is {rstate!r}, but Hyperopt needs a Generator of NumPy: say np.random.default_rng(0)"
        )
