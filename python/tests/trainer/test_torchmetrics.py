"""Metrics of the real torchmetrics: whole or in parts, through the event log or not, the value is the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from trainer_data import columns, feed

from cerebro_spark.codec import from_plain, to_plain
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer import Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.model_checks import check_model
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Metrics, Unit

# To import torchmetrics takes seconds.
pytestmark = pytest.mark.slow
EVAL = Unit("t", 1, "v", "eval")
CPU = torch.device("cpu")


class Chance(nn.Module):
    """Gives chances, not logits: torchmetrics guesses batch by batch which of them it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, features: torch.Tensor) -> Any:
        return self.layer(features).flatten().sigmoid()


def bce(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return nn.functional.binary_cross_entropy(output, label.float())


@pytest.fixture(scope="module")
def trainer() -> TorchTrainer:
    classification = pytest.importorskip("torchmetrics.classification")

    def model_fn(params: Any) -> TorchModel:
        module = Chance()
        metrics = {
            "auc": classification.BinaryAUROC(),
            "binned": classification.BinaryAUROC(thresholds=50),
            "accuracy": classification.BinaryAccuracy(),
            "f1": classification.BinaryF1Score(),
        }
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), bce, metrics=metrics)

    made = TorchTrainer(Hooks(model_fn), columns("tabular"), seed=3, resources=Resources(device="cpu"))
    made.build("t", {})
    made.train(Unit("t", 1, "0"), feed("tabular", 0))
    return made


@pytest.mark.parametrize("cuts", [[45], [1, 2, 60], [13, 26, 39, 52, 65, 78]], ids=len)
def test_values_do_not_depend_on_the_split(trainer: TorchTrainer, cuts: list[int]) -> None:
    rows = feed("tabular", 1).arrays
    whole = trainer.finish(trainer.evaluate(EVAL, Feed(rows, batch_size=16)))
    parts: list[Metrics] = []
    for start, stop in zip([0, *cuts], [*cuts, 90], strict=True):
        part = Feed({name: array[start:stop] for name, array in rows.items()}, batch_size=7)
        seen = trainer.evaluate(EVAL, part, parts[-1] if parts else None)
        parts.append(from_plain(Metrics, to_plain(seen, "metrics")))
    assert set(parts[0].states) == {"binned", "accuracy", "f1"}
    assert set(parts[0].carried) == {"auc"}
    found = trainer.finish(Metrics.merge(parts))
    assert found.pop("loss") == pytest.approx(whole.pop("loss"), rel=1e-6)
    assert found == whole
    assert 0.5 < whole["auc"] < 1.0


@pytest.mark.parametrize("name", ["BinaryAccuracy", "BinaryAUROC", "BinaryCalibrationError"])
def test_wrapped_metrics_of_logits_do_not_depend_on_the_batches(name: str) -> None:
    """As the documentation says: by themselves they guess for each batch whether they see logits."""
    classification = pytest.importorskip("torchmetrics.classification")
    wrappers = pytest.importorskip("torchmetrics.wrappers")
    drawn = torch.Generator().manual_seed(0)
    logits = torch.randn(64, 1, generator=drawn)
    label = (logits.flatten() + torch.randn(64, generator=drawn) > 0).long()
    plain = getattr(classification, name)()
    expected = float(plain(logits.flatten().sigmoid(), label))
    for size in (1, 2, 5, 64):
        metric = wrappers.LambdaInputTransformer(getattr(classification, name)(), transform_pred=torch.sigmoid)
        parts: list[Metrics] = []
        for half in (slice(0, 30), slice(30, 64)):
            collector = MetricCollector({"m": metric}, parts[-1] if parts else None, lambda o, y, n: n, CPU)
            for output, wanted in zip(logits[half].split(size), label[half].split(size), strict=True):
                collector.add(torch.tensor(0.0), output, wanted)
            parts.append(collector.collect())
        found = MetricCollector({"m": metric}, None, lambda o, y, n: n, CPU).finish(Metrics.merge(parts))
        assert found["m"] == pytest.approx(expected, rel=1e-5)


def test_classes_in_a_column_are_measured_as_in_a_row() -> None:
    classification = pytest.importorskip("torchmetrics.classification")
    drawn = torch.Generator().manual_seed(0)
    logits, label = torch.randn(64, 3, generator=drawn), torch.randint(3, (64,), generator=drawn)
    for kind in (classification.MulticlassAccuracy, classification.MulticlassAUROC, classification.MulticlassF1Score):
        found = []
        for stored in (label, label[:, None]):
            collector = MetricCollector({"m": kind(3)}, None, lambda o, y, n: n, CPU)
            collector.add(torch.tensor(0.0), logits, stored)
            found.append(collector.finish(collector.collect())["m"])
        assert found[0] == found[1] == pytest.approx(float(kind(3)(logits, label)))


def test_a_mean_that_would_take_labels_for_weights_is_refused() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    module = nn.Linear(8, 1)

    def model_of(metric: Any) -> TorchModel:
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.MSELoss(), metrics={"m": metric})

    class Own(torchmetrics.Metric):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.mean = torchmetrics.MeanMetric()

        def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
            self.mean.update((output - label).abs())

        def compute(self) -> Any:
            return self.mean.compute()

    for metric in (torchmetrics.MeanMetric(), 1 - torchmetrics.MeanMetric()):
        with pytest.raises(ConfigurationError, match=r"'m' is.* a torchmetrics MeanMetric, which would take labels"):
            check_model(model_of(metric))
    check_model(model_of(Own()))


def test_a_range_of_values_that_goes_by_batches_is_refused() -> None:
    image = pytest.importorskip("torchmetrics.image")
    module = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for kind in (image.StructuralSimilarityIndexMeasure, image.MultiScaleStructuralSimilarityIndexMeasure):
        with pytest.raises(ConfigurationError, match=r"without data_range, .* from each batch by itself: say it"):
            check_model(TorchModel(module, optimizer, nn.MSELoss(), metrics={"m": 1 - kind()}))
        check_model(TorchModel(module, optimizer, nn.MSELoss(), metrics={"m": 1 - kind(data_range=1.0)}))


def test_a_dict_of_losses_is_told_what_to_write() -> None:
    module = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(ConfigurationError, match=r"loss is a dict of 'a', 'b', .*such as lambda output, label"):
        check_model(TorchModel(module, optimizer, {"a": nn.MSELoss(), "b": nn.MSELoss()}))  # type: ignore[arg-type]
