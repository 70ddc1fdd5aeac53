"""What classification metrics of torchmetrics are given: probabilities where outputs are logits. It computes none.

By themselves these metrics guess, for each batch, that values in [0, 1] are probabilities and all others logits. So
a batch of logits that happen to lie in [0, 1] would count as probabilities, and the value of the metric would depend
on how rows are cut into batches. The loss may say what outputs are. Where it is the user's own, all rows of an
evaluation tell it together: they are logits if any value lies outside [0, 1].
"""

from __future__ import annotations

import logging
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch

from cerebro_spark.trainer.torch.metric_states import list_held
from cerebro_spark.trainer.torch.shapes import list_tensors
from cerebro_spark.trainer.torch.undecided_metrics import (
    GuessingMetric,
    Normalize,
    Update,
)

_BY_SIGMOID = re.compile("(Binary|Multilabel)[A-Z]")
# Other metrics of several classes only look for the largest output.
_BY_SOFTMAX = {"MulticlassPrecisionRecallCurve", "MulticlassCalibrationError", "MulticlassHingeLoss"}
# So many logits do not all lie in [0, 1] by chance.
_TELLING = 32
_CLASSES = threading.RLock()
_log = logging.getLogger(__name__)


class MetricInputs(ABC):
    """Gives one metric object its batches, and knows what it was given.

    Args:
        name: The name of the metric.
        metric: The metric object.
        takes_logits: Whether the loss says that outputs are logits. What code between the model and the metric has
            computed from them is never taken for logits.
        device: Where the outputs are.
    """

    key: str
    """The name of what `get_carried` returns. It is no identifier, as the names of a metric's states are."""

    def __init__(self, name: str, metric: Any, takes_logits: bool, device: torch.device) -> None:
        self._name = name
        self._takes_logits = takes_logits
        self._guessing = list(_find_guessing(metric))
        # A row for each of these metrics: how many batches or values lie in [0, 1], and how many do not.
        self._counts = torch.zeros((len(self._guessing), 2), dtype=torch.float64, device=device)
        self._looks_normalized: torch.Tensor | None = None

    @property
    def guesses(self) -> bool:
        """Whether the metric, or one that it is made of, guesses what it is given."""
        return bool(self._guessing)

    @contextmanager
    def of(self, output: Any) -> Iterator[None]:
        """Inside, an update of the metric with this output is given what it should be."""
        told = {_storage(tensor) for tensor in list_tensors(output)} if self._takes_logits else set()
        with ExitStack() as stack:
            for number, each in enumerate(self._guessing):
                stack.enter_context(_replaced(each, partial(self._update, number), told))
            yield

    @abstractmethod
    def get_numbers(self) -> list[float]:
        """Return what is known of the inputs, as numbers that add up over partitions. It waits for the device."""

    @abstractmethod
    def finish(self, state: Sequence[float]) -> None:
        """Complete a metric that was put into a state that adds up, and warn as `check` does.

        Args:
            state: The state, which ends in a sum of what `get_numbers` returned.
        """

    @abstractmethod
    def get_carried(self) -> dict[str, Any]:
        """Return what is known of the inputs, as JSON for the next partition. It waits for the device."""

    @abstractmethod
    def set_carried(self, known: Any) -> None:
        """Go on from what the partition before has handed on, once the metric has its state."""

    @abstractmethod
    def check(self) -> None:
        """Warn if the inputs of all partitions look as if they were something else."""

    def _update(self, number: int, update: Callable[..., Any], told: set[int], *values: Any, **named: Any) -> None:
        """Update one of the metrics that guess, in place of its own `update`."""
        given, *rest = values or [named.pop("preds", None)]
        update_with = partial(_update_with, update, rest, named)
        if not isinstance(given, torch.Tensor) or not given.is_floating_point() or not given.numel():
            self._update_known(number, update_with, given)
            return
        with torch.no_grad():
            if _storage(given) not in told:
                self._update_untold(number, update_with, given, rest[0] if rest else named.get("target"))
                return
            if self._looks_normalized is None and given.numel() >= _TELLING:
                self._looks_normalized = ((given >= 0) & (given <= 1)).all()
            self._update_known(number, update_with, self._normalize(number, given))

    def _normalize(self, number: int, logits: torch.Tensor) -> torch.Tensor:
        return self._guessing[number].normalize(logits)

    @abstractmethod
    def _update_known(self, number: int, update: Update, given: Any) -> None:
        """Update a metric with what it need not guess about: probabilities of logits, or classes."""

    @abstractmethod
    def _update_untold(self, number: int, update: Update, given: torch.Tensor, target: Any) -> None:
        """Update a metric with values that may be probabilities or logits."""

    def _check_told(self) -> None:
        """Warn if the loss seems wrong."""
        if self._looks_normalized is not None and self._looks_normalized:
            _warn_of_probabilities(self._name)


@contextmanager
def _replaced(guessing: GuessingMetric, replacement: Callable[..., None], told: set[int]) -> Iterator[None]:
    """Inside, `replacement(update, told, ...)` is called in place of a metric's own update.

    A class of the user's calls the update of the class that it is made from: that one is replaced, for one metric.
    """
    metric, base = guessing.metric, guessing.base
    if base is None:
        own = vars(metric).get("update")
        vars(metric)["update"] = partial(replacement, metric.update, told)
        try:
            yield
        finally:
            vars(metric).pop("update")
            if own is not None:
                vars(metric)["update"] = own
        return
    # The class is the same for all threads of a process.
    with _CLASSES:
        yield from _replace_base(metric, base, replacement, told)


def _replace_base(metric: Any, base: Any, replacement: Callable[..., None], told: set[int]) -> Iterator[None]:
    original = base.update

    def update(self: Any, *values: Any, **named: Any) -> None:
        if self is metric:
            replacement(partial(original, self), told, *values, **named)
        else:
            original(self, *values, **named)

    base.update = update
    try:
        yield
    finally:
        base.update = original


def _update_with(update: Callable[..., Any], rest: Sequence[Any], named: Mapping[str, Any], preds: Any) -> None:
    update(preds, *rest, **named)


def _find_guessing(metric: Any) -> Iterator[GuessingMetric]:
    parts = list(metric.named_modules()) if isinstance(metric, torch.nn.Module) else []
    for name, held in list_held(metric):
        parts += [(f"{name}.{path}" if path else name, part) for path, part in held.named_modules()]
    for path, part in parts:
        base, normalize = _find_normalization(type(part))
        # With `normalization=None` a metric takes values as they are, and guesses nothing.
        if normalize is not None and getattr(part, "normalization", "") is not None:
            yield GuessingMetric(metric, path, normalize, base)


def _find_normalization(kind: type) -> tuple[Any, Normalize | None]:
    """Return what a class of torchmetrics does to logits; None for others.

    If the user has written its update, the class that it is made from comes with it.
    """
    base: Any = next((each for each in kind.__mro__ if _is_classifying(each) and "update" in vars(each)), None)
    if base is None:
        return None, None
    own = _is_classifying(next(each for each in kind.__mro__ if "update" in vars(each)))
    names = {each.__name__ for each in kind.__mro__ if _is_classifying(each)}
    normalize: Normalize | None = torch.sigmoid if any(map(_BY_SIGMOID.match, names)) else None
    return None if own else base, _softmax if names & _BY_SOFTMAX else normalize


def _is_classifying(kind: type) -> bool:
    return kind.__module__.startswith("torchmetrics.classification.")


def _softmax(output: torch.Tensor) -> torch.Tensor:
    """Return the chances of classes; an output without a dimension of classes is left for the metric to refuse."""
    return output.softmax(1) if output.ndim > 1 else output


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
