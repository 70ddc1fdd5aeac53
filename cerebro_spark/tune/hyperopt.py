"""Hyperopt as the leader of a run: `hyperopt.fmin(model_fn, space, ..., trials=CerebroTrials(...))`.

`fmin` hands over to `CerebroTrials.fmin`, which asks hyperopt's algorithms itself, one trial at a time. It never polls
and starts no thread: what ends the run ends `fmin`.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import cloudpickle
import numpy as np

from cerebro_spark.backend.base import Backend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.base import is_spark_frame
from cerebro_spark.errors import CerebroError, ConfigurationError, PreflightFailed
from cerebro_spark.result import Result
from cerebro_spark.store import moved
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store
from cerebro_spark.tune.address import address_of
from cerebro_spark.tune.algorithms.base import at_least
from cerebro_spark.tune.arguments import check_options
from cerebro_spark.tune.estimator import ModelFn, Options, fitted
from cerebro_spark.tune.plugins.hyperopt_search import NO_MODEL, FminSearch, Limits, checked_point, hyperopt, is_bare
from cerebro_spark.tune.plugins.led import Absent, LedTraining, check_led_names
from cerebro_spark.tune.spaces.bare import Bare

_log = logging.getLogger("cerebro_spark")
_ABSENT = Absent("hyperopt.fmin", "another fmin with the same CerebroTrials goes on where it stopped")
_INSTEAD = {
    "max_concurrent": "fmin(..., max_queue_len=8)",
    "time_budget": "fmin(..., timeout=600)",
    "patience": "fmin(..., early_stop_fn=hyperopt.early_stop.no_progress_loss(10))",
    "target": "fmin(..., loss_threshold=0.1)",
    "progress": "fmin(..., show_progressbar=False)",
}
_OWN = ("store", "data", "metric", "epochs", "points_to_evaluate")
_FOR_FMIN = {
    "model_fn": "hyperopt.fmin(model_fn, ...)",
    "fn": "hyperopt.fmin(fn, ...)",
    **{
        name: f"hyperopt.fmin(..., {name}=...)"
        for name in inspect.signature(hyperopt.fmin).parameters
        if name not in ("fn", "trials", "points_to_evaluate")
    },
}
_FUNCTIONS = ("input_fn", "train_fn", "eval_fn")
_A_MODEL = (
    "With CerebroTrials the function that fmin is given builds a model from its params and returns it (a compiled Keras"
    " model or a cs.TorchModel); it does not return a loss, which is measured for it by `metric`"
)


class CerebroTrials(hyperopt.Trials):  # type: ignore[misc]
    """Hyperopt's trials, trained by Model Hopper Parallelism: each evaluation is a trial of `epochs` epochs.

    `fmin` is given `model_fn` as its function. The loss of a trial is its best value of `metric` ("max" metrics are
    negated), and its result holds the metrics of that epoch, its params, trial and run. A trial that fails is done with
    status "fail"; the others go on. `max_queue_len` of fmin is how many trials are under way at a time: fewer than
    workers let some stand idle. With `timeout`, `loss_threshold` or `early_stop_fn` trials that are under way at the
    end are cancelled after the epoch they are in.

    `points_to_evaluate`, as dicts from label to value (of a choice: the index), come first and count as evaluations.
    Every call of `fmin` is a run of its own; one on the same trials goes on with what they know, on the same data.
    Other options are those of the searches, such as `partitions`, `seed`, `trackers` and `resources`.

    A space may be a dict, or whatever else hyperopt takes: of `hp.uniform("lr", 0, 1)` alone, or of a list, `model_fn`
    and the other functions get the value itself, as with plain trials. Tables and logs, which go by names, call it
    "value"; a `batch_size` is looked for in dicts only.

    Trials can be pickled, without their backend and trackers, and with the address of the store alone: results can be
    read at once, and after `trials.backend = cs.SparkBackend(spark)` another `fmin` goes on.

    >>> from cerebro_spark.backend.local import LocalBackend
    >>> trials = CerebroTrials(
    ...     backend=LocalBackend(), store="/tmp/runs", data={"x": np.zeros(9), "y": np.zeros(9)}, features=["x"],
    ...     label="y", metric="loss", epochs=2, points_to_evaluate=[{"lr": 0.1}],
    ... )
    >>> trials.losses(), trials.run_ids
    ([], [])
    """

    def __init__(
        self,
        *,
        store: Store | str,
        data: Any,
        metric: str,
        epochs: int,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__()
        check_led_names("CerebroTrials", options, _OWN, _FOR_FMIN)
        at_least("epochs", epochs, 1)
        self._made: dict[str, Any] = {"store": store, "metric": metric, **options}
        # Everything but the function is known now, so what is wrong with it is said now.
        known = {**self._made, "framework": "torch"}
        training = LedTraining(_unknown, _ABSENT, _INSTEAD, **known)
        training.check(data)
        self._made["backend"] = training.backend
        self._data = data
        self._epochs = epochs
        self._points = [dict(point) for point in points_to_evaluate or ()]
        self.run_ids: list[str] = []

    @property
    def result(self) -> Result:
        """The Result of the last run: tables, models, predictions."""
        if not self.run_ids:
            raise CerebroError("there is no result yet: hand these trials to hyperopt.fmin first")
        result: Result = fitted(open_store(self._made["store"]), self.run_ids[-1])
        return result

    @property
    def backend(self) -> Backend | None:
        """Where units run; None in trials that were unpickled, until they are given one."""
        backend: Backend | None = self._made.get("backend")
        return backend

    @backend.setter
    def backend(self, backend: Backend) -> None:
        check_options({"backend": backend})
        self._made["backend"] = backend

    def __getstate__(self) -> dict[str, Any]:
        made = {name: value for name, value in self._made.items() if name not in ("backend", "trackers")}
        made["store"] = address_of(made["store"])
        if self._made.get("trackers"):
            _log.warning("CerebroTrials are pickled without their trackers")
        # The user's functions may be such as only cloudpickle knows.
        return {**vars(self), "_made": cloudpickle.dumps(made), "_data": _without_store(self._data)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._made = moved.loads(state["_made"])
        if isinstance(self._data, _Lodged):
            self._data = replace(self._data.dataset, store=open_store(self._data.address))

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
        """What `hyperopt.fmin(..., trials=self)` calls; its arguments mean what they mean there.

        Failed trials never raise, so `catch_eval_exceptions` changes nothing.
        """
        _check(pass_expr_memo_ctrl, trials_save_file, max_queue_len)
        self._check_whole()
        hyperopt.base.validate_timeout(timeout)
        hyperopt.base.validate_loss_threshold(loss_threshold)
        domain = hyperopt.base.Domain(fn, space)
        self._points = [checked_point(point, domain) for point in self._points]
        training = self._training(fn, is_bare(domain))
        limits = Limits(sys.maxsize if max_evals is None else max_evals, timeout, loss_threshold, early_stop_fn)
        if len(self) >= limits.max_evals:
            return self._outcome(space, return_argmin)
        self._data = training.dataset(self._data)  # prepared once
        _warn_of_idle_workers(max_queue_len, min(training.backend.num_workers, limits.max_evals - len(self)))
        custom = callable(show_progressbar)
        bars = show_progressbar if custom else hyperopt.progress.no_progress_callback
        with bars(initial=len(self), total=limits.max_evals) as bar:
            search = FminSearch(
                self,
                self._points,
                domain,
                algo or hyperopt.tpe.suggest,
                np.random.default_rng() if rstate is None else rstate,
                limits,
                training.objective,
                self._epochs,
                max_queue_len,
                bar,
            )
            self._lead(training, search, None if verbose and show_progressbar and not custom else False)
        return self._outcome(space, return_argmin)

    def _check_whole(self) -> None:
        """What a pickle does not keep must be there again."""
        if self.backend is None:
            raise ConfigurationError(
                "these CerebroTrials were unpickled, and backends are not pickled: say trials.backend ="
                " cs.SparkBackend(spark), or cs.LocalBackend(), and call fmin again"
            )
        if self._data is None:
            raise ConfigurationError(
                "these CerebroTrials were pickled before their `data`, a Spark DataFrame, was prepared, and it is not"
                " pickled: make new ones, with data=cs.prepare(df, ...)"
            )

    def _training(self, fn: ModelFn, no_dict: bool) -> LedTraining:
        try:
            training = LedTraining(fn, _ABSENT, _INSTEAD, **self._made)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}. {_A_MODEL}") from error
        if not no_dict:
            return training
        others = {name: Bare(self._made[name]) for name in _FUNCTIONS if self._made.get(name) is not None}
        return LedTraining(Bare(fn), _ABSENT, _INSTEAD, **{**self._made, **others})

    def _lead(self, training: LedTraining, search: FminSearch, progress: bool | None) -> None:
        """Run to the end, whichever that is; no document is left that anybody would wait for."""
        try:
            training.lead(search, self._data, progress)
        except KeyboardInterrupt:
            search.leave(hyperopt.base.JOB_STATE_CANCEL, "interrupted")
            raise
        except BaseException as error:
            search.leave(hyperopt.base.JOB_STATE_ERROR, str(error))
            if isinstance(error, PreflightFailed) and NO_MODEL in str(error):
                error.add_note(_A_MODEL)
            raise
        finally:
            search.leave(hyperopt.base.JOB_STATE_CANCEL, "the search had come to its end")
            if search.run_id:
                self.run_ids.append(search.run_id)

    def _outcome(self, space: Any, return_argmin: bool) -> Any:
        """What plain `fmin` returns."""
        if len(self) == 0:
            if return_argmin:
                raise CerebroError(
                    "no trial came to its end, so there is no best one: allow more time or evaluations, or say"
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
    """A data set as it is pickled: its store is an address."""

    dataset: Dataset
    address: str


def _without_store(data: Any) -> Any:
    """Data as it is pickled; nothing of a Spark DataFrame, which lives in its session alone."""
    if isinstance(data, Dataset):
        no_store: Any = None
        return _Lodged(replace(data, store=no_store), address_of(data.store))
    return None if is_spark_frame(data) else data


def _unknown(params: Any) -> Any:
    raise AssertionError("fmin has not said yet how to build a model")


def _warn_of_idle_workers(max_queue_len: int, workers: int) -> None:
    if max_queue_len < workers:
        _log.warning(
            "`max_queue_len` is %d, so of %d workers only as many have something to do at a time: give fmin a larger"
            " one",
            max_queue_len,
            workers,
        )


def _check(pass_expr_memo_ctrl: bool | None, trials_save_file: str, max_queue_len: int) -> None:
    at_least("max_queue_len", max_queue_len, 1)
    if pass_expr_memo_ctrl:
        raise ConfigurationError(
            "`pass_expr_memo_ctrl` is True, but models are built on workers, far from hyperopt: let the function take"
            " params alone"
        )
    if trials_save_file:
        raise ConfigurationError(
            f"`trials_save_file` is {trials_save_file!r}, but a run keeps its own log in its store: leave it out, and"
            " pickle the trials when fmin is over if they are to be kept"
        )
