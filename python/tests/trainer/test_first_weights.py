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
