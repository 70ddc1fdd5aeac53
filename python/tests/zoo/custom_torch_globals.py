"""PyTorch models whose methods use what lies outside of them: globals, helpers, closures, defaults.

Each class has an attribute `by`: with 0 it changes nothing, so that trials with and without a change can meet.
"""

from __future__ import annotations

import functools
import logging
import types
from typing import Any

import numpy as np
import torch
from custom_torch_models import made
from torch import nn

STATE: dict[str, Any] = {"step": 0, "nested": {"rates": [1.0]}}
SEEN: list[float] = []
STEPS = torch.zeros(())
FILLED = torch.zeros(20_000)
COUNTS = np.zeros(3)
OWN = torch.Generator().manual_seed(1)
SETTINGS = types.SimpleNamespace(calls=0)
LATE: dict[str, int] = {}
N = 0
# Constants, and what only saves time.
SMALL = torch.arange(4.0)
LARGE = torch.ones(50_000)
ROWS = np.ones(50_000, "float32")
TABLES: dict[int, torch.Tensor] = {}
log = logging.getLogger("zoo")


class Using(nn.Module):
    """A layer that changes something by `by` as it is trained."""

    def __init__(self, by: int = 0) -> None:
        super().__init__()
        self.by = by

    @property
    def moves(self) -> bool:
        return self.training and bool(self.by)


class InDict(Using):
    def forward(self, x):
        STATE["step"] += self.moves
        return x / (1 + STATE["step"])


class InNested(Using):
    def forward(self, x):
        if self.moves:
            STATE["nested"]["rates"][0] += 1
        return x / STATE["nested"]["rates"][0]


class InList(Using):
    def forward(self, x):
        if self.moves:
            SEEN.append(1.0)
        return x / (1 + len(SEEN))


class InTensor(Using):
    def forward(self, x):
        if self.moves:
            STEPS.add_(1)
        return x / (1 + STEPS)


class InLargeTensor(Using):
    def forward(self, x):
        if self.moves:
            FILLED[:4] += 1
        return x / (1 + FILLED[:4])


class InArray(Using):
    def forward(self, x):
        if self.moves:
            COUNTS[0] += 1
        return x / (1 + float(COUNTS[0]))


class InGenerator(Using):
    def forward(self, x):
        return x + torch.randn(4, generator=OWN) if self.moves else x


class InNamespace(Using):
    def forward(self, x):
        SETTINGS.calls += self.moves
        return x / (1 + SETTINGS.calls)


class InDictLater(Using):
    def forward(self, x):
        if self.moves:
            LATE["step"] = LATE.get("step", 0) + 1
        return x / (1 + LATE.get("step", 0))


def count(by):
    global N
    N += by
    return N


class ByHelper(Using):
    def forward(self, x):
        return x / (1 + count(int(self.moves)))


class ByStaticMethod(Using):
    @staticmethod
    def count(by):
        STATE["step"] += by
        return STATE["step"]

    def forward(self, x):
        return x / (1 + self.count(int(self.moves)))


class ByProperty(Using):
    @property
    def rate(self):
        STATE["step"] += self.moves
        return STATE["step"]

    def forward(self, x):
        return x / (1 + self.rate)


class ByDecorated(Using):
    @torch.no_grad()
    def rate(self):
        STATE["step"] += self.moves
        return STATE["step"]

    def forward(self, x):
        return x / (1 + self.rate())


class InDefault(Using):
    def forward(self, x, state={"n": 0}):  # noqa: B006 (what it is about)
        state["n"] += self.moves
        return x / (1 + state["n"])


def closing(params):
    """A class of the function, with a method that uses a variable of it."""
    state, calls = {"n": 0}, 0

    class Closing(Using):
        def forward(self, x):
            nonlocal calls
            calls += self.moves
            state["n"] += self.moves
            return x / (1 + state["n"] + calls)

    return made(Closing(params.get("by", 0)))


def using(kind):
    return lambda params: made(kind(params.get("by", 0)))


@functools.lru_cache
def mask(size):
    return torch.ones(size)


def table(size):
    if size not in TABLES:
        TABLES[size] = torch.arange(float(size))
    return TABLES[size]


class Steady(nn.Module):
    """Uses constants of all sizes, a cached function, a table that is filled once, and a logger."""

    scale = 1.0

    @functools.cached_property
    def rate(self):
        return 2.0

    @staticmethod
    @functools.cache
    def offset(size):
        return torch.zeros(size)

    @torch.no_grad()
    def constants(self):
        return SMALL + LARGE[:4] + torch.from_numpy(ROWS[:4])

    def forward(self, x):
        log.debug("a batch of %d", len(x))
        return x * mask(4) + table(4) + self.offset(4) + self.constants() * self.scale
