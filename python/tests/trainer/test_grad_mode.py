"""Every unit and every build begins with gradients on, whatever a function of the user's left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from trainer_data import columns, feed
from trainer_process import FrameworkProcess

from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit


@pytest.fixture(autouse=True)
def gradients() -> Iterator[None]:
    yield
    torch.set_grad_enabled(True)


def turn_off(model: TorchModel, batches: Any, params: Any) -> dict[str, float]:
    torch.set_grad_enabled(False)
    return {"loss": 1.0, "rows": 1.0}


def trainer_of(modes: list[bool], **functions: Any) -> TorchTrainer:
    def model_fn(params: Any) -> TorchModel:
        modes.append(torch.is_grad_enabled())
        module = nn.Linear(8, 1)
        torch.set_grad_enabled(not params.get("off", False))
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())

    hooks = Hooks(model_fn, **functions)
    return TorchTrainer(hooks, columns("tabular"), resources=Resources(device="cpu", threads=1))


def test_a_unit_trains_after_an_evaluation_that_turned_gradients_off() -> None:
    modes: list[bool] = []
    trainer = trainer_of(modes, eval_fn=turn_off)
    trainer.build("t", {})
    losses = []
    for epoch in (1, 2):
        losses.append(trainer.train(Unit("t", epoch, "0"), feed("tabular", 0)).values()["loss"])
        trainer.evaluate(Unit("t", epoch, "0", "eval"), feed("tabular", 0))
    assert losses[1] < losses[0]
    trainer.build("u", {})
    assert modes == [True, True]


def test_a_build_may_turn_them_off_for_itself() -> None:
    trainer = trainer_of([])
    trainer.build("t", {"off": True})
    assert torch.is_grad_enabled()
    trainer.train(Unit("t", 1, "0"), feed("tabular", 0))


def test_a_block_without_gradients_around_a_build_stays_one() -> None:
    with torch.no_grad():
        trainer_of([]).build("t", {})
        assert not torch.is_grad_enabled()


@pytest.mark.slow
def test_a_unit_of_keras_on_pytorch_trains_after_such_an_evaluation() -> None:
    process = FrameworkProcess("keras-torch")
    try:
        first, second = process.call("keras_grad_mode.train_after_turning_off")
    finally:
        process.close()
    assert second < first
