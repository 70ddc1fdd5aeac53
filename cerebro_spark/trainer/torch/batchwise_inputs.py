"""Lets classification metrics guess for each batch if they see logits, where the loss does not say it, and warns.

That is the rule of older runs, and of metrics inside a class of the user's own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from cerebro_spark.trainer.torch.metric_inputs import MetricInputs
from cerebro_spark.trainer.torch.undecided_metrics import Update

_log = logging.getLogger(__name__)


class BatchwiseInputs(MetricInputs):
    """Lets a metric guess for each batch where the loss does not say what it is given."""

    key = "batches in and beyond [0, 1]"

    def get_numbers(self) -> list[float]:
        self.check()
        return self._list_counts()

    def finish(self, state: Sequence[float]) -> None:
        self._check_counts(state[-self._counts.numel() :])
        self._check_told()

    def get_carried(self) -> dict[str, Any]:
        return {self.key: self.get_numbers()}

    def set_carried(self, known: Any) -> None:
        self._counts += torch.tensor(known, dtype=torch.float64, device=self._counts.device).reshape(-1, 2)

    def check(self) -> None:
        self._check_counts(self._list_counts())
        self._check_told()

    def _update_known(self, number: int, update: Update, given: Any) -> None:
        update(given)

    def _update_untold(self, number: int, update: Update, given: torch.Tensor, target: Any) -> None:
        beyond = ((given < 0) | (given > 1)).any()
        inside = ((given >= 0) & (given <= 1)).all()  # neither, if some are no numbers
        self._counts[number] += torch.stack([inside, beyond])
        update(given)

    def _list_counts(self) -> list[float]:
        counts: list[float] = self._counts.reshape(-1).tolist()
        return counts

    def _check_counts(self, counts: Sequence[float]) -> None:
        for each, inside, beyond in zip(self._guessing, counts[::2], counts[1::2], strict=True):
            if inside and beyond:
                _warn_of_guesses(self._name, type(each.metric).__name__, self._takes_logits)


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
