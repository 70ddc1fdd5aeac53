"""State that trials would share in places where nobody looks: what it changes is refused by name."""

from __future__ import annotations

import functools
import queue
import threading
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from trainer_data import columns, feed

from cerebro_spark.errors import TrialFailed
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

UNIT = Unit("t", 1, "0")


@functools.lru_cache
def cached(name: str) -> dict[str, int]:
    return {"steps": 0}


@functools.cache
def cached_for_ever(name: str = "") -> np.random.Generator:
    return np.random.default_rng(1)


class Once(type):
    instances: dict[str, int] = {}  # noqa: RUF012 (that is the mistake)


class Counting(metaclass=Once):
    pass


class Counter:
    """A decorator with a state."""

    def __init__(self, function: Any) -> None:
        self.function, self.calls = function, 0

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return functools.partial(self, instance)

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.function(*args) * (1 + self.calls)


CONTEXT = ContextVar("CONTEXT", default=0)
LOCAL = threading.local()
LOCAL.steps = 0
QUEUE: queue.Queue[int] = queue.Queue()
SEEDS = np.random.SeedSequence(0)
RNG = np.random.default_rng(0)
OBJECTS = np.array([0, 0], dtype=object)
BANK = torch.zeros(100_000)
LOADED = iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(100.0))))
SOBOL = torch.quasirandom.SobolEngine(2)
PRIOR = torch.distributions.Normal(torch.zeros(1), torch.ones(1))
MADE: list[int] = []


class Made:
    """An object that is made in every step."""

    def __init__(self) -> None:
        MADE.append(len(MADE))


def move_prior() -> None:
    assert PRIOR.variance is not None
    PRIOR.loc = PRIOR.loc + 1


class Holder:
    steps = 0


HOLDER = Holder()
WEAK = weakref.ref(HOLDER)
BY_LAYER: weakref.WeakKeyDictionary[Any, dict[str, int]] = weakref.WeakKeyDictionary({HOLDER: {"steps": 0}})


class Net(nn.Module):
    class State:
        step = 0

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> Any:
        self.change()
        return self.layer(x)[:, 0]

    def change(self) -> None:
        raise NotImplementedError


def count_cached() -> None:
    cached("a")["steps"] += 1


def count_instances() -> None:
    Once.instances["Counting"] = Once.instances.get("Counting", 0) + 1


def count_by_layer() -> None:
    BY_LAYER[HOLDER]["steps"] += 1


def count_weak() -> None:
    held = WEAK()
    assert held is not None
    held.steps += 1


def write_bank() -> None:
    BANK.data[0] += 1


def count_objects() -> None:
    OBJECTS[0] += 1


# What is changed, and how its name is told.
CHANGES: dict[str, tuple[str, Callable[[], Any]]] = {
    "lru_cache": ("cache", count_cached),
    "generator in a cache": ("cache", lambda: cached_for_ever().normal()),
    "context": ("CONTEXT", lambda: CONTEXT.set(CONTEXT.get() + 1)),
    "thread's own": ("LOCAL.steps", lambda: setattr(LOCAL, "steps", LOCAL.steps + 1)),
    "queue": ("QUEUE", lambda: QUEUE.put(1)),
    "seeds": ("SEEDS", lambda: SEEDS.spawn(1)),
    "spawned": ("RNG", lambda: RNG.spawn(1)),
    "objects": (r"OBJECTS\[0\]", count_objects),
    "weak reference": ("steps", count_weak),
    "weak keys": ("steps", count_by_layer),
    "data of a tensor": ("BANK", write_bank),
    "numpy of a tensor": ("BANK", lambda: np.add(BANK.numpy(), 1, out=BANK.numpy())),
    "batches of a loader": ("LOADED", lambda: next(LOADED)),
    "points of a sequence": ("SOBOL", lambda: SOBOL.draw(1)),
    "distribution": ("Normal.loc", move_prior),
    "objects that are made": ("MADE", Made),
    "class inside": ("State.step", lambda: setattr(Net.State, "step", Net.State.step + 1)),
}


def trainer_of(net: Callable[[], Any]) -> TorchTrainer:
    def model_fn(params: Any) -> TorchModel:
        module = net()
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.MSELoss())

    return TorchTrainer(Hooks(model_fn), columns("tabular"), resources=Resources(device="cpu"))


@pytest.mark.parametrize("kind", CHANGES)
def test_what_a_unit_changes_there_is_refused_by_name(kind: str) -> None:
    name, change = CHANGES[kind]
    if kind in ("lru_cache", "generator in a cache"):
        cached("a"), cached_for_ever()

    class Changing(Net):
        def change(self) -> None:
            change()

    trainer = trainer_of(Changing)
    trainer.build("t", {})
    with pytest.raises(TrialFailed, match=rf"`.*{name}.*` changed from .* to .* while training"):
        trainer.train(UNIT, feed("tabular", 0))


def test_a_decorator_that_counts_is_seen() -> None:
    class Counted(Net):
        @Counter
        def forward(self, x: torch.Tensor) -> Any:
            return self.layer(x)[:, 0]

    trainer = trainer_of(Counted)
    trainer.build("t", {})
    with pytest.raises(TrialFailed, match=r"`.*calls` changed from 0 to "):
        trainer.train(UNIT, feed("tabular", 0))


def test_instances_that_a_metaclass_keeps_are_seen() -> None:
    class Kept(Net):
        def change(self) -> None:
            assert Counting is not None
            count_instances()

    trainer = trainer_of(Kept)
    trainer.build("t", {})
    trainer.train(UNIT, feed("tabular", 0))
    with pytest.raises(TrialFailed, match=r"instances.*changed from .* to .* while training"):
        trainer.train(Unit("t", 1, "1"), feed("tabular", 0))


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.seen = torch.zeros(2)
        self.rates = [0.5]
        self.layer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        return self.layer(x).flatten() * self.rates[0]


class Stepping(Scripted):
    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        self.steps += 1
        return self.layer(x).flatten() / self.steps


class Seeing(Scripted):
    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        self.seen += 1
        return self.layer(x).flatten() / self.seen[0]


class Slowing(Scripted):
    def forward(self, x: torch.Tensor):  # type: ignore[no-untyped-def]
        self.rates[0] = self.rates[0] / 2
        return self.layer(x).flatten() * self.rates[0]


@pytest.mark.parametrize(("kind", "name"), [(Stepping, "steps"), (Seeing, "seen"), (Slowing, "rates")])
def test_what_a_scripted_module_counts_is_seen(kind: type[nn.Module], name: str) -> None:
    trainer = trainer_of(lambda: torch.jit.script(kind()))
    trainer.build("t", {})
    with pytest.raises(TrialFailed, match=rf"{name}` changed from .* to .* while training"):
        trainer.train(UNIT, feed("tabular", 0))


def test_a_scripted_module_that_counts_nothing_is_trained() -> None:
    trainer = trainer_of(lambda: torch.jit.script(Scripted()))
    trainer.build("t", {})
    for part in "01":
        trainer.train(Unit("t", 1, part), feed("tabular", 0))


def test_what_a_distribution_computes_when_it_is_asked_is_no_state() -> None:
    class Mixing(Net):
        def __init__(self) -> None:
            super().__init__()
            self.mixing = torch.distributions.Categorical(logits=torch.zeros(3))

        def change(self) -> None:
            assert self.mixing.probs is not None

    trainer = trainer_of(Mixing)
    trainer.build("t", {})
    for part in "01":
        trainer.train(Unit("t", 1, part), feed("tabular", 0))


def test_what_only_saves_time_may_fill() -> None:
    tables: weakref.WeakKeyDictionary[Any, torch.Tensor] = weakref.WeakKeyDictionary()

    class Filling(Net):
        def change(self) -> None:
            cached(f"another {len(self.layer.weight)}")
            tables.setdefault(self.layer, torch.ones(3))

    trainer = trainer_of(Filling)
    trainer.build("t", {})
    for part in "01":
        trainer.train(Unit("t", 1, part), feed("tabular", 0))
