"""A buffer that gets another shape while training is refused for just that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from trainer_data import columns, feed

from cerebro_spark.errors import TrialFailed
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit


class Scaling(nn.Module):
    """Finds a scale a channel from its first batch, as an observer of quantization does."""

    scale: torch.Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.head, self.in_place = nn.Linear(8, 1), in_place
        self.register_buffer("scale", torch.ones(1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if len(self.scale) == 1 and self.in_place:
            self.scale.resize_(8).fill_(2.0)
        elif len(self.scale) == 1:
            self.scale = torch.full((8,), 2.0)
        out: torch.Tensor = self.head(features / self.scale)
        return out


def trainer_of(in_place: bool, tried: bool) -> TorchTrainer:
    def model_fn(params: Any) -> TorchModel:
        module = Scaling(in_place)
        if tried:
            module(torch.ones(2, 8))
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())

    trainer = TorchTrainer(Hooks(model_fn), columns("tabular"), resources=Resources(device="cpu", threads=1))
    trainer.build("t", {})
    return trainer


@pytest.mark.parametrize("in_place", [True, False])
def test_the_error_says_that_the_shape_changed(in_place: bool) -> None:
    changed = r"`Scaling\.scale` changed from .*\[1\].* to .*\[8\].* another shape"
    with pytest.raises(TrialFailed, match=changed) as raised:
        trainer_of(in_place, tried=False).train(Unit("t", 1, "0"), feed("tabular", 0))
    assert "is no parameter or buffer" not in str(raised.value)
    assert "call the module once in model_fn" in str(raised.value)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_model_that_was_called_once_trains(in_place: bool) -> None:
    trainer_of(in_place, tried=True).train(Unit("t", 1, "0"), feed("tabular", 0))
