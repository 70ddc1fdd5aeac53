"""Metrics around metrics of torchmetrics, right and wrong ones: apart, because to import torchmetrics takes seconds."""

from __future__ import annotations

from typing import Any

import torch
import torchmetrics
from torchmetrics import classification, regression, wrappers

__all__ = ["COMPOSED", "REFUSED", "classification", "regression", "torchmetrics"]


def accuracy() -> Any:
    return classification.BinaryAccuracy()


def auc() -> Any:
    return classification.BinaryAUROC()


class Doubled(torchmetrics.Metric):
    """A user's own metric around another."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = accuracy()
        self.seen: Any
        self.add_state("seen", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.inner.update(output, label)
        self.seen += len(label)

    def compute(self) -> Any:
        return 2 * self.inner.compute() + self.seen

    def reset(self) -> None:
        super().reset()
        self.inner.reset()


class Errors(torchmetrics.MeanMetric):
    """A mean of its own."""

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:  # type: ignore[override]
        super().update((output - label).abs())


COMPOSED = {
    "one minus": lambda: 1 - accuracy(),
    "sum": lambda: accuracy() + classification.BinaryF1Score(),
    "of mixed kinds": lambda: (accuracy() + auc()) / 2,
    "nested": lambda: abs((1 - accuracy()) * 2 - auc() ** 2),
    "with a tensor": lambda: torch.tensor(3.0) * accuracy(),
    "largest error": lambda: Errors() - 0.25,
    "around another": Doubled,
    "of one's own": lambda: 1 - Doubled(),
    "transformed": lambda: wrappers.BinaryTargetTransformer(accuracy(), threshold=0),
    "transformed auc": lambda: wrappers.LambdaInputTransformer(auc(), transform_pred=lambda p: 1 - p),
    "mean": Errors,
    "in one step": lambda: classification.Accuracy(task="binary"),
}


class Listed(Doubled):
    """Keeps a metric where no module looks."""

    def __init__(self) -> None:
        super().__init__()
        del self.inner
        self.inners = [accuracy()]

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.inners[0].update(output, label)

    def reset(self) -> None:
        torchmetrics.Metric.reset(self)


class Counting(Doubled):
    """Keeps a number that is no state."""

    batches = 0

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        super().update(output, label)
        self.batches += 1


class Stateless(torchmetrics.Metric):
    """Registers nothing."""

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.last = output.mean()

    def compute(self) -> Any:
        return self.last


REFUSED = {
    "running": (lambda: wrappers.Running(torchmetrics.MeanSquaredError(), 3), "Running.*last batches"),
    "running mean": (lambda: torchmetrics.aggregation.RunningMean(3), "Running.*last batches"),
    "in a composition": (lambda: 1 - wrappers.Running(torchmetrics.MeanSquaredError(), 3), "Running"),
    "min and max": (lambda: wrappers.MinMaxMetric(accuracy()), "MinMaxMetric"),
    "classes": (lambda: wrappers.ClasswiseWrapper(classification.MulticlassAccuracy(3, average=None)), "Classwise"),
    "bootstrap": (lambda: wrappers.BootStrapper(accuracy(), num_bootstraps=3), "BootStrapper.*at random"),
    "outputs": (lambda: wrappers.MultioutputWrapper(torchmetrics.MeanSquaredError(), 2), "MultioutputWrapper"),
    "tasks": (lambda: wrappers.MultitaskWrapper({"a": accuracy()}), "MultitaskWrapper"),
    "tracker": (lambda: wrappers.MetricTracker(accuracy()), "MetricTracker"),
    "collection": (lambda: torchmetrics.MetricCollection([accuracy()]), r"MetricCollection.*dict\(collection.items"),
    "ungrouped": (lambda: torchmetrics.MetricCollection([accuracy()], compute_groups=False), "MetricCollection"),
    "in a list": (Listed, "'inners' in `update`.*ModuleList"),
    "counter": (Counting, "'batches' in `update`.*add_state"),
    "stateless": (Stateless, "Stateless.*no state.*add_state"),
}
