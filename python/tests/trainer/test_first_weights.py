"""The first weights of a trial do not depend on how many models its worker has built before."""

from __future__ import annotations

import functools
import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from trainer_data import columns

from cerebro_spark.errors import TrialFailed
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.trainer import TorchTrainer

OWN = np.random.default_rng(5)


def draw_globally() -> float:
    return float(OWN.normal())


class Starting:
    """Draws from a generator of its own when it is called."""

    def __init__(self) -> None:
        self.generators = {"first": [np.random.RandomState(3)]}

    def __call__(self) -> float:
        return float(self.generators["first"][0].normal())


def drawing(generator: Any, draw: Callable[[Any], float]) -> Callable[[], float]:
    return lambda: draw(generator)


DRAWS: dict[str, Callable[[], Callable[[], float]]] = {
    "a global": lambda: draw_globally,
    "a partial": lambda: functools.partial(draw_globally),
    "an object": Starting,
    "NumPy": lambda: drawing(np.random.default_rng(1), lambda g: float(g.normal())),
    "NumPy's bits": lambda: drawing(np.random.PCG64(1), lambda g: float(g.random_raw() % 100)),
    "Python": lambda: drawing(random.Random(1), lambda g: g.random()),
    "PyTorch": lambda: drawing(torch.Generator().manual_seed(1), lambda g: float(torch.rand((), generator=g))),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_of_the_function_begins_anew_for_every_model(name: str) -> None:
    draw = DRAWS[name]()

    def model_fn(params: Any) -> TorchModel:
        module = nn.Linear(8, params["width"])
        nn.init.constant_(module.weight, draw() + draw())
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())

    def first_weights(trainer: TorchTrainer, width: int) -> str:
        trainer.build("t", {"width": width})
        return trainer.save(io.BytesIO()).digest

    def new_trainer() -> TorchTrainer:
        return TorchTrainer(Hooks(model_fn), columns("tabular"), resources=Resources(device="cpu", threads=1))

    trainer = new_trainer()
    digests = [first_weights(trainer, width) for width in (1, 2, 1)]
    assert digests[0] == digests[2]
    assert first_weights(new_trainer(), 2) == digests[1]


def test_default_generators_are_seeded_by_trial_even_if_the_function_names_them() -> None:
    default: Any = vars(random)["_inst"]  # the generator behind the functions of `random`

    def model_fn(params: Any) -> TorchModel:
        module = nn.Linear(8, 1)
        nn.init.constant_(module.weight, float(np.random.normal()) + default.random())
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())

    trainer = TorchTrainer(Hooks(model_fn), columns("tabular"), resources=Resources(device="cpu", threads=1))
    weights, states = [], []
    for trial in ("t1", "t2", "t1"):
        trainer.build(trial, {})
        states.append(trainer.save(io.BytesIO()).digest)
        weights.append(float(trainer.model().module.weight.detach()[0, 0]))
    assert weights[0] == weights[2] != weights[1]
    assert states[0] == states[2] != states[1]


def cached_of(draw: Callable[[], Any]) -> Callable[[], Any]:
    return functools.cache(draw)


CACHED_DRAWS: dict[str, Callable[[], Any]] = {
    "PyTorch": lambda: float(torch.rand(())),
    "NumPy": lambda: float(np.random.normal()),
    "Python": random.random,
    "a layer that is not used": lambda: float(nn.Linear(3, 3).in_features),
}


def model_with(scale: Callable[[], float]) -> Callable[[Any], TorchModel]:
    def model_fn(params: Any) -> TorchModel:
        factor = scale()
        module = nn.Linear(8, 1)
        with torch.no_grad():
            module.weight.mul_(factor)
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())

    return model_fn


def trainer_with(model_fn: Any) -> TorchTrainer:
    return TorchTrainer(Hooks(model_fn), columns("tabular"), resources=Resources(device="cpu"))


@pytest.mark.parametrize("name", CACHED_DRAWS)
def test_a_cached_function_that_draws_random_numbers_is_refused_by_name(name: str) -> None:
    scale = cached_of(CACHED_DRAWS[name])
    depends = "(the first weights|what its steps draw at random) would depend"
    with pytest.raises(TrialFailed, match=rf"an empty cache to a filled one .*{depends} .*fork_rng"):
        trainer_with(model_with(scale)).build("t", {})
    assert scale.cache_info().currsize == 0  # type: ignore[attr-defined]


def test_a_cached_method_is_seen_too() -> None:
    class Scale:
        @functools.cache  # noqa: B019 (the object lives as long as the test)
        def draw(self) -> float:
            return float(torch.rand(()))

    own = Scale()
    with pytest.raises(TrialFailed, match=r"Scale.draw. changed from an empty cache"):
        trainer_with(model_with(lambda: own.draw())).build("t", {})


def test_cached_functions_that_draw_nothing_or_put_the_generators_back_may_be_used() -> None:
    calls = []

    @functools.cache
    def steady() -> float:
        calls.append(1)
        return 2.0

    @functools.cache
    def seeded() -> float:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return float(torch.rand(()))

    trainer = trainer_with(model_with(lambda: steady() * seeded()))
    digests = []
    for _ in range(3):
        trainer.build("t", {})
        digests.append(trainer.save(io.BytesIO()).digest)
    assert len(set(digests)) == 1
    assert len(calls) == 1
