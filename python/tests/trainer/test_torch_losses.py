"""A loss over batches and partitions is that over all rows, whatever it divides by; what cannot be known is said."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules import loss as torch_losses
from trainer_data import arrays, columns

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.losses import BatchLoss
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Metrics, Unit

EVAL = Unit("t", 1, "v", "eval")
WEIGHTS = torch.tensor([1.0, 5.0, 20.0])
ROWS = 90


def trainer_of(module: nn.Module, loss: Any, data: Columns) -> TorchTrainer:
    def model_fn(params: Any) -> TorchModel:
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), loss)

    made = TorchTrainer(Hooks(model_fn), data, resources=Resources(device="cpu"))
    made.build("t", {})
    return made


def by_parts(trainer: TorchTrainer, rows: dict[str, Any], cuts: list[int], batch_size: int) -> float:
    bounds = zip([0, *cuts], [*cuts, ROWS], strict=True)
    feeds = [Feed({k: v[a:b] for k, v in rows.items()}, batch_size=batch_size) for a, b in bounds]
    return Metrics.merge([trainer.evaluate(EVAL, part) for part in feeds]).values()["loss"]


def cross_entropy(**options: Any) -> Any:
    return functools.partial(functional.cross_entropy, **options)


LOSSES = {
    "function": functional.cross_entropy,
    "class weights": cross_entropy(weight=WEIGHTS),
    "ignored": cross_entropy(ignore_index=2),
    "both": cross_entropy(weight=WEIGHTS, ignore_index=1),
    "smoothed": cross_entropy(weight=WEIGHTS, label_smoothing=0.2),
    "smoothed, ignored": cross_entropy(ignore_index=0, label_smoothing=0.2),
    "smoothed, both": cross_entropy(weight=WEIGHTS, ignore_index=0, label_smoothing=0.2),
    "sum": cross_entropy(weight=WEIGHTS, reduction="sum"),
    "none": cross_entropy(weight=WEIGHTS, reduction="none"),
    "partial of a partial": functools.partial(cross_entropy(weight=WEIGHTS), ignore_index=2),
    "nll": functools.partial(functional.nll_loss, weight=WEIGHTS, ignore_index=2),
    "nll module": nn.NLLLoss(WEIGHTS, ignore_index=2),
    "margins": functools.partial(functional.multi_margin_loss, weight=WEIGHTS),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_losses_of_class_numbers_do_not_depend_on_the_split(loss: Any) -> None:
    rows = arrays("classes", 0)
    trainer = trainer_of(nn.Linear(8, 3), loss, columns("classes"))
    output, label = trainer.model().module(torch.from_numpy(rows["features"])), torch.from_numpy(rows["label"])
    whole = loss(output, label)
    summed = isinstance(loss, functools.partial) and loss.keywords.get("reduction") in ("sum", "none")
    expected = whole.sum().item() / (ROWS if summed else 1)
    for cuts, size in (([], 90), ([20, 50], 7), ([1, 2, 3], 13)):
        assert by_parts(trainer, rows, cuts, size) == pytest.approx(expected, rel=1e-5)


VALUES = {
    "pos_weight": functools.partial(functional.binary_cross_entropy_with_logits, pos_weight=torch.tensor([3.0, 1, 2])),
    "weight": functools.partial(functional.binary_cross_entropy_with_logits, weight=torch.tensor([3.0, 1, 2])),
    "chances": functional.cross_entropy,
    "weighted chances": cross_entropy(weight=WEIGHTS),
    "batchmean": functools.partial(functional.kl_div, reduction="batchmean"),
    "huber": functools.partial(functional.huber_loss, delta=0.5),
    "module": nn.BCEWithLogitsLoss(pos_weight=torch.tensor([3.0, 1, 2])),
}


@pytest.mark.parametrize("loss", VALUES.values(), ids=VALUES)
def test_losses_of_values_do_not_depend_on_the_split(loss: Any) -> None:
    rows = arrays("onehot", 0)
    trainer = trainer_of(nn.Linear(8, 3), loss, columns("onehot"))
    output, label = trainer.model().module(torch.from_numpy(rows["features"])), torch.from_numpy(rows["label"])
    expected = loss(output, label).item()
    for cuts, size in (([], 90), ([20, 50], 7), ([1, 2, 3], 13)):
        assert by_parts(trainer, rows, cuts, size) == pytest.approx(expected, rel=1e-5)


def test_a_class_for_each_part_of_a_row_is_counted_by_parts() -> None:
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(ROWS, 2, 5)).astype("float32"), "y": rng.integers(0, 3, (ROWS, 5))}
    data = Columns({"x": ColumnSpec("float32", (2, 5))}, {"y": ColumnSpec("int64", (5,))})
    loss = cross_entropy(weight=WEIGHTS, ignore_index=0)
    trainer = trainer_of(nn.Conv1d(2, 3, 1), loss, data)
    output = trainer.model().module(torch.from_numpy(rows["x"]))
    expected = loss(output, torch.from_numpy(rows["y"])).item()
    assert by_parts(trainer, rows, [20, 50], 7) == pytest.approx(expected, rel=1e-5)


def test_integers_are_given_to_functions_as_to_modules() -> None:
    rows = arrays("tabular", 0)
    found = [
        by_parts(trainer_of(fixed(), loss, columns("tabular")), rows, [20], 7)
        for loss in (nn.BCEWithLogitsLoss(), functional.binary_cross_entropy_with_logits)
    ]
    assert found[0] == found[1]


def fixed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(8, 1)


def test_a_mean_that_nobody_sees_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def unseen_mean(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, label, weight=WEIGHTS)

    def value_a_row(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, label, reduction="none")

    with caplog.at_level(logging.WARNING):
        for loss in (unseen_mean, unseen_mean, value_a_row, functional.cross_entropy, nn.CrossEntropyLoss()):
            by_parts(trainer_of(nn.Linear(8, 3), loss, columns("classes")), arrays("classes", 0), [], 30)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 1
    assert "unseen_mean" in told[0]
    assert "mean over its rows" in told[0]


class Focal(torch_losses._WeightedLoss):
    """The focal loss as it is found everywhere."""

    def __init__(self, gamma: float = 2.0, **options: Any) -> None:
        super().__init__(**options)
        self.gamma = gamma

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        loss = functional.cross_entropy(output, label, weight=self.weight, reduction=self.reduction)
        return torch.pow(1 - torch.exp(-loss), self.gamma) * loss


class Scaled(torch_losses._Loss):
    """A value a class, of one's own."""

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return 2 * functional.cross_entropy(output, label, reduction=self.reduction)


def expected_of(loss: Any, trainer: TorchTrainer, rows: dict[str, Any]) -> Any:
    features, label = torch.from_numpy(rows["features"]), torch.from_numpy(rows["label"])
    return loss(trainer.model().module(features), label)


@pytest.mark.parametrize("make", [Focal, Scaled])
def test_a_loss_made_from_a_bare_base_class_gets_the_label_as_it_is_stored(make: Any) -> None:
    rows = arrays("classes", 0)
    trainer = trainer_of(nn.Linear(8, 3), make(), columns("classes"))
    assert by_parts(trainer, rows, [], ROWS) == pytest.approx(expected_of(make(), trainer, rows).item(), rel=1e-5)
    a_row = make(reduction="none")
    trainer = trainer_of(nn.Linear(8, 3), a_row, columns("classes"))
    expected = pytest.approx(expected_of(a_row, trainer, rows).mean().item(), rel=1e-5)
    assert by_parts(trainer, rows, [20], 7) == expected


def test_a_sum_of_a_loss_made_from_a_bare_base_class_is_counted_by_rows() -> None:
    rows, loss = arrays("classes", 0), Scaled(reduction="sum")
    trainer = trainer_of(nn.Linear(8, 3), loss, columns("classes"))
    expected = pytest.approx(expected_of(loss, trainer, rows).item() / ROWS, rel=1e-5)
    assert by_parts(trainer, rows, [20], 7) == expected


class OverSteps(nn.CrossEntropyLoss):
    """A cross entropy whose classes come last."""

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return super().forward(output.transpose(1, 2), label)


class Renamed(nn.CrossEntropyLoss):
    """A cross entropy with nothing of its own."""


def test_a_mean_in_a_forward_of_ones_own_is_said(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(ROWS, 5, 3)).astype("float32"), "y": rng.integers(0, 3, (ROWS, 5))}
    data = Columns({"x": ColumnSpec("float32", (5, 3))}, {"y": ColumnSpec("int64", (5,))})
    with caplog.at_level(logging.WARNING):
        by_parts(trainer_of(nn.Linear(3, 3), OverSteps(reduction="sum"), data), rows, [], 30)
        by_parts(trainer_of(nn.Linear(8, 3), Renamed(WEIGHTS), columns("classes")), arrays("classes", 0), [], 30)
        assert not caplog.records
        by_parts(trainer_of(nn.Linear(3, 3), OverSteps(WEIGHTS, ignore_index=1), data), rows, [], 30)
    [told] = [record.getMessage() for record in caplog.records]
    assert "OverSteps" in told
    assert "mean over its rows" in told


def test_weights_in_a_column_are_not_stretched_over_the_rows() -> None:
    rows = arrays("weighted", 0)

    def model_fn(params: Any) -> TorchModel:
        module = fixed()
        loss = nn.BCEWithLogitsLoss(reduction="none")
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), loss)

    def in_a_column(batch: Any, params: Any) -> Any:
        return {**batch, "weight": batch["weight"][:, None]}

    found = []
    for input_fn in (None, in_a_column):
        trainer = TorchTrainer(Hooks(model_fn, input_fn), columns("weighted"), resources=Resources(device="cpu"))
        trainer.build("t", {})
        found.append(trainer.evaluate(EVAL, Feed(rows, batch_size=7)).values()["loss"])
    assert found[0] == found[1]


class Heads(NamedTuple):
    logits: torch.Tensor
    aux: torch.Tensor | None


class NamedOutput(dict[str, torch.Tensor]):
    """As libraries have it: a dict whose values are attributes too."""

    @property
    def logits(self) -> torch.Tensor:
        return self["logits"]


@pytest.mark.parametrize("made", [lambda out: Heads(out, None), lambda out: NamedOutput(logits=out)])
def test_metrics_get_outputs_of_several_parts_as_the_module_gave_them(made: Callable[[torch.Tensor], Any]) -> None:
    logits = torch.tensor([[2.0, 1.0], [0.0, 3.0]], requires_grad=True)
    metrics = {"accuracy": lambda output, label: output.logits.argmax(1) == label}
    collector = MetricCollector(metrics, None, lambda output, label, rows: rows, torch.device("cpu"))
    collector.add(torch.tensor(0.5), made(logits * 2), torch.tensor([0, 0]))
    assert collector.collect().values() == {"loss": 0.5, "accuracy": 0.5}


@pytest.mark.parametrize("output", [(torch.zeros(4),), {"a": torch.zeros(4)}], ids=str)
def test_an_output_that_is_no_tensor_is_refused_by_name(output: Any) -> None:
    for loss in (nn.BCEWithLogitsLoss(), nn.functional.mse_loss):
        with pytest.raises(ConfigurationError, match=r"takes a tensor, but the model gives a (tuple|dict): give a"):
            BatchLoss(loss)(output, torch.zeros(4))
