"""Lets all rows of an evaluation tell classification metrics together if they see logits, where the loss does not."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from cerebro_spark.trainer.torch.metric_inputs import MetricInputs
from cerebro_spark.trainer.torch.undecided_metrics import TwinState, Update, make_undecided

# Of logits, more than this share lies outside [0, 1].
_FEW = 0.05
# By so many times the precision of its type may a probability lie outside [0, 1].
_ROUNDING = 4
_COUNTS, _METRICS = "values", "metrics"
_log = logging.getLogger(__name__)


class RowwiseInputs(MetricInputs):
    """Takes all inputs for logits if any of them lies outside [0, 1], as a metric does that is given all rows at once.

    Until then each metric is known both ways, so nothing but its updates may change it (`suits`). What is no number
    counts as outside, and a row that the metric ignores as inside.
    """

    key = "values in and beyond [0, 1]"

    def __init__(self, name: str, metric: Any, takes_logits: bool, device: torch.device) -> None:
        super().__init__(name, metric, takes_logits, device)
        self._undecided = [make_undecided(each, takes_logits) for each in self._guessing]
        # Whether a metric's inputs are known to be logits.
        self._are_logits = [False] * len(self._guessing)

    @property
    def suits(self) -> bool:
        """Whether all metrics that guess are updated by torchmetrics' own code alone."""
        return all(each.is_only_updated for each in self._guessing)

    def get_numbers(self) -> list[float]:
        self._check_told()
        twins = [number for each in self._list_twins() for number in each.get_numbers()]
        return twins + [float(count) for count in self._counts.reshape(-1).tolist()]

    def finish(self, state: Sequence[float]) -> None:
        twins = self._list_twins()
        sizes = [len(each.get_numbers()) for each in twins]
        rest = state[len(state) - sum(sizes) - self._counts.numel() :]
        self._set_counts(rest[sum(sizes) :])
        for each, size in zip(twins, sizes, strict=True):
            each.set_numbers(rest[:size])
            rest = rest[size:]
        self._decide()
        self.check()

    def get_carried(self) -> dict[str, Any]:
        self._check_told()
        self._decide()
        metrics = [each.get_carried() for each in self._undecided]
        return {self.key: {_COUNTS: self._counts.reshape(-1).tolist(), _METRICS: metrics}}

    def set_carried(self, known: Any) -> None:
        self._set_counts(known[_COUNTS])
        for each, own in zip(self._undecided, known[_METRICS], strict=True):
            each.set_carried(own, self._counts.device)
        self._decide()

    def check(self) -> None:
        for each, (inside, beyond) in zip(self._guessing, self._counts.tolist(), strict=True):
            if 0 < beyond < _FEW * (inside + beyond):
                _warn_of_few(self._name, type(each.metric).__name__, int(beyond), int(inside + beyond))

    def _update_known(self, number: int, update: Update, given: Any) -> None:
        self._undecided[number].update_known(update, given)

    def _update_untold(self, number: int, update: Update, given: torch.Tensor, target: Any) -> None:
        given = _without_ignored(given, target, getattr(self._guessing[number].metric, "ignore_index", None))
        slack = _ROUNDING * torch.finfo(given.dtype).eps
        inside = (given >= -slack) & (given <= 1 + slack)
        self._counts[number] += torch.stack([inside.sum(), (~inside).sum()])
        # What is known need not be kept both ways.
        if not self._are_logits[number] and _is_free_to_read(inside) and not inside.all():
            self._take_logits(number)
        of_logits = self._normalize(number, given)
        if self._are_logits[number]:
            self._undecided[number].update_known(update, of_logits)
        else:
            is_open = inside.all()
            probabilities = torch.where(is_open, given.clamp(0, 1), of_logits)
            self._undecided[number].update(update, probabilities, of_logits, is_open)

    def _normalize(self, number: int, logits: torch.Tensor) -> torch.Tensor:
        # On a CPU torchmetrics takes a batch for logits, too, if something in it is no number. It does so once.
        if logits.device.type == "cpu" and bool(logits.isnan().any()):
            return logits
        return super()._normalize(number, logits)

    def _list_twins(self) -> list[TwinState]:
        """Return the second states, all of which add up if the state of the metric does."""
        return [each for each in self._undecided if isinstance(each, TwinState)]

    def _set_counts(self, counts: Sequence[float]) -> None:
        """Take on the counts of partitions before; what follows from them is for `_decide`."""
        self._counts = torch.tensor(counts, dtype=torch.float64, device=self._counts.device).reshape(-1, 2)
        self._are_logits = [False] * len(self._guessing)

    def _decide(self) -> None:
        """Take for logits what is known to be. It waits for the device."""
        for number, (_, beyond) in enumerate(self._counts.tolist()):
            if beyond and not self._are_logits[number]:
                self._take_logits(number)

    def _take_logits(self, number: int) -> None:
        self._undecided[number].take_logits()
        self._are_logits[number] = True


def _is_free_to_read(tensor: torch.Tensor) -> bool:
    """Whether nobody waits if the values of a tensor are asked for."""
    return tensor.device.type == "cpu"


def _without_ignored(given: torch.Tensor, target: Any, ignored: int | None) -> torch.Tensor:
    """Return predictions with 0 in place of those whose target a metric ignores. These say nothing of the others."""
    if ignored is None or not isinstance(target, torch.Tensor):
        return given
    of_classes = target.ndim + 1 == given.ndim
    mask = (target == ignored).unsqueeze(1) if of_classes else target == ignored
    wanted = (len(given), 1, *given.shape[2:]) if of_classes else given.shape
    # Other shapes are left for the metric to refuse.
    return given.masked_fill(mask.expand_as(given), 0) if mask.shape == wanted else given


@cache
def _warn_of_few(name: str, kind: str, few: int, values: int) -> None:
    _log.warning(
        "metric %r: %d of %d values that torchmetrics' %s was given lie outside [0, 1], so all are taken for logits. If"
        " they are meant to be probabilities, clamp them:"
        " torchmetrics.wrappers.LambdaInputTransformer(%s(...), transform_pred=lambda output: output.clamp(0, 1))",
        *(name, few, values, kind, kind),
    )
