"""What lies in parts is put back as it was: in one process, whose part is all of the model."""

from __future__ import annotations

from typing import Any

import pytest
import shard_models
import torch

from cerebro_spark.trainer import TorchModel
from cerebro_spark.trainer.group import GroupBroken
from cerebro_spark.trainer.shares import Step
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.pilot import Generators
from cerebro_spark.trainer.torch.steps import EagerSteps
from cerebro_spark.trainer.torch.strategies.sharded_steps import ShardedSteps
from cerebro_spark.trainer.torch.strategies.sharding import sharded

CPU = torch.device("cpu")


class OwnLinks:
    """Links of a group of one, which break before the collective with a number."""

    rank, size = 0, 1

    def __init__(self, breaks: int = -1) -> None:
        self.left = breaks

    def sum(self, values: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise GroupBroken("another member is gone")

    def gather(self, data: bytes) -> list[bytes]:
        return [data]

    def gather_parts(self, output: Any, part: Any) -> None:
        output.copy_(part)

    def sum_parts(self, output: Any, values: Any) -> None:
        output.copy_(values)


def build() -> BuiltTorchModel:
    torch.manual_seed(3)
    module = shard_models.Blocks()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    return BuiltTorchModel(TorchModel(module, optimizer, torch.nn.MSELoss(), clip_norm=0.1), CPU, None)


def compute(model: BuiltTorchModel, tensors: Any) -> Any:
    output = model.model.module(tensors["x"])
    return model.loss(output, tensors["y"]), output, tensors["y"]


def batches(count: int) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(5)
    return [{"x": torch.randn(6, 8), "y": torch.randn(6, 1)} for _ in range(count)]


def train(model: BuiltTorchModel, links: Any, count: int) -> None:
    with sharded(model, links) as parts:
        generators = Generators(dict, lambda tree: None)
        steps = ShardedSteps(model, compute, links, parts, generators, dict)
        for batch in batches(count):
            steps.take_share(batch, Step(6, 6))


def describe(model: BuiltTorchModel) -> Any:
    """Return all of a model that FSDP has to do with, but for the values of parameters."""
    parts = [
        (name, type(part), sorted(vars(part)), {key: len(kept) for key, kept in vars(part).items() if "hooks" in key})
        for name, part in model.model.module.named_modules()
    ]
    identities = [id(parameter) for parameter in model.model.module.parameters()]
    groups = [[id(parameter) for parameter in group["params"]] for group in model.model.optimizer.param_groups]
    return parts, identities, groups


def test_a_model_is_put_back_with_what_it_has_learned() -> None:
    model, expected = build(), build()
    before = describe(model)
    steps = EagerSteps(expected, compute)
    for _ in range(2):  # the second time from the state that the first one left
        train(model, OwnLinks(), 3)
        assert describe(model) == before
        for batch in batches(3):
            steps.take(batch)
    for own, other in zip(model.parameters, expected.parameters, strict=True):
        assert torch.allclose(own, other, atol=1e-6)
        found, wanted = (each.model.optimizer.state[p] for each, p in ((model, own), (expected, other)))
        assert found["step"] == wanted["step"] == 6
        assert torch.allclose(found["exp_avg"], wanted["exp_avg"], atol=1e-6)
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize("breaks", [1, 4, 9, 14, 25])
def test_a_model_is_put_back_when_the_links_break(breaks: int) -> None:
    model = build()
    train(model, OwnLinks(), 1)
    before = describe(model)
    values = [parameter.detach().clone() for parameter in model.parameters]
    states = [dict(model.model.optimizer.state[parameter]) for parameter in model.parameters]
    with pytest.raises(GroupBroken, match="another member is gone"):
        train(model, OwnLinks(breaks), 3)
    assert describe(model) == before
    assert all(torch.equal(own, value) for own, value in zip(model.parameters, values, strict=True))
    assert [model.model.optimizer.state[parameter] for parameter in model.parameters] == states
    assert not torch.distributed.is_initialized()
    train(model, OwnLinks(), 1)


def test_no_step_changes_nothing() -> None:
    model = build()
    before = describe(model), [parameter.detach().clone() for parameter in model.parameters]
    train(model, OwnLinks(), 0)
    assert describe(model) == before[0]
    assert all(torch.equal(own, value) for own, value in zip(model.parameters, before[1], strict=True))
