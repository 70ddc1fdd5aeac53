"""What classification metrics of torchmetrics are given: probabilities where the loss takes logits. It computes none.

By themselves these metrics guess, for each batch, that values in [0, 1] are probabilities and all others logits. So
a batch of logits that happen to lie in [0, 1] would count as probabilities, and the value of the metric would depend
on how rows are cut into batches. Where the loss is the user's own, nobody can say what they are: a warning tells if a
metric has guessed both ways.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch

from cerebro_spark.trainer.torch.shapes import list_tensors

Normalize = Callable[[torch.Tensor], torch.Tensor]

_BY_SIGMOID = re.compile("(Binary|Multilabel)[A-Z]")
# Other metrics of several classes only look for the largest output.
_BY_SOFTMAX = {"MulticlassPrecisionRecallCurve", "MulticlassCalibrationError", "MulticlassHingeLoss"}
# So many logits do not all lie in [0, 1] by chance.
_TELLING = 32
_log = logging.getLogger(__name__)


class _Guessing(NamedTuple):
    """A metric that guesses for each batch, alone or inside another, and what it does to logits."""

    metric: Any
    normalize: Normalize


class MetricInputs:
    """Gives one metric object its batches, and counts those about which it has to guess.

    Args:
        name: The name of the metric.
        metric: The metric object.
        takes_logits: Whether the loss says that outputs are logits. What code between the model and the metric has
            computed from them is never taken for logits.
        device: Where the outputs are.
    """

    def __init__(self, name: str, metric: Any, takes_logits: bool, device: torch.device) -> None:
        self._name = name
        self._takes_logits = takes_logits
        self._guessing = list(_find_guessing(metric))
        # A row for each of these metrics: batches with all values in [0, 1], and batches with others.
        self._counts = torch.zeros((len(self._guessing), 2), dtype=torch.float64, device=device)
        self._looks_normalized: torch.Tensor | None = None

    @property
    def guesses(self) -> bool:
        """Whether the metric, or one that it is made of, guesses what it is given."""
        return bool(self._guessing)

    @contextmanager
    def of(self, output: Any) -> Iterator[None]:
        """Inside, an update of the metric with this output is given what it should be."""
        if not self._guessing:
            yield
            return
        logits = {_storage(tensor) for tensor in list_tensors(output)} if self._takes_logits else set()
        before = [vars(each.metric).get("update") for each in self._guessing]
        for number, each in enumerate(self._guessing):
            vars(each.metric)["update"] = partial(self._update, number, each.metric.update, logits)
        try:
            yield
        finally:
            for each, own in zip(self._guessing, before, strict=True):
                vars(each.metric).pop("update")
                if own is not None:
                    vars(each.metric)["update"] = own

    def count(self) -> list[float]:
        """Return the counts of batches, as numbers that add up over partitions. It waits for the device."""
        counts: list[float] = self._counts.reshape(-1).tolist()
        return counts

    def add(self, counts: Sequence[float]) -> None:
        """Add the counts of the partitions before."""
        self._counts += torch.tensor(counts, dtype=torch.float64, device=self._counts.device).reshape(-1, 2)

    def check(self, counts: Sequence[float]) -> None:
        """Warn if a metric had to guess, and has not guessed the same for all batches, or if the loss seems wrong."""
        for each, inside, beyond in zip(self._guessing, counts[::2], counts[1::2], strict=True):
            if inside and beyond:
                _warn_of_guesses(self._name, type(each.metric).__name__, self._takes_logits)
        if self._looks_normalized is not None and self._looks_normalized:
            _warn_of_probabilities(self._name)

    def _update(self, number: int, update: Callable[..., Any], logits: set[int], *values: Any, **named: Any) -> None:
        """Update one of the metrics that guess, in place of its own `update`."""
        given = values[0] if values else named.get("preds")
        if isinstance(given, torch.Tensor) and given.is_floating_point() and given.numel():
            fit = self._fit(number, given, logits)
            values, named = ((fit, *values[1:]), named) if values else (values, {**named, "preds": fit})
        update(*values, **named)

    @torch.no_grad()
    def _fit(self, number: int, given: torch.Tensor, logits: set[int]) -> torch.Tensor:
        if _storage(given) in logits:
            if self._looks_normalized is None and given.numel() >= _TELLING:
                self._looks_normalized = ((given >= 0) & (given <= 1)).all()
            return self._guessing[number].normalize(given)
        beyond = ((given < 0) | (given > 1)).any()
        inside = ((given >= 0) & (given <= 1)).all()  # neither, if some are no numbers
        self._counts[number] += torch.stack([inside, beyond])
        return given


def _find_guessing(metric: Any) -> Iterator[_Guessing]:
    parts = metric.modules() if isinstance(metric, torch.nn.Module) else ()
    for part in parts:
        normalize = _find_normalization(type(part))
        # With `normalization=None` a metric takes values as they are, and guesses nothing.
        if normalize is not None and getattr(part, "normalization", "") is not None:
            yield _Guessing(part, normalize)


def _find_normalization(kind: type) -> Normalize | None:
    """Return what a class of torchmetrics does to logits; None for others, and where the user wrote the update."""
    update = getattr(kind, "update", None)
    if not str(getattr(update, "__module__", "")).startswith("torchmetrics.classification."):
        return None
    names = {base.__name__ for base in kind.__mro__ if base.__module__.startswith("torchmetrics.classification.")}
    if names & _BY_SOFTMAX:
        return _softmax
    return torch.sigmoid if any(map(_BY_SIGMOID.match, names)) else None


def _softmax(output: torch.Tensor) -> torch.Tensor:
    """Return the chances of classes; an output without a dimension of classes is left for the metric to refuse."""
    return output.softmax(1) if output.ndim > 1 else output


@cache
def _warn_of_guesses(name: str, kind: str, takes_logits: bool) -> None:
    better = "" if takes_logits else "; or use PyTorch's own nn.BCEWithLogitsLoss or nn.CrossEntropyLoss, which say it"
    _log.warning(
        "metric %r got batches with all values in [0, 1], which torchmetrics' %s takes for probabilities, and others,"
        " which it takes for logits: if outputs are logits, its value depends on how rows are cut into batches. Give it"
        " probabilities: torchmetrics.wrappers.LambdaInputTransformer(%s(...), transform_pred=torch.sigmoid), or"
        " `lambda logits: logits.softmax(1)`%s",
        *(name, kind, kind, better),
    )


@cache
def _warn_of_probabilities(name: str) -> None:
    _log.warning(
        "metric %r: the loss takes logits, but the outputs of a whole batch lie in [0, 1], as probabilities do. The"
        " metric gets their sigmoid or softmax, as the loss does: let the model end without one of its own",
        name,
    )


def _storage(tensor: torch.Tensor) -> int:
    """Return what a tensor and its views have in common."""
    return tensor.untyped_storage().data_ptr()
