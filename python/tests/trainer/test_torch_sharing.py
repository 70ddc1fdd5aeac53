"""Trials share a built PyTorch model only where that changes no bit. Each case once shared what it must not."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC
from trainer_data import columns, feed

from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

schedulers = torch.optim.lr_scheduler

pytestmark = pytest.mark.slow


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))


def made(
    module: nn.Module | None = None,
    optimizer: Callable[..., Any] | None = None,
    loss: Any = None,
    scheduler: Callable[..., Any] | None = None,
    **options: Any,
) -> TorchModel:
    module = module or mlp()
    steps = (optimizer or partial(torch.optim.SGD, lr=0.1))(module.parameters())
    if scheduler is not None:
        options |= {"lr_scheduler": scheduler(steps), "scheduler_step": "batch"}
    return TorchModel(module, steps, loss or nn.BCEWithLogitsLoss(), **options)


class Own(torch.optim.SGD):
    def __init__(self, parameters: Any, alpha: float) -> None:
        super().__init__(parameters, lr=0.1)
        self.alpha = alpha

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-self.alpha)


class FromDefaults(torch.optim.SGD):
    def __init__(self, parameters: Any, alpha: float) -> None:
        super().__init__(parameters, lr=0.1)
        self.defaults["alpha"] = alpha

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-self.defaults["alpha"])


class OwnSchedule(schedulers.LRScheduler):
    def __init__(self, optimizer: Any, share: float) -> None:
        self.share = share
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        return [0.1 * self.share for _ in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.last_epoch}


def powered(gamma: float, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return ((output.squeeze(-1) - label) ** 2 * gamma).mean()


def hooked(register: str, function: Callable[..., Any]) -> nn.Module:
    module = mlp()
    getattr(module[0], register)(function)
    return module


def tensor_hooked(v: float) -> nn.Module:
    module = mlp()
    weight: Any = module[0].weight
    weight.register_hook(lambda gradient: gradient * v)
    return module


def sequential(v: float) -> Callable[..., Any]:
    return lambda o: schedulers.SequentialLR(
        o, [schedulers.LambdaLR(o, lambda _: v), schedulers.ConstantLR(o)], milestones=[100]
    )


UNLIKE: dict[str, Callable[[float], TorchModel]] = {
    "partial loss": lambda v: made(loss=partial(powered, v)),
    "forward hook": lambda v: made(hooked("register_forward_hook", lambda _, inputs, output: output * v)),
    "forward pre-hook": lambda v: made(hooked("register_forward_pre_hook", lambda _, inputs: (inputs[0] * v,))),
    "tensor hook": lambda v: made(tensor_hooked(v)),
    "custom optimizer": lambda v: made(optimizer=partial(Own, alpha=v)),
    "optimizer defaults": lambda v: made(optimizer=partial(FromDefaults, alpha=v)),
    "fused optimizer": lambda v: made(optimizer=partial(torch.optim.Adagrad, lr=v, fused=v > 0.1)),
    "sequential lambda": lambda v: made(scheduler=sequential(v)),
    "chained lambda": lambda v: made(
        scheduler=lambda o: schedulers.ChainedScheduler([schedulers.LambdaLR(o, lambda _: v)])
    ),
    "custom schedule": lambda v: made(scheduler=partial(OwnSchedule, share=v)),
    "metric": lambda v: made(optimizer=partial(torch.optim.SGD, lr=v), metrics={"accuracy": BinaryAccuracy(v)}),
}

ALIKE: dict[str, Callable[[float], TorchModel]] = {
    "rate": lambda v: made(optimizer=partial(torch.optim.AdamW, lr=v, weight_decay=v / 2)),
    "partial": lambda v: made(optimizer=partial(torch.optim.Adam, lr=v), loss=partial(powered, 2.0)),
    "hook": lambda v: made(
        hooked("register_forward_hook", lambda _, inputs, output: output * 2), partial(torch.optim.SGD, lr=v)
    ),
    "lambda": lambda v: made(
        optimizer=partial(torch.optim.SGD, lr=v), scheduler=lambda o: schedulers.LambdaLR(o, lambda step: 0.9**step)
    ),
    "one cycle": lambda v: made(scheduler=lambda o: schedulers.OneCycleLR(o, v, total_steps=50)),
    "cyclic": lambda v: made(scheduler=lambda o: schedulers.CyclicLR(o, v / 2, v, cycle_momentum=False)),
    "sequential": lambda v: made(optimizer=partial(torch.optim.SGD, lr=v), scheduler=sequential(0.5)),
    "metrics": lambda v: made(
        optimizer=partial(torch.optim.SGD, lr=v),
        metrics={"accuracy": BinaryAccuracy(), "auroc": BinaryAUROC(), "error": 1 - BinaryAccuracy()},
    ),
}


def trainer_of(make: Callable[[float], TorchModel]) -> TorchTrainer:
    hooks = Hooks(lambda params: make(params["v"]))
    return TorchTrainer(hooks, columns("tabular"), resources=Resources(device="cpu"))


def trained(trainer: TorchTrainer, v: float) -> str:
    trainer.build("t", {"v": v})
    trainer.train(Unit("t", 1, "0"), feed("tabular", 0))
    return trainer.save(io.BytesIO()).digest


@pytest.mark.parametrize("make", UNLIKE.values(), ids=UNLIKE)
def test_what_restoring_cannot_change_is_not_shared(make: Callable[[float], TorchModel]) -> None:
    together = trainer_of(make)
    first = trained(together, 0.5)
    second = trained(together, 0.05)

    assert second == trained(trainer_of(make), 0.05) != first
    assert len(together.models) == 2


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_trials_that_differ_in_numbers_share(make: Callable[[float], TorchModel]) -> None:
    together = trainer_of(make)
    first = trained(together, 0.5)
    second = trained(together, 0.05)

    assert second == trained(trainer_of(make), 0.05) != first
    assert len(together.models) == 1


def test_modules_tied_in_another_way_are_not_shared() -> None:
    def tied(v: float) -> TorchModel:
        first, second = nn.Linear(8, 8), nn.Linear(8, 8)
        last = first if v > 0.1 else second
        return made(nn.Sequential(first, second, last, nn.Linear(8, 1)))

    together = trainer_of(tied)
    trained(together, 0.5)
    assert trained(together, 0.05) == trained(trainer_of(tied), 0.05)
