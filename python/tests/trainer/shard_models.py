"""PyTorch models of blocks, which lie in parts at several workers, and some that must not. Each is a `model_fn`."""

from __future__ import annotations

from typing import Any

import torch
from group_models import ModelFn, adam, make, momentum
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.norm, self.wide, self.narrow = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: Any) -> Any:
        return x + self.narrow(torch.tanh(self.wide(self.norm(x))))


class Blocks(nn.Module):
    """Some blocks of odd sizes, so that parts differ, and some numbers are at one member only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 7), nn.Linear(7, 1)
        self.blocks: Any = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Repeating(Blocks):
    """Computes each block twice."""

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in [*self.blocks, *self.blocks]:
            x = block(x)
        return self.last(x)


class Wide(Blocks):
    """Has blocks of another dtype than the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks.double()

    def forward(self, x: Any) -> Any:
        x = self.first(x).double()
        for block in self.blocks:
            x = block(x)
        return self.last(x.float())


class Sharing(Blocks):
    """Shares a parameter within one part."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(8, 7)
        self.second.weight = self.first.weight

    def forward(self, x: Any) -> Any:
        x = self.first(x) + self.second(x.flip(1))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def transformer() -> Any:
    return nn.Sequential(
        nn.Embedding(20, 8),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 3),
        Head(),
    )


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.out(x.mean(1))


def of(optimizer: Any, **numbers: Any) -> Any:
    """Return a function that makes an optimizer."""
    return lambda parameters: optimizer(parameters, **numbers)


# Not Adam for attention: the gradient of the bias of keys is nothing but rounding, of which Adam takes the sign.
EXACT: dict[str, tuple[str, ModelFn]] = {
    "sgd": ("tabular", make(Blocks)),
    "momentum": ("tabular", make(Blocks, optimizer=momentum)),
    "adam": ("tabular", make(Blocks, optimizer=adam)),
    "clipped": ("tabular", make(Blocks, optimizer=adam, clip_norm=0.01)),
    "repeating": ("tabular", make(Repeating, optimizer=momentum)),
    "wide": ("tabular", make(Wide, optimizer=momentum)),
    "sharing": ("tabular", make(Sharing, optimizer=momentum)),
    "transformer": ("tokens", make(transformer, optimizer=momentum)),
}


class Tied(Blocks):
    """Uses the weights of a block in another one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[2].wide.weight = self.blocks[0].wide.weight


class Peeking(Blocks):
    """Reads a weight of a block from outside of it."""

    def forward(self, x: Any) -> Any:
        return super().forward(x) + self.blocks[1].wide.weight.mean()


class Skipping(Blocks):
    """Leaves a block out by what it sees in rows, from the third batch on; the blocks are alike: no size tells."""

    batches: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.batches += 1
        x, far = self.first(x), bool(self.batches > 2) and bool((x[:, 0] > 1.0).any())
        for number, block in enumerate(self.blocks):
            if number != far:
                x = block(x)
        return self.last(x)


class Thawing(Blocks):
    """Has a block train from the third batch on."""

    batches: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.blocks[1].requires_grad_(False)

    def forward(self, x: Any) -> Any:
        if self.training:
            self.batches += 1
            if self.batches > 2:
                self.blocks[1].requires_grad_(True)
        return super().forward(x)


class Scaled(Blocks):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Any) -> Any:
        return self.scale * super().forward(x)


class Mixed(Blocks):
    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].norm.double()

    def forward(self, x: Any) -> Any:
        return self.last(self.first(x) + self.blocks[1].norm(self.first(x).double()).float())


def hooked() -> Any:
    module = Blocks()
    module.blocks[0].register_forward_hook(lambda *_: None)
    return module


def parametrized() -> Any:
    module = Blocks()
    nn.utils.parametrizations.weight_norm(module.blocks[0].wide)
    return module


def adam_of_its_own(parameters: Any) -> Any:
    class Adam(torch.optim.Adam):
        pass

    return Adam(parameters)


REFUSED: dict[str, tuple[ModelFn, str]] = {
    "tied": (make(Tied), "its parameter 'blocks.2.wide.weight' is also in 'blocks.0': parts of a model cannot share"),
    "scaled": (make(Scaled), "its parameter 'scale' is a single number"),
    "mixed": (make(Mixed), "parameters of 'blocks.1' have different dtypes: torch.float32, torch.float64"),
    "hooked": (make(hooked), "its Block 'blocks.0' has hooks"),
    "parametrized": (make(parametrized), "its ParametrizedLinear 'blocks.0.wide' has hooks"),
    "batchnorm": (
        make(lambda: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))),
        "its BatchNorm1d '1'",
    ),
    "adafactor": (make(Blocks, optimizer=of(torch.optim.Adafactor)), "its optimizer Adafactor may do more"),
    "own optimizer": (make(Blocks, optimizer=adam_of_its_own), "its optimizer Adam may do more"),
}
"""What is refused by its parts: by single workers too, so that the rehearsal finds it."""

REFUSED_BY_GROUPS: dict[str, tuple[ModelFn, str]] = {
    "sum": (make(Blocks, nn.BCEWithLogitsLoss(reduction="sum")), "its loss is no mean over rows"),
    "skipping": (make(Skipping), "its members compute different parts of its model, or in another order"),
    "peeking": (make(Peeking), "it reads parameters of a part of its model from outside of it"),
    "thawing": (make(Thawing), "it freezes or thaws a parameter in the middle of a unit"),
}
"""What only trying and training show."""

OPTIMIZERS: dict[str, Any] = {
    "adagrad": of(torch.optim.Adagrad, lr=0.05, weight_decay=0.01),
    "adamw": of(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "asgd": of(torch.optim.ASGD, lr=0.05),
    "adadelta": of(torch.optim.Adadelta, lr=0.5),
    "adamax": of(torch.optim.Adamax, lr=0.01),
    "nadam": of(torch.optim.NAdam, lr=0.01),
    "radam": of(torch.optim.RAdam, lr=0.01),
    "rmsprop": of(torch.optim.RMSprop, lr=0.001, momentum=0.9),
}
"""Rprop is left out: it goes by signs of gradients, of which rounding turns some over."""
