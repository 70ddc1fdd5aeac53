"""What a classification metric says both if its inputs are probabilities and if they are logits, until that is known.

The metric itself is updated as if they were probabilities. Nothing here decides what they are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from cerebro_spark.trainer.torch.metric_states import (
    States,
    copy_states,
    decode_states,
    encode_states,
    exchange_states,
    flatten_states,
    get_part,
    unflatten_states,
)

Normalize = Callable[[torch.Tensor], torch.Tensor]
Update = Callable[[Any], None]

_COMPOSITION = "torchmetrics.metric.CompositionalMetric"
_CURVES = "torchmetrics.classification.precision_recall_curve"


class GuessingMetric(NamedTuple):
    """A metric that guesses for each batch whether it is given logits, alone or inside another.

    Attributes:
        whole: The metric that it is a part of, or itself.
        path: Where it is in the whole.
        normalize: What makes probabilities of logits.
        base: The class of torchmetrics that has its update, if a class of the user's is made from that and has another.
    """

    whole: Any
    path: str
    normalize: Normalize
    base: Any = None

    @property
    def metric(self) -> Any:
        """The metric as it is now: a `reset` of the whole may have made another."""
        return get_part(self.whole, self.path)

    @property
    def gets_outputs(self) -> bool:
        """Whether it is given outputs as they are: it is the whole metric, or compositions alone are around it."""
        around = self._list_around()
        return self.base is None and all(f"{kind.__module__}.{kind.__name__}" == _COMPOSITION for kind in around)

    @property
    def is_only_updated(self) -> bool:
        """Whether nothing but its `update` changes its state, once for each update of the whole.

        A class of the user's own around it might compute a value for each batch, and put the state back.
        """
        updates = [getattr(kind, "update", None) for kind in self._list_around()]
        owners = [str(getattr(update, "__module__", "")) for update in updates]
        return self.base is None and all(owner.startswith("torchmetrics.") for owner in owners)

    def _list_around(self) -> list[Any]:
        """Return the classes of the modules around it."""
        names = self.path.split(".") if self.path else []
        return [type(get_part(self.whole, ".".join(names[:depth]))) for depth in range(len(names))]


class UndecidedMetric(ABC):
    """Updates a metric, and knows what it would be if its inputs were logits."""

    @abstractmethod
    def update(self, update: Update, probabilities: Any, of_logits: Any, is_open: torch.Tensor) -> None:
        """Count a batch.

        Args:
            update: The metric's own update, given predictions.
            probabilities: The predictions as probabilities, if they may be that; else as `of_logits`.
            of_logits: The predictions as probabilities, if they are logits.
            is_open: Whether they may be probabilities. It may still be on its way on a device.
        """

    @abstractmethod
    def update_known(self, update: Update, given: Any) -> None:
        """Count a batch of which it is known what it is."""

    @abstractmethod
    def take_logits(self) -> None:
        """Let the metric be as if all inputs of which it is not known had been logits."""

    @abstractmethod
    def get_carried(self) -> Any:
        """Return what is known besides the state of the metric, as JSON."""

    @abstractmethod
    def set_carried(self, known: Any, device: torch.device) -> None:
        """Go on from what `get_carried` returned, once the metric has its state."""


class ToldMetric(UndecidedMetric):
    """Of a metric whose inputs are all known there is nothing more to know."""

    def update(self, update: Update, probabilities: Any, of_logits: Any, is_open: torch.Tensor) -> None:
        update(of_logits)

    def update_known(self, update: Update, given: Any) -> None:
        update(given)

    def take_logits(self) -> None:
        pass

    def get_carried(self) -> Any:
        return None

    def set_carried(self, known: Any, device: torch.device) -> None:
        pass


class TwinState(UndecidedMetric):
    """Keeps a second state of the metric, as if inputs were logits. It begins when the first batch is not known."""

    def __init__(self, guessing: GuessingMetric) -> None:
        self._guessing = guessing
        self._states: States | None = None

    def update(self, update: Update, probabilities: Any, of_logits: Any, is_open: torch.Tensor) -> None:
        if self._states is None:
            self._states = copy_states(self._guessing.metric)
        update(probabilities)
        with self._exchanged():
            update(of_logits)

    def update_known(self, update: Update, given: Any) -> None:
        update(given)
        if self._states is not None:
            with self._exchanged():
                update(given)

    def take_logits(self) -> None:
        if self._states is not None:
            exchange_states(self._guessing.metric, self._states)
            self._states = None

    def get_carried(self) -> Any:
        return None if self._states is None else encode_states(self._states)

    def set_carried(self, known: Any, device: torch.device) -> None:
        self._states = None if known is None else decode_states(known, device)

    def get_numbers(self) -> list[float]:
        """Return the second state as numbers, if the states of the metric add up."""
        return flatten_states(copy_states(self._guessing.metric) if self._states is None else self._states)

    def set_numbers(self, numbers: Sequence[float]) -> None:
        """Take on a sum of what `get_numbers` returned."""
        self._states = unflatten_states(copy_states(self._guessing.metric), numbers)

    @contextmanager
    def _exchanged(self) -> Iterator[None]:
        """Inside, the metric has its second state."""
        metric = self._guessing.metric
        assert self._states is not None
        updates, own = metric._update_count, exchange_states(metric, self._states)
        try:
            yield
        finally:
            self._states = exchange_states(metric, own)
            metric._update_count = updates


class OpenPredictions(UndecidedMetric):
    """Knows which predictions are still open, of a metric that keeps them all: a second state would be as large."""

    def __init__(self, guessing: GuessingMetric) -> None:
        self._guessing = guessing
        # For each batch in the metric's list. On a device they are read once, at the end.
        self._open: list[Any] = []

    def update(self, update: Update, probabilities: Any, of_logits: Any, is_open: torch.Tensor) -> None:
        update(probabilities)
        self._mark(is_open)

    def update_known(self, update: Update, given: Any) -> None:
        update(given)
        self._mark(False)

    def take_logits(self) -> None:
        metric, marks = self._guessing.metric, self.get_carried()
        metric.preds = [self._normalize(kept) if mark else kept for kept, mark in zip(metric.preds, marks, strict=True)]
        self._open = [False] * len(marks)

    def get_carried(self) -> Any:
        if not self._open:
            return []
        device = next((mark.device for mark in self._open if isinstance(mark, torch.Tensor)), torch.device("cpu"))
        return torch.stack([torch.as_tensor(mark, device=device) for mark in self._open]).tolist()

    def set_carried(self, known: Any, device: torch.device) -> None:
        self._open = list(known)

    def _mark(self, is_open: Any) -> None:
        self._open += [is_open] * (len(self._guessing.metric.preds) - len(self._open))

    def _normalize(self, kept: torch.Tensor) -> torch.Tensor:
        """Make probabilities of predictions as the metric keeps them: a row for each; all in one if they are pooled."""
        classes = getattr(self._guessing.metric, "num_classes", None)
        rows = kept.reshape(-1, classes) if classes and kept.ndim == 1 else kept
        return self._guessing.normalize(rows).reshape(kept.shape)


def make_undecided(guessing: GuessingMetric, takes_logits: bool) -> UndecidedMetric:
    """Return what knows both ways of a metric at the least cost, if the loss does or does not take logits."""
    if takes_logits and guessing.gets_outputs:
        return ToldMetric()
    metric = guessing.metric
    keeps_all = isinstance(metric._defaults.get("preds"), list) and type(metric).update.__module__ == _CURVES
    return OpenPredictions(guessing) if keeps_all else TwinState(guessing)
