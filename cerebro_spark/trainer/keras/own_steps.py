"""Measures what a user's own `train_step` or `test_step` returns, and knows which metrics it updates.

Keras shows what a step returns; here only metrics add up over batches and partitions. So a plain value that a step
returns under the name of an average that it has not updated is given to that average. It never calls the model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, Literal

import keras

from cerebro_spark.trainer.keras.metrics import is_average

_log = logging.getLogger(__name__)

Pass = Literal["train", "test"]


class OwnSteps:
    """The steps of a model, of which those that a user has written are watched.

    Args:
        model: The model.
        metrics: Its metrics by name.
    """

    def __init__(self, model: Any, metrics: Mapping[str, Any]) -> None:
        measuring = type(model).compute_metrics
        steps = {"train": type(model).train_step, "test": type(model).test_step}
        self._own = {kind for kind, step in steps.items() if not (_of_keras(step) and _of_keras(measuring))}
        # A step that the user compiled is traced once for several graphs: it does not know their rows, and what it
        # returns is no longer what its metrics gave.
        self._compiled = {kind for kind, step in steps.items() if hasattr(step, "python_function")}
        self._metrics = metrics
        self._parts = {metric.name for metric in model.metrics}
        # By the kind of a step, the metrics that it updates, those that are given what it returns, and averages that it
        # returns by another name than their own.
        self._updated: dict[str, set[str]] = {"train": set(), "test": set()}
        self._given: dict[str, set[str]] = {"train": set(), "test": set()}
        self._renamed: dict[str, dict[str, Any]] = {"train": {}, "test": {}}

    def list_measured(self, kind: Pass) -> dict[str, Any]:
        """Return the metrics that the steps of a pass update."""
        if kind not in self._own:
            return dict(self._metrics)
        measured = self._updated[kind] | self._given[kind]
        return {**{name: self._metrics[name] for name in self._metrics if name in measured}, **self._renamed[kind]}

    def take(self, kind: Pass, step: Callable[[Any], Any], data: Any, rows: Any) -> None:
        """Call a step with a batch of so many rows, or trace that call."""
        if kind not in self._own:
            step(data)
            return
        watch = _Watch(None if kind in self._compiled else rows)
        with ExitStack() as stack:
            for name, metric in self._metrics.items():
                stack.enter_context(_watched(watch, name, metric))
            logs = step(data)
            self._updated[kind] |= watch.updated
            for name, value in logs.items() if isinstance(logs, Mapping) else ():
                if name not in self._updated[kind]:
                    self._measure(kind, name, value, watch.find_source(value), watch.returns_all(logs))
        for name in self._metrics.keys() - self.list_measured(kind).keys():
            _tell_untouched(name, f"{kind}_step")

    def _measure(self, kind: Pass, name: str, value: Any, source: Any, is_plain: bool) -> None:
        """Measure what a step returns by a name whose metric it has not updated.

        Args:
            kind: Which step it is.
            name: The name.
            value: What it returned.
            source: The metric whose result that is; None if it is none.
            is_plain: Whether what is no result is computed from none either.
        """
        metric = self._metrics.get(name)
        if source is not None and source is not metric and is_average(source):
            self._renamed[kind][name] = source
        elif source is None and metric is not None and is_average(metric) and is_plain and kind not in self._compiled:
            metric.update_state(value)
            self._given[kind].add(name)
        elif metric is None and name not in self._parts:
            _tell_unmeasured(name, f"{kind}_step")


class _Watch:
    """What a step does with metrics.

    Args:
        rows: The rows of its batch; None if they are not known.
    """

    def __init__(self, rows: Any) -> None:
        self.rows = rows
        self.updated: set[str] = set()
        self.results: list[tuple[Any, Any]] = []

    def find_source(self, value: Any) -> Any:
        """Return the metric of which a value is the result; None if it is of none."""
        return next((metric for result, metric in self.results if result is value), None)

    def returns_all(self, logs: Any) -> bool:
        """Whether all results that a step has read are in what it returns, so that nothing else is made of them."""
        returned = {id(value) for value in keras.tree.flatten(logs)}
        return all(id(result) in returned for result, _ in self.results)


@contextmanager
def _watched(watch: _Watch, name: str, metric: Any) -> Iterator[None]:
    """Note inside the block whether a metric is updated, and what its `result` returns.

    A mean of batches becomes one of rows: one number for a batch counts once for each of its rows, if these are known.
    """
    own = vars(metric)
    before = {key: own[key] for key in ("update_state", "result") if key in own}
    update_state, result = metric.update_state, metric.result
    is_mean = type(metric) is keras.metrics.Mean

    def update(*values: Any, **named: Any) -> Any:
        watch.updated.add(name)
        one_number = is_mean and len(values) == 1 and not named and not len(keras.ops.shape(values[0]))
        if one_number:
            _tell_number(name, "batch" if watch.rows is None else "row")
        return update_state(*values, **({"sample_weight": watch.rows} if one_number else named))

    def note_result() -> Any:
        value = result()
        watch.results.append((value, metric))
        return value

    own.update({"update_state": update, "result": note_result})
    try:
        yield
    finally:
        for key in ("update_state", "result"):
            own.pop(key)
        own.update(before)


def _of_keras(method: Any) -> bool:
    return str(method.__module__).startswith("keras.")


@cache
def _tell_number(name: str, counts: str) -> None:
    """Say what one number for a batch counts for: each of its rows, or, in a step that the user compiled, the batch."""
    _log.warning(
        "metric %r gets one number for a batch from a step of your own, which counts once for each %s. If that gives no"
        " mean over rows, as of a contrastive loss, or in a step with tf.function, it depends on which rows are in a"
        " batch: compare trials with different batch sizes by another metric",
        *(name, counts),
    )


@cache
def _tell_unmeasured(name: str, step: str) -> None:
    _log.warning(
        "%s returns %r, which no metric of the model keeps, so that it is not measured: make it a"
        " keras.metrics.Mean(name=%r) that is an attribute of the model, and update that in the step",
        *(step, name, name),
    )


@cache
def _tell_untouched(name: str, step: str) -> None:
    _log.warning(
        "%s neither updates the metric %r nor returns a value of its own for it, so that it is not measured", step, name
    )
