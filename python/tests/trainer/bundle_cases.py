"""Models and searches on which bundles are compared with single units."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from trainer_cases_torch import Several, accuracy, several_loss

from cerebro_spark.trainer import TorchModel

optim, schedulers = torch.optim, torch.optim.lr_scheduler


def net(*middle: nn.Module, inputs: int = 8, hidden: int = 16, out: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), *middle, nn.Linear(hidden, out))


def with_optimizer(make: Any, **options: Any) -> Any:
    def model_fn(params: Any) -> TorchModel:
        module = net()
        optimizer = make(module.parameters(), params)
        return TorchModel(module, optimizer, nn.BCEWithLogitsLoss(), {"accuracy": accuracy}, **options)

    return model_fn


def with_module(make: Any, loss: Any = None, **options: Any) -> Any:
    def model_fn(params: Any) -> TorchModel:
        module = make()
        optimizer = optim.Adam(module.parameters(), lr=params["lr"], weight_decay=params["decay"])
        return TorchModel(module, optimizer, loss or nn.BCEWithLogitsLoss(), **options)

    return model_fn


def with_schedule(make: Any, by: Any, optimizer: Any = optim.SGD) -> Any:
    def model_fn(params: Any) -> TorchModel:
        module = net()
        made = optimizer(module.parameters(), lr=params["lr"])
        return TorchModel(module, made, nn.BCEWithLogitsLoss(), lr_scheduler=make(made, params), scheduler_step=by)

    return model_fn


class Tokens(nn.Module):
    def __init__(self, *middle: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, width)
        self.middle = nn.Sequential(*middle)
        self.head = nn.Linear(width, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.middle(self.embedding(tokens)).mean(1))
        return made


def transformer(rate: float) -> nn.Module:
    return Tokens(nn.TransformerEncoderLayer(8, 2, 16, dropout=rate, batch_first=True))


def cnn() -> nn.Module:
    body = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout2d(0.2), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(36, 3))


class Jittered(nn.Module):
    """Draws from PyTorch's generator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.1 * torch.randn_like(x)


class Doubled(nn.Module):
    """Changes its batch in place."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)


class Tied(nn.Module):
    """Uses one layer twice, and has a parameter that it never uses and one that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.scale = nn.Parameter(torch.full((8,), 0.5), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(torch.tanh(self.layer(torch.sigmoid(self.layer(x)) * self.scale)))
        return made


class Mean(nn.Module):
    """Keeps a running mean, which it replaces by a new tensor in every step."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


def two_groups(params: Any) -> TorchModel:
    module = net(nn.Dropout(0.1))
    groups = [{"params": module[0].parameters(), "lr": 1e-3}, {"params": module[-1].parameters(), "weight_decay": 0.1}]  # type: ignore[index]
    return TorchModel(module, optim.AdamW(groups, lr=params["lr"]), nn.BCEWithLogitsLoss())


def with_rates(params: Any) -> TorchModel:
    """Models that differ in fractions: a rate of dropout, a slope, a smoothed label."""
    module = net(nn.Dropout(params["lr"] * 20), nn.LeakyReLU(params["decay"] + 0.1), out=3)
    loss = nn.CrossEntropyLoss(label_smoothing=params["decay"] + 0.05)
    return TorchModel(module, optim.Adam(module.parameters(), lr=params["lr"]), loss)


def sgd(parameters: Any, params: Any) -> Any:
    moving = {"momentum": 0.5 + params["decay"], "dampening": params["decay"]}
    return optim.SGD(parameters, lr=params["lr"], weight_decay=params["decay"], **moving)


def rmsprop(parameters: Any, params: Any) -> Any:
    return optim.RMSprop(parameters, lr=params["lr"], alpha=0.9 + params["decay"] / 5, momentum=0.5, centered=True)


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p, params: optim.SGD(p, lr=params["lr"], weight_decay=params["decay"]),
    "sgd_momentum": sgd,
    "sgd_nesterov": lambda p, params: optim.SGD(p, lr=params["lr"], momentum=0.9, nesterov=True),
    "adam": lambda p, params: optim.Adam(p, lr=params["lr"], betas=(0.9 - params["decay"], 0.99), eps=1e-6),
    "adamw": lambda p, params: optim.AdamW(p, lr=params["lr"], weight_decay=params["decay"]),
    "rmsprop": lambda p, params: optim.RMSprop(p, lr=params["lr"], weight_decay=params["decay"]),
    "rmsprop_all": rmsprop,
    "adagrad": lambda p, params: optim.Adagrad(p, lr=params["lr"], lr_decay=params["decay"], eps=1e-8),
}

STACKED: dict[str, tuple[Any, str]] = {
    **{name: (with_optimizer(make), "tabular") for name, make in OPTIMIZERS.items()},
    "groups": (two_groups, "tabular"),
    "odd_sizes": (with_module(lambda: net(nn.Linear(13, 9), nn.SiLU(), nn.Linear(9, 13), hidden=13)), "tabular"),
    "smooth": (with_module(lambda: net(nn.GELU(), nn.Softplus(), nn.ELU(), nn.Mish())), "tabular"),
    "dropout": (with_module(lambda: net(nn.Dropout(0.5))), "tabular"),
    "rates": (with_rates, "classes"),
    "batch_norm": (with_module(lambda: net(nn.BatchNorm1d(16))), "tabular"),
    "layer_norm": (with_module(lambda: net(nn.LayerNorm(16))), "tabular"),
    "embedding": (with_module(Tokens), "tokens"),
    "transformer": (with_module(lambda: transformer(0.0)), "tokens"),
    "transformer_dropout": (with_module(lambda: transformer(0.1)), "tokens"),
    "cnn": (with_module(cnn, nn.CrossEntropyLoss()), "images"),
    "several": (with_module(Several, several_loss), "several"),
    "weighted": (with_module(net, nn.BCEWithLogitsLoss(reduction="none")), "weighted"),
    "classes": (with_module(lambda: net(out=3), nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5]))), "classes"),
    "sum_loss": (with_module(lambda: net(out=3), nn.CrossEntropyLoss(reduction="sum")), "classes"),
    "clip_norm": (with_module(net, clip_norm=0.05), "tabular"),
    "clip_value": (with_module(net, clip_value=0.001), "tabular"),
    "by_batch": (with_schedule(lambda o, p: schedulers.ExponentialLR(o, 0.9 + p["decay"] / 9), "batch"), "tabular"),
    "by_epoch": (with_schedule(lambda o, p: schedulers.StepLR(o, 1, 0.5), "epoch"), "tabular"),
    "one_cycle": (
        with_schedule(lambda o, p: schedulers.OneCycleLR(o, p["lr"], total_steps=60), "batch", optim.Adam),
        "tabular",
    ),
    "changed_batch": (with_module(lambda: nn.Sequential(Doubled(), net())), "tabular"),
    "noise": (with_module(lambda: net(Jittered())), "tabular"),
    "tied": (with_module(Tied), "tabular"),
    "replaced_buffer": (with_module(lambda: net(Mean())), "tabular"),
}


class HostNoise(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (1 + 0.1 * random.random())


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.mean() > 0.2 else -x


class Reading(nn.Module):
    """Goes by values that no kernel reads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if np.isfinite(x.detach().numpy()).all() else torch.nan_to_num(x)


class Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x[x > 0].mean()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(20, 4), nn.LSTM(4, 4, batch_first=True), nn.Linear(4, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.lstm(self.embedding(tokens))[0][:, -1])
        return made


def hooked() -> nn.Module:
    module = net()
    module.register_forward_hook(lambda module, given, output: output * 0.5)
    return module


def compiled_counting(params: Any) -> TorchModel:
    module = net(Counted())
    return TorchModel(module, optim.Adam(module.parameters(), lr=params["lr"]), nn.BCEWithLogitsLoss())


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def get_extra_state(self) -> Any:
        return self.count

    def set_extra_state(self, state: Any) -> None:
        self.count = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * (1 + 1e-2 * self.count)


REFUSED: dict[str, tuple[Any, str, str]] = {
    "host_noise": (with_module(lambda: net(HostNoise())), "tabular", "random numbers from Python or NumPy"),
    "branch": (with_module(lambda: net(Branching())), "tabular", "Error"),
    "reading": (with_module(lambda: net(Reading())), "tabular", "reads the values of a tensor by `numpy`"),
    "mask": (with_module(lambda: net(Masked())), "tabular", "depends on the data"),
    "lstm": (with_module(Recurrent), "tokens", "LSTM is not stacked"),
    "hook": (with_module(hooked), "tabular", "has hooks"),
    "extra_state": (compiled_counting, "tabular", "keeps extra state"),
    "amsgrad": (with_optimizer(lambda p, params: optim.Adam(p, amsgrad=True)), "tabular", "amsgrad=True"),
    "adadelta": (with_optimizer(lambda p, params: optim.Adadelta(p)), "tabular", "Adadelta is not stacked"),
    "double": (with_module(lambda: nn.Sequential(ToDouble(), nn.Linear(8, 1).double())), "tabular", "torch.float64"),
}


class ToDouble(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()
