"""Fits labels to the shapes of outputs for users' own metrics and losses in Keras. It never changes their sums."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.keras.signature import names_set_by_keras

Row = tuple[int, ...]
Measure = Callable[[Any, Any], Any]
Check = Callable[[Any, Any], bool]

# Rows to try a metric with: outputs as probabilities, and as logits, of which no logarithm is taken.
_LABELS = np.array([0, 1, 1, 0, 1])
_OUTPUTS = (np.array([0.9, 0.8, 0.7, 0.2, 0.6]), np.array([0.9, 2.0, 1.5, -0.7, 0.6]))


def fit_labels(model: Any, named: Mapping[str, Any]) -> None:
    """Give users' own metrics and losses labels of a shape that is not broadcast over other rows, or refuse them.

    Keras reshapes the label of a loss function to the output's shape, but not that of a metric function, a Metric or a
    Loss of the user: with an output of (rows, 1), a label of (rows,) is broadcast.
    """
    for name, metric in named.items():
        function = getattr(metric, "_fn", None)
        if function is not None and not _of_keras(function):
            measure = functools.partial(function, **getattr(metric, "_fn_kwargs", {}))
            _fit(metric, "update_state", f"metric {name!r}", functools.partial(_goes_by_rows, measure))
        elif not _of_keras(type(metric).update_state):
            _fit(metric, "update_state", f"metric {name!r}", _check_updates(metric))
    for part in getattr(model._compile_loss, "_flat_losses", None) or []:
        loss = getattr(part, "loss", None)
        if isinstance(loss, keras.losses.Loss) and not _of_keras(type(loss).call):
            _fit(loss, "call", f"loss {type(loss).__name__}", functools.partial(_goes_by_rows, loss.call))


def _fit(owner: Any, method: str, what: str, goes_by_rows: Check) -> None:
    """Give `owner.method(label, output, ...)` labels with which it goes by rows: as they are, or reshaped."""
    original = getattr(owner, method)
    known: dict[tuple[Row, Row], Row | None] = {}

    def fitted(label: Any, output: Any, *rest: Any, **named: Any) -> Any:
        stored, wanted = tuple(label.shape[1:]), tuple(output.shape[1:])
        if stored == wanted or None in stored + wanted or _without_ones(stored) != _without_ones(wanted):
            return original(label, output, *rest, **named)
        if (stored, wanted) not in known:
            with _eagerly():
                known[stored, wanted] = _find_shape(goes_by_rows, stored, wanted, label.dtype, output.dtype)
        shape = known[stored, wanted]
        if shape is None:
            raise ConfigurationError(
                f"{what} gets labels of shape {('rows', *stored)} beside outputs of {('rows', *wanted)}, and what it"
                " computes of them depends on which rows are together: give both one shape, as by"
                " keras.layers.Reshape(()) at the end of the model, or in input_fn"
            )
        return original(label if shape == stored else keras.ops.reshape(label, (-1, *shape)), output, *rest, **named)

    setattr(owner, method, fitted)


def _find_shape(goes_by_rows: Check, stored: Row, wanted: Row, label_type: Any, output_type: Any) -> Row | None:
    """Return the shape of labels with which a batch gives what its rows give one by one; None if there is none."""
    outputs = [keras.ops.cast(numbers.reshape(-1, *wanted), output_type) for numbers in _OUTPUTS]
    for shape in (stored, wanted):
        label = keras.ops.cast(_LABELS.reshape(-1, *shape), label_type)
        if all(goes_by_rows(label, output) for output in outputs):
            return shape
    return None


def _goes_by_rows(measure: Measure, label: Any, output: Any) -> bool:
    """Whether a function gives for a batch what it gives for its rows one by one, or the mean of that."""
    whole = _array(measure(label, output))
    rows = np.array([np.mean(_array(measure(*row))) for row in _rows(label, output)])
    if whole.ndim == 0:
        return _is_close(whole, rows.mean())
    return len(whole) == len(rows) and _is_close(whole.reshape(len(rows), -1).mean(1), rows)


def _check_updates(metric: Any) -> Check:
    """Return the same check for a metric with a state, which is put back afterwards."""
    update = metric.update_state

    def result(batches: Iterable[tuple[Any, Any]]) -> Any:
        metric.reset_state()
        for label, output in batches:
            update(label, output)
        return _array(metric.result())

    def goes_by_rows(label: Any, output: Any) -> bool:
        with _put_back(metric):
            return _is_close(result([(label, output)]), result(_rows(label, output)))

    return goes_by_rows


@contextmanager
def _put_back(metric: Any) -> Iterator[None]:
    """Put variables and attributes of a metric back after a block, and the items of lists, dicts and sets of a user."""
    variables = [(variable, np.array(variable.numpy())) for variable in metric.variables]
    attributes = dict(vars(metric))
    users = [value for name, value in attributes.items() if name not in names_set_by_keras(metric)]
    items = [(value, value.copy()) for value in users if isinstance(value, list | dict | set)]
    with ExitStack() as stack:
        for part in metric._metrics:
            stack.enter_context(_put_back(part))
        try:
            yield
        finally:
            for variable, value in variables:
                variable.assign(value)
            vars(metric).clear()
            vars(metric).update(attributes)
            for container, kept in items:
                container.clear()
                container.extend(kept) if isinstance(container, list) else container.update(kept)


def _rows(label: Any, output: Any) -> list[tuple[Any, Any]]:
    return [(label[index : index + 1], output[index : index + 1]) for index in range(len(_LABELS))]


def _is_close(one: Any, other: Any) -> bool:
    return bool(np.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True))


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
