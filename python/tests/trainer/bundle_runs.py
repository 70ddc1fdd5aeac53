"""Trains the same trials in bundles and one by one, through real checkpoints. Nothing here asserts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from trainer_data import BATCH, ROWS, arrays, columns

from cerebro_spark.trainer import Feed, Hooks, Resources
from cerebro_spark.trainer.base import Member, TrainedMember
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

Outcome = TrainedMember | Exception


def make_trainer(model_fn: Any, kind: str, threads: int = 1, **hooks: Any) -> TorchTrainer:
    """A trainer that stacks all members of a bundle, whatever is fastest."""
    trainer = TorchTrainer(
        Hooks(model_fn, **hooks), columns(kind), seed=7, resources=Resources(device="cpu", threads=threads)
    )
    trainer.widths_are_tried = False
    return trainer


def params_of(number: int) -> dict[str, float]:
    return {"lr": 0.003 * (1 + number), "decay": 0.1 * (number % 4)}


def make_feed(kind: str, number: int, epoch: int, partition: int, rows: int = ROWS, size: int = BATCH) -> Feed:
    order = np.random.default_rng([number, epoch, partition]).permutation(rows)
    return Feed(shared_arrays(kind, partition, rows), order, batch_size=size, key=str(partition), smallest=2)


_arrays: dict[Any, Any] = {}


def shared_arrays(kind: str, partition: int, rows: int) -> Any:
    """The arrays of a partition, the same objects for all members, as a worker's cache has them."""
    return _arrays.setdefault((kind, partition, rows), arrays(kind, partition, rows))


def make_member(kind: str, number: int, epoch: int, partition: int, parent: Outcome | None, **more: Any) -> Member:
    rows, size = more.pop("rows", ROWS), more.pop("size", BATCH)
    if isinstance(parent, TrainedMember):
        more = {"source": parent.checkpoint.getvalue(), "digest": parent.saved.digest, **more}
    unit = Unit(f"t{number}", epoch, str(partition))
    feed = make_feed(kind, number, epoch, partition, rows, size)
    return Member(unit, more.pop("params", params_of(number)), feed, final=True, **more)


def train_alone(trainer: TorchTrainer, members: Sequence[Member]) -> list[Outcome]:
    return [trainer._train_member(member, "xxh3") for member in members]


def describe(outcome: Outcome) -> Any:
    """All that must be the same, whoever else was in the bundle."""
    if isinstance(outcome, Exception):
        return type(outcome).__name__
    return outcome.checkpoint.getvalue(), outcome.saved, outcome.metrics, outcome.values


def reasons(trainer: TorchTrainer) -> list[str]:
    return [structure.reason for structure in trainer.structures.values() if structure.reason is not None]
