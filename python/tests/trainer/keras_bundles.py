"""Trains Keras trials in bundles and one by one, in a process with Keras on PyTorch. Nothing here asserts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import torch
from bundle_runs import describe, make_member
from keras import layers, optimizers
from keras.optimizers import schedules
from plain_loop import logged
from small_search import keras_model_fn, small_dataset
from trainer_cases_keras import Scaled, compiled, focal, mlp, several
from trainer_data import columns

from cerebro_spark import runs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.events import UnitFinished
from cerebro_spark.recipe import Recipe
from cerebro_spark.search import FixedSearch
from cerebro_spark.trainer import Hooks, Resources
from cerebro_spark.trainer.keras.trainer import KerasTrainer
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Objective

UNITS = [(1, 0), (1, 1), (2, 0)]


def optimized(make):
    return lambda params: compiled(mlp(), make(params), metrics=["accuracy"])


def layered(*makes, **options):
    return lambda params: compiled(mlp(*[make(params) for make in makes]), optimizers.Adam(params["lr"]), **options)


def penalized(params):
    hidden = layers.Dense(8, kernel_regularizer="l2", activity_regularizer="l1")
    return compiled(mlp(hidden), optimizers.Adam(params["lr"]), metrics=["AUC"])


def tokens(params):
    body = [layers.Embedding(20, 8), layers.GlobalAveragePooling1D(), layers.Dense(1, activation="sigmoid")]
    return compiled(keras.Sequential(body), optimizers.Adam(params["lr"]))


class Jittered(layers.Layer):
    """Draws from NumPy's generator."""

    def call(self, x, training=False):
        return x * (1 + float(np.random.normal()) / 10) if training else x


class Clipped(layers.Layer):
    """Reads a number from a tensor, without a kernel that shows it."""

    def call(self, x):
        return x / max(1.0, np.abs(x.detach().numpy()).max().item())


def decaying(params):
    return optimizers.Adam(schedules.ExponentialDecay(params["lr"], 3, 0.9))


STACKED = {
    "sgd": (optimized(lambda params: optimizers.SGD(params["lr"])), "tabular"),
    "nesterov": (optimized(lambda params: optimizers.SGD(params["lr"], momentum=0.9, nesterov=True)), "tabular"),
    "adam": (optimized(lambda params: optimizers.Adam(params["lr"], global_clipnorm=0.1)), "weighted"),
    "adamw": (optimized(lambda params: optimizers.AdamW(params["lr"], weight_decay=0.01 + params["decay"])), "tabular"),
    "rmsprop": (optimized(lambda params: optimizers.RMSprop(params["lr"], momentum=0.5, centered=True)), "tabular"),
    "schedule": (optimized(decaying), "tabular"),
    "normalized": (layered(lambda _: layers.BatchNormalization(), lambda _: layers.LayerNormalization()), "tabular"),
    "dropout": (layered(lambda params: layers.Dropout(0.1 + params["decay"])), "tabular"),
    "penalties": (penalized, "tabular"),
    "custom": (layered(lambda _: Scaled(), loss=focal), "tabular"),
    "several": (several, "several"),
    "embedding": (tokens, "tokens"),
}
REFUSED = {
    "seeded dropout": (layered(lambda _: layers.Dropout(0.2, seed=3)), "a seed of its own"),
    "noise": (layered(lambda _: layers.GaussianNoise(0.2)), "a seed of its own"),
    "host noise": (layered(lambda _: Jittered()), "from Python or NumPy"),
    "reading": (layered(lambda _: Clipped()), "reads numbers from tensors"),
    "accumulating": (
        optimized(lambda params: optimizers.Adam(params["lr"], gradient_accumulation_steps=2)),
        "reads numbers from tensors",
    ),
    "wrapped module": (
        layered(lambda _: layers.TorchModuleWrapper(torch.nn.Linear(16, 16))),
        "a module of PyTorch",
    ),
}


def make_trainer(model_fn: Any, kind: str) -> KerasTrainer:
    """A trainer that stacks all members of a bundle, whatever is fastest."""
    resources = Resources(device="cpu", threads=1)
    trainer = KerasTrainer(Hooks(model_fn), columns(kind), seed=7, resources=resources)
    trainer.widths_are_tried = False
    return trainer


def compare(model_fn: Any, kind: str, width: int, rates: dict[int, float] | None = None) -> Any:
    """Several units of some trials, in bundles and alone."""
    bundled, single = make_trainer(model_fn, kind), make_trainer(model_fn, kind)
    together: list[Any] = [None] * width
    alone: list[Any] = [None] * width
    seen: dict[str, Any] = {"same": [], "widths": [], "failed": []}
    for epoch, partition in UNITS:
        more = {number: {"params": {"lr": rate, "decay": 0.0}} for number, rate in (rates or {}).items()}
        members = [make_member(kind, i, epoch, partition, together[i], **more.get(i, {})) for i in range(width)]
        together = bundled.train_together(members)
        singly = [make_member(kind, i, epoch, partition, alone[i], **more.get(i, {})) for i in range(width)]
        alone = [single._train_member(member, "xxh3") for member in singly]
        seen["same"] += [describe(one) == describe(other) for one, other in zip(together, alone, strict=True)]
        seen["widths"] += [getattr(outcome, "width", 0) for outcome in together]
        seen["failed"] += [type(outcome).__name__ for outcome in together if isinstance(outcome, Exception)]
    reasons = [structure.reason for structure in bundled.structures.values() if structure.reason is not None]
    return {**seen, "reasons": reasons}


def stacked(case: str) -> Any:
    return compare(*STACKED[case], width=3)


def refused(case: str) -> Any:
    model_fn, reason = REFUSED[case]
    seen = compare(model_fn, "tabular", width=2)
    return {**seen, "as_said": bool(seen["reasons"]) and all(reason in each for each in seen["reasons"])}


def diverging() -> Any:
    """One of three has a loss that is not finite."""
    model_fn = lambda params: compiled(mlp(activation=None), optimizers.SGD(params["lr"]), "mse")  # noqa: E731
    return compare(model_fn, "tabular", width=3, rates={1: 1e30})


def searched(folder: str) -> Any:
    """A search in bundles and the same one trial by trial: the digests of all units, and the widths."""

    class AnyWidth(KerasTrainer):
        widths_are_tried = False

    # One partition, so that all trials visit it in the same order in both.
    dataset = small_dataset(Path(folder), partitions=1)
    trainer = TrainerSpec(Hooks(keras_model_fn), seed=3, framework=AnyWidth)
    search = FixedSearch([{"lr": 0.002 * (1 + n), "batch_size": 16} for n in range(4)], 2)
    found = []
    for run, fuse in (("bundled", 4), ("single", 1)):
        recipe = Recipe(search, Objective("val_loss", "min"), dataset, trainer, fuse=fuse)
        runs.execute(recipe, dataset.store, LocalBackend(1, threads=1), run)
        events = [event for event in logged(dataset.store, run) if isinstance(event, UnitFinished)]
        trained = {str(event.unit): event for event in events if event.checkpoint is not None}
        digests = {unit: event.checkpoint.digest for unit, event in trained.items() if event.checkpoint is not None}
        found.append({"digests": digests, "widths": sorted(event.width for event in trained.values())})
    return found
