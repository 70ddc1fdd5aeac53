"""The parts of the law, each for one model in a trainer of its own. They only do and tell; the test compares."""

from __future__ import annotations

import gc
import importlib
import io
import socket
import warnings
from pathlib import Path
from typing import Any

from specimen import Specimen, columns, feed

from cerebro_spark.errors import CheckpointError, ConfigurationError, TrialFailed
from cerebro_spark.trainer import Hooks, Resources, Trainer
from cerebro_spark.types import Unit

OWN, OTHER = {"lr": 1e-3}, {"lr": 1e-2}

_trainer_class: Any = None


def start(framework: str) -> None:
    """Load the trainer. The warnings are of those who wrote the models, and not for us to mend."""
    global _trainer_class
    warnings.simplefilter("ignore")
    kind = "torch" if framework == "torch" else "keras"
    module = importlib.import_module(f"cerebro_spark.trainer.{kind}.trainer")
    _trainer_class = module.TorchTrainer if kind == "torch" else module.KerasTrainer
    assert framework == _trainer_class.framework
    socket.socket.connect = _stay_here  # type: ignore[method-assign]


def _stay_here(self: socket.socket, address: Any) -> None:
    raise RuntimeError(f"a model of the zoo calls {address}, but none may need the network")


def run(part: str, name: str, folder: Path) -> Any:
    """One part of the law for the model of that name: what it measured, or how it was refused."""
    specimen = importlib.import_module("zoo_list").SPECIMENS[name]
    try:
        return {"straight": straight, "crowded": crowded, "hopped": hopped}[part](specimen, folder)
    except (TrialFailed, ConfigurationError, CheckpointError) as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    finally:
        gc.collect()


def straight(specimen: Specimen, folder: Path) -> Any:
    """Two units one after the other, with nothing else in the process."""
    trainer = _fresh(specimen)
    trainer.build("t1", OWN)
    metrics = [_train(trainer, specimen, "t1", epoch) for epoch in (1, 2)]
    return _end(trainer, specimen, folder / "straight", metrics)


def crowded(specimen: Specimen, folder: Path) -> Any:
    """The same units after a rehearsal, by turns with a trial of the same structure, and with evaluations between.

    In the end both are measured one after the other, with no training in between.
    """
    trainer = _fresh(specimen)
    trainer.build("rehearsal", OTHER)
    _train(trainer, specimen, "rehearsal", 1, batches=1)
    _evaluate(trainer, specimen, "rehearsal")
    trainer.build("t0", OTHER)
    _train(trainer, specimen, "t0", 1)
    other = io.BytesIO()
    trainer.save(other)
    trainer.build("t1", OWN)
    metrics = [_train(trainer, specimen, "t1", 1)]
    _evaluate(trainer, specimen, "t1")
    trainer.save(folder / "between")
    trainer.load("t0", OTHER, other.getvalue())
    _train(trainer, specimen, "t0", 2)
    trainer.load("t1", OWN, folder / "between")
    metrics.append(_train(trainer, specimen, "t1", 2))
    saved = trainer.save(folder / "crowded")
    trainer.load("t0", OTHER, other.getvalue())
    _evaluate(trainer, specimen, "t0")
    trainer.load("t1", OWN, folder / "crowded")
    return {"digest": saved.digest, "metrics": metrics, "measured": _evaluate(trainer, specimen, "t1")}


def hopped(specimen: Specimen, folder: Path) -> Any:
    """The second unit alone, where the model has never been, from what the first left in another process."""
    trainer = _fresh(specimen)
    trainer.load("t1", OWN, folder / "between")
    return _end(trainer, specimen, folder / "hopped", [_train(trainer, specimen, "t1", 2)])


def _fresh(specimen: Specimen) -> Trainer:
    resources = Resources(threads=1, device="cpu")
    trainer: Trainer = _trainer_class(Hooks(specimen.make), columns(specimen.data), seed=7, resources=resources)
    return trainer


def _train(trainer: Trainer, specimen: Specimen, trial: str, epoch: int, **cut: int) -> dict[str, float]:
    unit = Unit(trial, epoch, str(epoch))
    return trainer.finish(trainer.train(unit, feed(specimen.data, epoch, epoch, **cut)))


def _evaluate(trainer: Trainer, specimen: Specimen, trial: str) -> dict[str, float]:
    return trainer.finish(trainer.evaluate(Unit(trial, 1, "3", "eval"), feed(specimen.data, 3, 1)))


def _end(trainer: Trainer, specimen: Specimen, target: Path, metrics: list[dict[str, float]]) -> Any:
    saved = trainer.save(target)
    return {"digest": saved.digest, "metrics": metrics, "measured": _evaluate(trainer, specimen, "t1")}
