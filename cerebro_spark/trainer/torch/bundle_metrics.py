"""Counts what the batches of a bundle give, for each member by itself. It never waits for a GPU inside a unit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cerebro_spark.trainer.torch.graph_bundle import BundleResult
from cerebro_spark.trainer.torch.metrics import MetricCollector, copy_output


class BundleMetrics:
    """Collects the losses and metrics of all members of a bundle.

    Args:
        collectors: The collector of each member.

    Attributes:
        collectors: The collectors.
        counts_only_losses: Whether there are no metrics besides the loss, so that no code of the user's runs.
    """

    def __init__(self, collectors: Sequence[MetricCollector]) -> None:
        self.collectors = collectors
        self.counts_only_losses = all(collector.counts_only_losses for collector in collectors)
        self._losses: list[torch.Tensor] = []
        self._weights: list[torch.Tensor] = []

    def add(self, result: BundleResult) -> None:
        """Count a batch. What it gave may be written again afterwards."""
        if not self.counts_only_losses:
            for collector, one in zip(self.collectors, result.results, strict=True):
                collector.add(*copy_output(one))
            return
        self._losses.append(result.losses.clone())
        if result.weights is not None:
            self._weights.append(result.weights.clone())

    def end(self, sizes: Sequence[int]) -> None:
        """All batches were counted; `sizes` are their rows."""
        if not self._losses:
            return
        losses = torch.stack(self._losses, 1)
        weights = torch.stack(self._weights, 1) if self._weights else None
        for row, collector in enumerate(self.collectors):
            collector.add_all(losses[row], None if weights is None else weights[row], sizes)
