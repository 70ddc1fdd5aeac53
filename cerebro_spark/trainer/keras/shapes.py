"""Fits labels to the shapes of outputs for users' own metrics and losses in Keras. It never changes their sums."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import keras
import numpy as np

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.keras.signature import names_set_by_keras

_log = logging.getLogger(__name__)

Row = tuple[int, ...]
Measure = Callable[[Any, Any], Any]
Check = Callable[[Any, Any], bool]

# Rows to try a metric with: outputs as probabilities, and as logits, of which no logarithm is taken.
_LABELS = np.array([0, 1, 1, 0, 1])
_OUTPUTS = (np.array([0.9, 0.8, 0.7, 0.2, 0.6]), np.array([0.9, 2.0, 1.5, -0.7, 0.6]))
# Metrics that are a statistic of a batch, of which Keras takes the mean over batches.
_OF_BATCHES = {"PearsonCorrelation", "ConcordanceCorrelation"}
_STRETCHES = (
    "loss {name} computes a value for every row with every other: it stretches labels and outputs over each other. Give"
    " both one shape, as by keras.ops.reshape(label, keras.ops.shape(output))"
)


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
            _weigh_numbers(name, metric, measure)
        elif not _of_keras(type(metric).update_state):
            _fit(metric, "update_state", f"metric {name!r}", _check_updates(metric))
        _tell_of_batches(model, name, metric)
    for part in getattr(model._compile_loss, "_flat_losses", None) or []:
        loss = getattr(part, "loss", None)
        if isinstance(loss, keras.losses.Loss) and not _of_keras(type(loss).call):
            _fit(loss, "call", f"loss {type(loss).__name__}", functools.partial(_goes_by_rows, loss.call))
        function = getattr(loss, "fn", None)
        if function is not None and not _of_keras(function):
            _check_rows(loss, getattr(function, "__name__", type(function).__name__))
        if isinstance(loss, keras.losses.Loss):
            _tell_reduction(loss)
    if any(getattr(output, "_keras_mask", None) is not None for output in _symbols(model)):
        _tell_once("the outputs have a mask, by which the loss of a batch is divided")


def _weigh_numbers(name: str, metric: Any, measure: Measure) -> None:
    """Let one number that a metric function returns for a batch count once for each of its rows, and say so.

    So a mean over rows is right, however they are cut into batches.
    """
    update_state, ranks = metric.update_state, list[int]()

    def weighed(label: Any, output: Any, sample_weight: Any = None) -> Any:
        if not ranks:
            ranks.append(len(keras.ops.shape(keras.ops.convert_to_tensor(measure(label, output)))))
            if not ranks[0]:
                _tell_once(f"metric {name!r} returns one number for a batch (of which the mean over rows is taken)")
        if sample_weight is None and not ranks[0]:
            sample_weight = keras.ops.shape(output)[0]
        return update_state(label, output, sample_weight=sample_weight)

    metric.update_state = weighed


def _tell_of_batches(model: Any, name: str, metric: Any) -> None:
    """Say of Keras' own metrics which are computed for each batch, and which take logits for probabilities."""
    kind = type(metric).__name__
    if kind in _OF_BATCHES and _of_keras(type(metric)):
        _tell_once(f"metric {name!r} ({kind}) is computed for each batch by itself")
    losses = [getattr(part, "loss", None) for part in getattr(model._compile_loss, "_flat_losses", None) or []]
    of_logits = any(_takes_logits(loss) for loss in losses)
    if kind == "AUC" and _of_keras(type(metric)) and of_logits and not getattr(metric, "_from_logits", False):
        _tell_logits(name)


def _takes_logits(loss: Any) -> bool:
    settings = getattr(loss, "_fn_kwargs", None) or {}
    return bool(getattr(loss, "from_logits", False) or settings.get("from_logits", False))


@functools.cache
def _tell_logits(name: str) -> None:
    _log.warning(
        "metric %r takes outputs for probabilities, but the loss takes them for logits: say AUC(from_logits=True)", name
    )


def _symbols(model: Any) -> list[Any]:
    """Return the symbols of a model's outputs; a model of a user's own class has none."""
    return list(getattr(model, "outputs", None) or [])


def _check_rows(loss: Any, name: str) -> None:
    """Have what a user's loss function returns checked: a value a row, or one number for a batch, which is said."""
    original, tried = loss.call, list[bool]()

    def checked(label: Any, output: Any) -> Any:
        value = original(label, output)
        shape, expected = tuple(keras.ops.shape(value)), tuple(output.shape)
        # While a graph is traced, the number of rows is not known.
        pairs = len(shape) == 2 and len(expected) <= 2 and tuple(value.shape) in (expected[:1] * 2, (None, None))
        if pairs and tuple(value.shape) != expected:
            raise ConfigurationError(_STRETCHES.format(name=name))
        if not shape:
            if not tried:
                tried.append(True)
                with _eagerly():
                    _check_pairs(name, functools.partial(loss.fn, **loss._fn_kwargs), label, output)
            _tell_once(f"loss {name} returns one number for a batch")
        return value

    loss.call = checked


def _check_pairs(name: str, measure: Measure, label: Any, output: Any) -> None:
    """Refuse a loss function that sees no difference if labels are moved to other rows, but would in other shapes."""
    row = tuple(output.shape[1:])
    if None in row or _without_ones(row):
        return
    others = [((), row), (row, ()), ((), ())] if row else [((1,), ()), ((), (1,)), ((1,), (1,))]
    tell = functools.partial(_sees_moves, measure, label.dtype, output.dtype)
    if tell(row, row) is False and any(tell(*shapes) for shapes in others):
        raise ConfigurationError(_STRETCHES.format(name=name))


def _sees_moves(measure: Measure, label_type: Any, output_type: Any, label: Row, output: Row) -> bool | None:
    """Whether a function of made-up rows in these shapes depends on which label is whose; None if it has no value."""
    outputs = keras.ops.cast(_OUTPUTS[0].reshape(-1, *output), output_type)
    moved = [keras.ops.cast(np.roll(_LABELS, by).reshape(-1, *label), label_type) for by in range(len(_LABELS))]
    try:
        values = [_array(measure(each, outputs)).mean() for each in moved]
    except Exception as error:  # of the user's function, for rows that are made up
        _log.debug("labels of shape %s were tried in vain: %r", label, error)
        return None
    return not _is_close(values, values[0])


def _tell_reduction(loss: Any) -> None:
    name = type(loss).__name__
    if getattr(loss, "reduction", None) in ("sum", "mean_with_sample_weight"):
        _tell_once(f"loss {name} has reduction={loss.reduction!r}")
    if getattr(loss, "ignore_class", None) is not None:
        _tell_once(f"loss {name} has ignore_class={loss.ignore_class}")


@functools.cache
def _tell_once(what: str) -> None:
    _log.warning(
        "%s, so that what is measured of it depends on which rows are in a batch: compare trials with different batch"
        " sizes by another metric",
        what,
    )


def _fit(owner: Any, method: str, what: str, goes_by_rows: Check) -> None:
    """Give `owner.method(label, output, ...)` labels with which it goes by rows: as they are, or reshaped."""
    original = getattr(owner, method)
    known: dict[tuple[Row, Row], Row | None] = {}

    def fitted(label: Any, output: Any, *rest: Any, **named: Any) -> Any:
        stored, wanted = tuple(label.shape[1:]), tuple(output.shape[1:])
        if stored == wanted or None in stored + wanted:
            return original(label, output, *rest, **named)
        alike = _without_ones(stored) == _without_ones(wanted)
        if not alike and (not stored or _without_ones(stored)):
            return original(label, output, *rest, **named)
        if (stored, wanted) not in known:
            with _eagerly():
                find = _find_shape if alike else _find_flat_shape
                known[stored, wanted] = find(goes_by_rows, stored, wanted, label.dtype, output.dtype)
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


def _find_flat_shape(goes_by_rows: Check, stored: Row, wanted: Row, label_type: Any, output_type: Any) -> Row:
    """Return the shape for labels of one number a row beside outputs of several: as they are, or without dimensions.

    A function that goes by rows with neither is meant for whole batches, and gets them as they are.
    """
    logits = np.random.default_rng(0).normal(size=(len(_LABELS), *wanted))
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    outputs = [keras.ops.cast(numbers, output_type) for numbers in (shares, logits)]
    for shape in (stored, ()):
        label = keras.ops.cast(_LABELS.reshape(-1, *shape), label_type)
        try:
            if all(goes_by_rows(label, output) for output in outputs):
                return shape
        except Exception as error:  # of the user's function, for rows that are made up
            _log.debug("labels of shape %s were tried in vain: %r", shape, error)
    return stored


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
