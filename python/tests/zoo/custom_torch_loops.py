"""Loops, hooks and schedules of users' own that change a PyTorch model, or something beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from custom_torch_models import made
from torch import nn

F = nn.functional


def steps(model, batches, params, after=lambda model: None):
    """A plain loop; `after` may do what it likes once a batch is done."""
    total, rows = 0.0, 0
    for batch in batches:
        output = model.module(torch.from_numpy(batch["features"])).squeeze(-1)
        loss = F.binary_cross_entropy_with_logits(output, torch.from_numpy(batch["label"]))
        model.optimizer.zero_grad()
        loss.backward()
        model.optimizer.step()
        after(model)
        total, rows = total + loss.item() * len(output), rows + len(output)
    return {"loss": total, "rows": rows}


def freezing(model, batches, params):
    if params.get("freeze"):
        model.module[0].requires_grad_(False)
    return steps(model, batches, params)


def thawing(model, batches, params):
    """Unfreezes after the first unit: the flag must hop."""
    told = steps(model, batches, params)
    if params.get("thaw"):
        model.module[0].requires_grad_(True)
    return told


def frozen_at_first(params):
    model = made()
    model.module[0].requires_grad_(False)
    return model


def changing(after):
    def train_fn(model, batches, params):
        return steps(model, batches, params, after if params.get("change") else lambda model: None)

    return train_fn


CHANGED: dict[str, Any] = {"params": {"change": True}, "other": {}}


def set_rate(model):
    model.module[1].p = 0.9


def add_hook(model):
    model.module[0].register_forward_hook(lambda module, inputs, output: output * 2)


def hook_for_a_while(model):
    handle = model.module[0].register_forward_hook(lambda module, inputs, output: output * 2)
    handle.remove()


def hook_tensor(model):
    model.module[0].weight.register_hook(lambda gradient: gradient * 2)


def add_group(model):
    extra = nn.Parameter(torch.zeros(4))
    model.optimizer.add_param_group({"params": [extra]})


def add_module(model):
    model.module.append(nn.Linear(1, 1))


def swap_parameter(model):
    model.module[0].weight = nn.Parameter(model.module[0].weight.detach() * 2)


def swap_optimizer(model):
    model.optimizer = torch.optim.Adam(model.module.parameters())


def swap_loss(model):
    model.loss = nn.MSELoss()


def set_attribute(model):
    model.module.temperature = 2.0


def add_buffer(model):
    model.module[0].register_buffer("mask", torch.ones(4))


def mark_parameter(model):
    model.module[0].weight.marked = True


def same_again(model):
    """Sets things to what they are."""
    model.module[1].p = float("0.5")
    model.module[0].in_features = 8


def second_optimizer(model, batches, params):
    if not hasattr(second_optimizer, "own"):
        second_optimizer.own = torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # type: ignore[attr-defined]
    told = steps(model, batches, params)
    own = second_optimizer.own  # type: ignore[attr-defined]
    own.param_groups[0]["params"][0].grad = torch.ones(1)
    own.step()
    return told


def making_own_optimizer():
    weight = torch.zeros(1, requires_grad=True)
    own = torch.optim.Adam([weight])

    def train_fn(model, batches, params):
        told = steps(model, batches, params)
        if params.get("change"):
            weight.grad = torch.ones(1)
            own.step()
        return told

    return train_fn


COUNT = 0
TABLE = {"batches": 0}
SEEN: list = []


def counting_globally(model, batches, params):
    global COUNT
    COUNT += 1
    return steps(model, batches, params)


def counting_in_table(batch, params):
    TABLE["batches"] += 1
    return batch


def logging_batches(batch, params):
    SEEN.append(len(batch["label"]))
    return batch


def augmenting(batch, params):
    return {**batch, "features": batch["features"] + OWN.normal(size=8).astype("float32")}


OWN = np.random.default_rng(0)


def eval_in_train_mode(model, batches, params):
    """Measures with batch statistics, which moves the running ones."""
    model.module.train()
    total, rows = 0.0, 0
    for batch in batches:
        output = model.module(torch.from_numpy(batch["features"])).squeeze(-1).detach()
        loss = F.binary_cross_entropy_with_logits(output, torch.from_numpy(batch["label"]))
        total, rows = total + loss.item() * len(output), rows + len(output)
    return {"loss": total, "rows": rows}


def eval_that_trains(model, batches, params):
    return steps(model, batches, params)


def eval_that_freezes(model, batches, params):
    model.module.requires_grad_(False)
    return eval_in_train_mode(model, batches, params)


def with_closure(model, batches, params):
    """A loop for optimizers that evaluate more than once a step."""
    total, rows = 0.0, 0
    for batch in batches:
        features, label = torch.from_numpy(batch["features"]), torch.from_numpy(batch["label"])

        def closure(features=features, label=label):
            model.optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model.module(features).squeeze(-1), label)
            loss.backward()
            return loss.detach()

        total, rows = total + model.optimizer.step(closure).item() * len(label), rows + len(label)
    return {"loss": total, "rows": rows}


def scheduled(make):
    def model_fn(params):
        model = made()
        model.lr_scheduler = make(model.optimizer)
        return model

    return model_fn


def counted_rate():
    calls = []

    def rate(step):
        calls.append(step)
        return 1 / len(calls)

    return rate


class Rate:
    """A rate that counts its own calls: PyTorch's state of the schedule has its attributes."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1 / self.calls


def timm_schedule(optimizer):
    from timm.scheduler import CosineLRScheduler  # type: ignore[attr-defined]

    return CosineLRScheduler(optimizer, 10)


def averaging_at_last(optimizer):
    first = torch.optim.lr_scheduler.ConstantLR(optimizer)
    last = torch.optim.swa_utils.SWALR(optimizer, 0.01)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [first, last], milestones=[1])


def quantized():
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    return FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255)


schedules = torch.optim.lr_scheduler
