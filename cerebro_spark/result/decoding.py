"""Decodes the outputs of models: a class with its probabilities, or a number. PURE: arrays in, arrays out.

The meaning of an output follows from the loss: it is logits if the loss takes logits. Losses are known by name
alone. Of an unknown loss nothing is assumed: the output stays as it is unless the user says what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.errors import ConfigurationError, DataError

Family = Literal["binary", "multiclass"]
Scale = Literal["logits", "probabilities", "log_probabilities", "margins"]
Array = NDArray[Any]

KINDS = ("regression", "binary", "binary_logits", "multiclass", "multiclass_logits")

_ROUNDING = 1e-3
# The largest float64 below 1: the logit of a probability that was rounded to 1 stays finite.
_NEARLY_ONE = 1 - 2.0**-53
_TINY = np.finfo("float64").tiny


class Meaning(NamedTuple):
    """The meaning of an output: how it tells classes apart, and on which scale."""

    family: Family
    scale: Scale


_TORCH = {
    "BCEWithLogitsLoss": Meaning("binary", "logits"),
    "BCELoss": Meaning("binary", "probabilities"),
    "CrossEntropyLoss": Meaning("multiclass", "logits"),
    "NLLLoss": Meaning("multiclass", "log_probabilities"),
    "MultiMarginLoss": Meaning("multiclass", "margins"),
    "binary_cross_entropy_with_logits": Meaning("binary", "logits"),
    "binary_cross_entropy": Meaning("binary", "probabilities"),
    "cross_entropy": Meaning("multiclass", "logits"),
    "nll_loss": Meaning("multiclass", "log_probabilities"),
    "multi_margin_loss": Meaning("multiclass", "margins"),
}
_KERAS: dict[str, Family] = {
    "bce": "binary",
    "binarycrossentropy": "binary",
    "binaryfocalcrossentropy": "binary",
    "categoricalcrossentropy": "multiclass",
    "categoricalfocalcrossentropy": "multiclass",
    "sparsecategoricalcrossentropy": "multiclass",
}


@dataclass(frozen=True, slots=True)
class OutputDecoder:
    """Decodes the output of a classifier. `told` is true if only the user, and not the loss, gives its meaning."""

    family: Family
    scale: Scale
    told: bool = False

    def decode(self, output: Array) -> dict[str, Array]:
        """Return the class of each row, and its probabilities and raw scores if there are any, a column a class.

        >>> decoded = OutputDecoder("binary", "probabilities").decode(np.array([0.25, 0.75]))
        >>> decoded["prediction"].tolist(), decoded["probability"].tolist()
        ([0.0, 1.0], [[0.75, 0.25], [0.25, 0.75]])
        """
        if self.told:
            self._check(output)
        values = np.asarray(output, "float64")
        return _decode_two(values, self.scale) if self.family == "binary" else _decode_many(values, self.scale)

    def _check(self, output: Array) -> None:
        """Refuse values that are no probabilities: that is what kind='binary' says of them."""
        beyond = output[(output < -_ROUNDING) | (output > 1 + _ROUNDING)]
        off = np.abs(output.sum(axis=1) - 1) > _ROUNDING if self.family == "multiclass" else np.zeros(0, bool)
        if beyond.size or off.any():
            found = f"{beyond.flat[0]:g}" if beyond.size else f"probabilities that add up to {output[off][0].sum():g}"
            raise DataError(
                f"`kind` is {self.family!r}, which with a loss of your own says that the model puts out probabilities,"
                f" but it put out {found}: say kind='{self.family}_logits' if these are logits"
            )


def choose_decoder(kind: str | None, loss: Any, shape: Sequence[int]) -> OutputDecoder | None:
    """Return the decoder of an output; None if it stays as it is.

    Args:
        kind: What the user says of it, one of KINDS; None if the loss decides.
        loss: The loss of the model.
        shape: The shape of one row of the output.

    Raises:
        ConfigurationError: `kind` is none of KINDS, or does not fit the shape.

    >>> choose_decoder(None, "binary_crossentropy", ())
    OutputDecoder(family='binary', scale='probabilities', told=False)
    >>> choose_decoder("multiclass_logits", None, (3,)).scale
    'logits'
    """
    known = find_meaning(loss)
    if kind is None:
        if known is None or len(shape) != (0 if known.family == "binary" else 1):
            return None
        return OutputDecoder(*known)
    check_kind(kind)
    if kind == "regression":
        return None
    family = _check_family(kind, shape)
    if kind.endswith("_logits"):
        return OutputDecoder(family, "logits")
    if known is None or (family, known.family) == ("binary", "multiclass"):
        return OutputDecoder(family, "probabilities", told=True)
    # One output a class, each trained by itself: the largest says something, their sum does not.
    return OutputDecoder(family, known.scale if family == known.family else "margins")


def check_kind(kind: Any) -> None:
    """Raise ConfigurationError unless it is None or one of KINDS.

    >>> check_kind("classification")
    Traceback (most recent call last):
    cerebro_spark.errors.ConfigurationError: `kind` is 'classification', but must be one of 'regression', 'binary',
    'binary_logits', 'multiclass', 'multiclass_logits', or None, where the loss tells
    """
    if kind is not None and kind not in KINDS:
        allowed = ", ".join(map(repr, KINDS))
        raise ConfigurationError(f"`kind` is {kind!r}, but must be one of {allowed}, or None, where the loss tells")


def decode_outputs(decoder: OutputDecoder | None, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return what goes into columns: several outputs as they are, or "prediction" and what belongs to it."""
    if len(outputs) != 1:
        return dict(outputs)
    (output,) = outputs.values()
    if decoder is not None:
        return decoder.decode(output)
    return {"prediction": np.asarray(output, "float64") if output.ndim == 1 else output}


def to_cells(values: Any) -> Any:
    """Return values as a column of a table: an array of several dimensions becomes a list of its rows."""
    return list(values) if isinstance(values, np.ndarray) and values.ndim > 1 else values


def find_meaning(loss: Any) -> Meaning | None:
    """Return the meaning of an output by its loss; None if the loss is not known.

    Known are the losses of PyTorch and Keras, and classes derived from them, as objects, functions or names.

    >>> find_meaning("sparse_categorical_crossentropy")
    Meaning(family='multiclass', scale='probabilities')
    """
    while isinstance(loss, Mapping | list | tuple) and len(loss) == 1:
        (loss,) = loss.values() if isinstance(loss, Mapping) else loss
    if isinstance(loss, str):
        return _keras_meaning(loss, False)
    given: Mapping[str, Any] = {}
    if isinstance(loss, partial):
        loss, given = loss.func, loss.keywords
    for part in (loss,) if hasattr(loss, "__name__") else type(loss).__mro__:
        module, name = str(getattr(part, "__module__", "")), str(getattr(part, "__name__", ""))
        if module in ("torch.nn.modules.loss", "torch.nn.functional") and name in _TORCH:
            return _TORCH[name]
        if module.partition(".")[0] in ("keras", "tf_keras"):
            found = _keras_meaning(name, bool(given.get("from_logits", getattr(loss, "from_logits", False))))
            if found is not None:
                return found
    return None


def _keras_meaning(name: str, from_logits: bool) -> Meaning | None:
    family = _KERAS.get(name.replace("_", "").lower())
    return None if family is None else Meaning(family, "logits" if from_logits else "probabilities")


def _check_family(kind: str, shape: Sequence[int]) -> Family:
    """Return the family for a kind that the user gave. Two classes may have an output each."""
    wanted = kind.removesuffix("_logits")
    if len(shape) == 1 and (wanted == "multiclass" or shape[0] == 2):
        return "multiclass"
    if wanted == "binary" and not shape:
        return "binary"
    found = "one value" if not shape else f"values of shape {tuple(shape)}"
    rule, other = ("one value or two", "multiclass") if wanted == "binary" else ("a value a class", "binary")
    raise ConfigurationError(
        f"`kind` is {kind!r}, which needs {rule} a row, but the model puts out {found}: say kind="
        + ("'regression', for the output as it is" if len(shape) > 1 else f"'{kind.replace(wanted, other)}'")
    )


def _decode_two(values: Array, scale: Scale) -> dict[str, Array]:
    if scale == "logits":
        small = np.exp(-np.abs(values))
        likely = np.where(values >= 0, 1.0, small) / (1 + small)
        unlikely = np.where(values >= 0, small, 1.0) / (1 + small)
        logits, positive = values, values > 0
    else:
        likely = np.clip(values, 0.0, 1.0)
        unlikely, positive = 1 - likely, likely > 0.5
        bounded = np.clip(likely, _TINY, _NEARLY_ONE)
        logits = np.log(bounded) - np.log1p(-bounded)
    return {
        "prediction": np.where(np.isnan(values), np.nan, positive),
        "probability": np.stack([unlikely, likely], axis=1),
        "rawPrediction": np.stack([-logits, logits], axis=1),
    }


def _decode_many(values: Array, scale: Scale) -> dict[str, Array]:
    lost = np.isnan(values).any(axis=1)
    found = {"prediction": np.where(lost, np.nan, values.argmax(axis=1))}
    if scale == "margins":
        return {**found, "rawPrediction": values}
    if scale == "probabilities":
        # As Keras' own losses do with probabilities that do not add up to one.
        likely = np.maximum(values, 0.0)
        total = likely.sum(axis=1, keepdims=True)
        likely = np.divide(likely, total, out=likely, where=total > 0)
        return {**found, "probability": likely, "rawPrediction": np.log(np.maximum(likely, _TINY))}
    with np.errstate(invalid="ignore"):  # infinite logits have no probabilities: NaN says so
        small = np.exp(values - values.max(axis=1, keepdims=True))
    return {**found, "probability": small / small.sum(axis=1, keepdims=True), "rawPrediction": values}
