"""PyTorch's own losses get float labels in the dtype of a float output, where they cannot do without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from trainer_data import columns, feed

from cerebro_spark.trainer import Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.losses import BatchLoss, CheckedFunction
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

WIDE = torch.float64
NARROW = (torch.bfloat16, torch.float16)
PICKY: list[Callable[..., Any]] = [
    functional.mse_loss,
    functional.huber_loss,
    functional.binary_cross_entropy,
    nn.MSELoss(),
    nn.HuberLoss(),
    nn.BCELoss(),
]
LENIENT = [functional.l1_loss, nn.SmoothL1Loss(), functional.binary_cross_entropy_with_logits, nn.KLDivLoss()]


def name_of(loss: Any) -> str:
    return getattr(loss, "__name__", type(loss).__name__)


def outputs(dtype: torch.dtype) -> torch.Tensor:
    return torch.linspace(0.1, 0.9, 6).reshape(6, 1).to(dtype).requires_grad_()


LABELS = torch.linspace(0.003, 0.997, 6)


@pytest.mark.parametrize("dtype", [WIDE, *NARROW])
@pytest.mark.parametrize("loss", PICKY, ids=name_of)
def test_gradients_come_in_the_dtype_of_the_model(loss: Any, dtype: torch.dtype) -> None:
    output = outputs(dtype)
    BatchLoss(loss)(output, LABELS).backward()
    plain = outputs(dtype)
    loss(plain, LABELS.reshape(6, 1).to(dtype)).backward()
    assert plain.grad is not None
    assert torch.equal(torch.as_tensor(output.grad), plain.grad)


def test_a_label_that_is_wider_than_the_output_is_cast() -> None:
    BatchLoss(nn.MSELoss())(outputs(torch.float32), LABELS.double()).backward()


@pytest.mark.filterwarnings("ignore:.*reduction. 'mean' divides")
@pytest.mark.parametrize("dtype", [torch.float32, WIDE, *NARROW])
@pytest.mark.parametrize("loss", LENIENT, ids=name_of)
def test_losses_that_take_any_dtype_give_what_they_gave(loss: Any, dtype: torch.dtype) -> None:
    output = outputs(dtype)
    assert torch.equal(BatchLoss(loss)(output, LABELS), loss(output, LABELS.reshape(6, 1)))


def test_metrics_are_not_rounded_to_the_output() -> None:
    output = outputs(torch.bfloat16).detach()
    value, _ = CheckedFunction("a metric", functional.mse_loss).compute(output, LABELS)
    assert torch.equal(value, functional.mse_loss(output, LABELS.reshape(6, 1)))


def test_metrics_of_a_wide_output_get_what_they_need() -> None:
    output = outputs(WIDE).detach()
    value, _ = CheckedFunction("a metric", functional.binary_cross_entropy).compute(output, LABELS)
    assert value.dtype is WIDE


def test_autocast_keeps_labels_exact() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = outputs(torch.bfloat16)
        loss = BatchLoss(nn.MSELoss())(output, LABELS)
    assert torch.equal(loss, functional.mse_loss(output.float(), LABELS.reshape(6, 1)))


@pytest.mark.parametrize("dtype", [WIDE, torch.bfloat16])
def test_a_model_of_another_dtype_trains(dtype: torch.dtype) -> None:
    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 1).to(dtype)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.inner(features.to(dtype))
            return out

    def model_fn(params: Any) -> TorchModel:
        module = Cast()
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.01), nn.MSELoss())

    trainer = TorchTrainer(Hooks(model_fn), columns("tabular"), resources=Resources(device="cpu", threads=1))
    trainer.build("t", {})
    given = feed("tabular", 0)
    floats = Feed({**given.arrays, "label": given.arrays["label"].astype("float32")}, batch_size=16)
    assert trainer.train(Unit("t", 1, "0"), floats).values()["loss"] > 0
    assert trainer.evaluate(Unit("t", 1, "0", "eval"), floats).values()["loss"] > 0
