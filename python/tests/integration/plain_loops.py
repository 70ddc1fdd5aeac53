"""What a run must come to: each framework's own loop over the same batches in the logged order. It knows no trainer.

Run as a script, it is a process with one thread that trains what it reads from a file: TensorFlow takes its number of
threads only before its first use, and results depend on it to the last bit.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Course:
    """A trial as it was trained: by epoch, each partition visited and the order of its rows there."""

    seed: int
    params: Mapping[str, Any]
    epochs: Sequence[Sequence[tuple[str, np.ndarray[Any, Any]]]]


@dataclass(frozen=True)
class Epoch:
    """What a trial is after an epoch: its weights by name, and what was measured."""

    weights: Mapping[str, np.ndarray[Any, Any]]
    metrics: Mapping[str, float]


def train_plainly(
    framework: str, courses: Mapping[str, Course], train: Mapping[str, Arrays], validation: Arrays, folder: Path
) -> dict[str, list[Epoch]]:
    """Train every trial in a process of its own, and return its epochs."""
    given, made = folder / f"{framework}-courses.pickle", folder / f"{framework}-epochs.pickle"
    given.write_bytes(pickle.dumps((courses, train, validation)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, __file__, framework, str(given), str(made)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[Epoch]] = pickle.loads(made.read_bytes())
    return found


def _batches(course: Course, epoch: int, train: Mapping[str, Arrays]) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    size = course.params["batch_size"]
    for partition, order in course.epochs[epoch]:
        starts = list(range(0, len(order), size))
        if len(order) > size > 1 and len(order) % size == 1:
            starts.pop()  # a single row that is left over goes with the batch before it
        for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
            rows = order[start:stop]
            yield {name: array[rows] for name, array in train[partition].items()}


def keras_loop(course: Course, train: Mapping[str, Arrays], validation: Arrays) -> list[Epoch]:
    """`fit`, an epoch at a time, and `evaluate` on all rows."""
    import keras
    from trial_models import keras_model_fn

    keras.utils.set_random_seed(course.seed)
    model = keras_model_fn(course.params)
    made = []
    for epoch in range(len(course.epochs)):
        batches = [(batch["features"], batch["label"]) for batch in _batches(course, epoch, train)]
        # Without their number, `fit` learns of the last batch by one step too many, which draws numbers for dropout.
        done = model.fit((batch for batch in batches), steps_per_epoch=len(batches), shuffle=False, verbose=0)
        weights = {f"{index:04d}": variable.numpy() for index, variable in enumerate(model.variables)}
        measured = model.evaluate(validation["features"], validation["label"], verbose=0, return_dict=True)
        made.append(Epoch(weights, _values({name: value for name, (value,) in done.history.items()}, measured)))
    return made


def torch_loop(course: Course, train: Mapping[str, Arrays], validation: Arrays) -> list[Epoch]:
    import torch
    from trial_models import torch_model_fn

    torch.manual_seed(course.seed)
    made = torch_model_fn(course.params)
    epochs = []
    for epoch in range(len(course.epochs)):
        made.module.train()
        seen: list[tuple[Any, Any, float]] = []
        for batch in _batches(course, epoch, train):
            label = torch.from_numpy(batch["label"])
            made.optimizer.zero_grad()
            output = made.module(torch.from_numpy(batch["features"]))
            loss = made.loss(output, label)
            loss.backward()
            made.optimizer.step()
            seen.append((output.detach(), label, loss.item()))
        weights = {name: value.numpy().copy() for name, value in made.module.state_dict().items()}
        made.module.eval()
        with torch.no_grad():
            label = torch.from_numpy(validation["label"])
            output = made.module(torch.from_numpy(validation["features"]))
            measured = _torch_metrics(made, [(output, label, made.loss(output, label).item())])
        epochs.append(Epoch(weights, _values(_torch_metrics(made, seen), measured)))
    return epochs


def _torch_metrics(made: Any, seen: Sequence[tuple[Any, Any, float]]) -> dict[str, float]:
    import torch

    outputs, labels = torch.cat([output for output, _, _ in seen]), torch.cat([label for _, label, _ in seen])
    made.metrics["auc"].reset()
    made.metrics["auc"].update(outputs, labels)
    return {
        "loss": sum(loss * len(label) for _, label, loss in seen) / len(labels),
        "accuracy": float(made.metrics["accuracy"](outputs, labels).mean()),
        "auc": made.metrics["auc"].compute(),
    }


def _values(trained: Mapping[str, Any], measured: Mapping[str, Any]) -> dict[str, float]:
    values = {**trained, **{f"val_{name}": value for name, value in measured.items()}}
    return {name: float(value) for name, value in values.items()}


def main(framework: str, given: str, made: str) -> None:
    courses, train, validation = pickle.loads(Path(given).read_bytes())
    if framework == "keras":
        import tensorflow as tf

        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        loop = keras_loop
    else:
        import torch

        torch.set_num_threads(1)
        loop = torch_loop
    epochs = {trial: loop(course, train, validation) for trial, course in courses.items()}
    Path(made).write_bytes(pickle.dumps(epochs))


if __name__ == "__main__":
    # What is unpickled here, and what the caller unpickles, are classes of the module, not of a script.
    import plain_loops

    plain_loops.main(*sys.argv[1:])
