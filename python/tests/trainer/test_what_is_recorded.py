"""What no CUDA graph may repeat is told from the model alone, also where there is no GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from cerebro_spark.trainer import TorchModel
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.graph_optimizer import GraphOptimizer, steps_on_host
from cerebro_spark.trainer.torch.pilot import find_extra_state


class Tempered(nn.Module):
    def __init__(self, heat: float) -> None:
        super().__init__()
        self.heat = heat

    def get_extra_state(self) -> Any:
        return {"heat": self.heat}

    def set_extra_state(self, state: Any) -> None:
        self.heat = state["heat"]


def test_a_number_in_extra_state_would_be_frozen() -> None:
    assert find_extra_state(nn.Sequential(nn.Linear(2, 2), Tempered(0.5))) == "Tempered"
    assert find_extra_state(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))) == ""


def made_with(optimizer: Any) -> GraphOptimizer:
    module = nn.Linear(2, 1)
    model = TorchModel(module, optimizer(module.parameters()), nn.MSELoss())
    return GraphOptimizer(BuiltTorchModel(model, torch.device("cpu"), None))


def hooked(parameters: Any) -> torch.optim.Optimizer:
    made = torch.optim.Adam(parameters)
    made.register_step_post_hook(lambda *_: None)
    return made


class Own(torch.optim.Adam):
    """An optimizer of the user's own may do anything in its steps."""


def test_only_optimizers_of_pytorch_itself_take_their_steps_in_graphs() -> None:
    assert [made_with(each).is_plain for each in (torch.optim.Adam, torch.optim.RMSprop)] == [False, False]
    assert [made_with(each).is_plain for each in (Own, hooked, torch.optim.Adagrad)] == [True, True, True]
    assert steps_on_host(Own([nn.Parameter(torch.zeros(1))]))
