"""Measures one trial on several workers of a machine, against the same trial on one. It needs no Spark.

    python -m benchmarks.group_trial [--workers N ...] [--works cnn mlp] [--epochs 6] [--json FILE]

One trial of a CNN without BatchNorm (batches of 512 images) and of a small MLP (batches of 64 rows), one thread a
worker. Each is trained by one worker, by groups of N, and with `workers_per_trial="auto"`, which is to find out by
itself that groups pay for the CNN and not for the MLP. All train on the same partitions, and their workers are there
already. The epochs after the first two are compared, since "auto" measures in these, and whole searches beside them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import cerebro_spark as cs
from benchmarks.circumstances import circumstances

# The epochs in which "auto" finds out what pays.
_SETTLING = 2


class Kind(NamedTuple):
    """What is trained: the shape of a row, how many there are, and the batch."""

    shape: tuple[int, ...]
    rows: int
    batch: int


KINDS = {"cnn": Kind((3, 32, 32), 8_192, 512), "mlp": Kind((128,), 32_768, 64)}


def cnn_model(params: dict[str, Any]) -> cs.TorchModel:
    import torch
    from torch import nn

    module = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1024, 1),
        nn.Flatten(0),
    )
    return cs.TorchModel(module, torch.optim.Adam(module.parameters(), lr=params["lr"]), nn.MSELoss())


def mlp_model(params: dict[str, Any]) -> cs.TorchModel:
    import torch
    from torch import nn

    module = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1), nn.Flatten(0))
    return cs.TorchModel(module, torch.optim.Adam(module.parameters(), lr=params["lr"]), nn.MSELoss())


MODELS = {"cnn": cnn_model, "mlp": mlp_model}


def prepare(name: str, store: str, partitions: int) -> cs.Dataset:
    kind, draws = KINDS[name], np.random.default_rng(0)
    x = draws.normal(size=(kind.rows, *kind.shape)).astype("float32")
    y = x.reshape(kind.rows, -1)[:, :8].sum(axis=1)
    return cs.prepare({"x": x, "y": y}, store=store, features="x", label="y", partitions=partitions)


def train(name: str, dataset: cs.Dataset, store: str, epochs: int, workers: int, group: Any) -> dict[str, Any]:
    """Train the trial with workers that are there already, and return what it took."""
    with cs.LocalBackend(num_workers=workers, threads=1) as backend:
        for count in (1, epochs):  # the first search is there to have workers
            search = cs.GridSearch(
                MODELS[name],
                space={"lr": 1e-3, "batch_size": KINDS[name].batch},
                backend=backend,
                store=store,
                metric="loss",
                epochs=count,
                progress=False,
                framework="torch",
                resources=cs.Resources(device="cpu", threads=1),
                workers_per_trial=group,
            )
            began = time.perf_counter()
            units = search.fit(dataset).units
            wall = time.perf_counter() - began
    settled = units[(units.kind == "train") & (units.epoch > _SETTLING)]
    return {
        "wall_s": wall,
        "epoch_s": float(settled.end.max() - settled.start.min()) / (epochs - _SETTLING),
        "group": float(settled.group.mean()),
        "loss": float(units.loss.iloc[-1]),
    }


def measure(name: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    store = str(folder / name)
    dataset = prepare(name, store, max(options.workers))
    ways: list[tuple[str, int, Any]] = [("1 worker", 1, 1)]
    ways += [(f"groups of {count}", count, count) for count in options.workers]
    ways += [(f"auto with {count}", count, "auto") for count in options.workers]
    for title, workers, group in ways:
        found[title] = train(name, dataset, store, options.epochs, workers, group)
        one, this = found["1 worker"], found[title]
        print(
            f"{name}: {title:14} an epoch {this['epoch_s']:6.2f} s, {one['epoch_s'] / this['epoch_s']:5.2f} x as fast"
            f"   whole search {this['wall_s']:6.1f} s, {one['wall_s'] / this['wall_s']:5.2f} x"
            f"   workers a unit {this['group']:.1f}   last loss {this['loss']:.6f}",
            flush=True,
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=[len(os.sched_getaffinity(0))])
    parser.add_argument("--works", nargs="+", choices=sorted(KINDS), default=sorted(KINDS))
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.epochs <= _SETTLING:
        parser.error(f"--epochs is {options.epochs}, but must be more than {_SETTLING}")
    with tempfile.TemporaryDirectory() as folder:
        found = {name: measure(name, options, Path(folder)) for name in options.works}
    if options.json:
        options.json.write_text(json.dumps({**circumstances("benchmarks.group_trial"), **found}, indent=1))


if __name__ == "__main__":
    main()
