"""Fits labels to the shapes of outputs for users' own metrics and losses in Keras. It never changes their sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import keras
import numpy as np

from cerebro_spark.errors import ConfigurationError

Row = tuple[int, ...]
Measure = Callable[[Any, Any], Any]

# Rows to try a metric with: outputs as probabilities, and as logits, of which no logarithm is taken.
_LABELS = np.array([0, 1, 1, 0, 1])
_OUTPUTS = (np.array([0.9, 0.8, 0.7, 0.2, 0.6]), np.array([0.9, 2.0, 1.5, -0.7, 0.6]))


def fit_labels(model: Any, named: Mapping[str, Any]) -> None:
    """Give users' own metrics and losses labels of a shape that is not broadcast over other rows, or refuse them.

    Keras reshapes the label of a loss function to the output's shape, but not that of a metric function, a Metric or a
    Loss of the user: with an output of (rows, 1), a label of (rows,) is broadcast.
    """
    for name, metric in named.items():
        if _function(metric) is not None:
            _fit(metric, "update_state", f"metric {name!r}", _check_function(metric))
        elif not _of_keras(type(metric).update_state):
            _fit(metric, "update_state", f"metric {name!r}", _check_updates(metric))
    for part in getattr(model._compile_loss, "_flat_losses", None) or []:
        loss = getattr(part, "loss", None)
        if isinstance(loss, keras.losses.Loss) and not _of_keras(type(loss).call):
            _fit(loss, "call", f"loss {type(loss).__name__}", _check_rows(loss.call))


def _fit(owner: Any, method: str, what: str, check: Callable[[Row, Row, Any, Any], bool | None]) -> None:
    """Give `owner.method(label, output, ...)` the labels that `check` finds right: as they are (True) or reshaped."""
    original = getattr(owner, method)
    known: dict[Any, bool | None] = {}

    def fitted(label: Any, output: Any, *rest: Any, **named: Any) -> Any:
        stored, wanted = tuple(label.shape[1:]), tuple(output.shape[1:])
        if stored == wanted or None in stored + wanted or _without_ones(stored) != _without_ones(wanted):
            return original(label, output, *rest, **named)
        if (stored, wanted) not in known:
            with _eagerly():
                known[stored, wanted] = check(stored, wanted, label.dtype, output.dtype)
        if known[stored, wanted] is None:
            raise ConfigurationError(
                f"{what} gets labels of shape {('rows', *stored)} beside outputs of {('rows', *wanted)}, and what it"
                " computes of them depends on which rows are together: give both one shape, as by"
                " keras.layers.Reshape(()) at the end of the model, or in input_fn"
            )
        label = label if known[stored, wanted] else keras.ops.reshape(label, (-1, *wanted))
        return original(label, output, *rest, **named)

    setattr(owner, method, fitted)


def _check_function(metric: Any) -> Callable[[Row, Row, Any, Any], bool | None]:
    settings = getattr(metric, "_fn_kwargs", {})
    return _check_rows(lambda label, output: _function(metric)(label, output, **settings))


def _check_rows(measure: Measure) -> Callable[[Row, Row, Any, Any], bool | None]:
    """Check that a batch gives what its rows give one by one: with labels as they are (True) or reshaped (False)."""

    def check(stored: Row, wanted: Row, label_type: Any, output_type: Any) -> bool | None:
        for shape, verdict in ((stored, True), (wanted, False)):
            tries = [_try_rows(measure, shape, wanted, numbers, label_type, output_type) for numbers in _OUTPUTS]
            if all(_is_alike(whole, rows) for whole, rows in tries):
                return verdict
        return None

    return check


def _try_rows(
    measure: Measure, stored: Row, wanted: Row, numbers: Any, label_type: Any, output_type: Any
) -> tuple[Any, Any]:
    """Return what a batch gives, and what its rows give one by one."""
    label = keras.ops.cast(_LABELS.reshape(-1, *stored), label_type)
    output = keras.ops.cast(numbers.reshape(-1, *wanted), output_type)
    rows = [float(np.mean(_array(measure(label[i : i + 1], output[i : i + 1])))) for i in range(len(_LABELS))]
    return _array(measure(label, output)), np.array(rows)


def _check_updates(metric: Any) -> Callable[[Row, Row, Any, Any], bool | None]:
    """The same check for a metric with a state, which is restored afterwards."""
    update = metric.update_state

    def result(*batches: tuple[Any, Any]) -> Any:
        metric.reset_state()
        for label, output in batches:
            update(label, output)
        return _array(metric.result())

    def check(stored: Row, wanted: Row, label_type: Any, output_type: Any) -> bool | None:
        kept = [np.asarray(variable.numpy()) for variable in metric.variables]
        try:
            for shape, verdict in ((stored, True), (wanted, False)):
                if all(_same_updates(result, shape, wanted, n, label_type, output_type) for n in _OUTPUTS):
                    return verdict
            return None
        finally:
            for variable, value in zip(metric.variables, kept, strict=True):
                variable.assign(value)

    return check


def _same_updates(
    result: Callable[..., Any], stored: Row, wanted: Row, numbers: Any, label_type: Any, output_type: Any
) -> bool:
    label = keras.ops.cast(_LABELS.reshape(-1, *stored), label_type)
    output = keras.ops.cast(numbers.reshape(-1, *wanted), output_type)
    one_by_one = result(*((label[i : i + 1], output[i : i + 1]) for i in range(len(_LABELS))))
    return np.allclose(result((label, output)), one_by_one, rtol=1e-4, atol=1e-5, equal_nan=True)


def _is_alike(whole: Any, rows: Any) -> bool:
    if whole.ndim == 0:
        return bool(np.allclose(whole, rows.mean(), rtol=1e-4, atol=1e-5, equal_nan=True))
    if len(whole) != len(rows):
        return False
    return bool(np.allclose(whole.reshape(len(rows), -1).mean(1), rows, rtol=1e-4, atol=1e-5, equal_nan=True))


def _function(metric: Any) -> Any:
    """Return the function of a metric, if a user wrote it."""
    function = getattr(metric, "_fn", None)
    return None if function is None or _of_keras(function) else function


def _of_keras(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("keras.")


def _without_ones(shape: Row) -> list[int]:
    return [size for size in shape if size != 1]


def _array(value: Any) -> Any:
    return np.asarray(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(value)), dtype="float64")


def _eagerly() -> AbstractContextManager[Any]:
    """Compute now, even while a graph is traced."""
    if keras.backend.backend() != "tensorflow":
        return nullcontext()
    import tensorflow as tf

    scope: AbstractContextManager[Any] = tf.init_scope()
    return scope
