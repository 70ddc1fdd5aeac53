"""Measures whole searches on one GPU against plain PyTorch loops, one trial after another. It installs nothing.

    python -m benchmarks.gpu_search [--json FILE] [--only NAME ...] [--rounds N]

numpy, pandas, torch, safetensors, pyarrow, xxhash and cloudpickle are all that must be there. Both train the same
models on the same rows, in batches of 256 by Adam in float32 for three epochs, and measure all validation rows after
each epoch. The loops keep the data on the GPU, gather there, and wait for the GPU once an epoch. The search is `fit` of
a prepared data set on a LocalBackend with one worker; all it does is counted, from the call to the result. It is run
twice inside a `with` block: first without, then with workers that are already there. Loops and searches take turns,
each after the other has ended.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import cerebro_spark as cs
from benchmarks.circumstances import circumstances
from benchmarks.gpu_unit import resnet18
from cerebro_spark import hp

EPOCHS, BATCH, VALIDATION = 3, 256, 0.1
CLASSES = 10


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
    )  # fmt: skip


def cnn(*channels: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Unflatten(1, (3, 32, 32))]
    for inputs, outputs in zip((3, *channels), channels, strict=False):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], CLASSES))


class Transformer(nn.Module):
    """Two layers of width 128 over 64 tokens."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.1, batch_first=True)
        self.first, self.layers, self.last = (
            nn.Linear(16, 128),
            nn.TransformerEncoder(layer, 2),
            nn.Linear(128, CLASSES),
        )

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.layers(self.first(x.view(len(x), 64, 16))).mean(1))


def large_cnn() -> nn.Module:
    return cnn(64, 128, 256)


def small_cnn() -> nn.Module:
    return cnn(32, 64)


def resnet() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (3, 32, 32)), resnet18())


@dataclass(frozen=True)
class Work:
    """A search: how many trials of which model, on how many rows of how many features."""

    make: Callable[[], nn.Module]
    trials: int
    rows: int
    features: int
    goal: float

    @property
    def loss(self) -> nn.Module:
        return nn.MSELoss() if self.make is mlp else nn.CrossEntropyLoss()

    def data(self) -> dict[str, np.ndarray[Any, Any]]:
        rng = np.random.default_rng(0)
        x = rng.normal(size=(self.rows, self.features)).astype("float32")
        if self.make is mlp:
            return {"x": x, "y": np.tanh(x @ rng.normal(size=self.features).astype("float32"))}
        y = rng.integers(0, CLASSES, self.rows)
        return {"x": x + rng.normal(size=(CLASSES, self.features)).astype("float32")[y] / 4, "y": y}

    def rates(self) -> list[float]:
        return [float(rate) for rate in np.geomspace(1e-4, 1e-2, self.trials)]


WORKS = {
    "CNN": Work(large_cnn, 8, 40_000, 3072, 0.6),
    "MLP": Work(mlp, 8, 200_000, 64, 0.1),
    "MLP, 32 trials": Work(mlp, 32, 200_000, 64, 0.02),
    "small CNN, 32 trials": Work(small_cnn, 32, 40_000, 3072, 0.25),
    "transformer, 32 trials": Work(Transformer, 32, 40_000, 1024, 0.35),
    "ResNet-18, one trial": Work(resnet, 1, 40_000, 3072, 1.02),
}


def run_loops(work: Work, data: Mapping[str, np.ndarray[Any, Any]]) -> tuple[float, float]:
    """Train the trials one after another; return the seconds, and the lowest validation loss."""
    began = time.perf_counter()
    cut = int(work.rows * (1 - VALIDATION))
    x, y = (torch.from_numpy(data[name]).cuda() for name in ("x", "y"))
    best = min(run_loop(work, rate, x, y, cut) for rate in work.rates())
    return time.perf_counter() - began, best


def run_loop(work: Work, rate: float, x: torch.Tensor, y: torch.Tensor, cut: int) -> float:
    torch.manual_seed(0)
    module, loss = work.make().cuda(), work.loss
    optimizer = torch.optim.Adam(module.parameters(), lr=rate)
    measured = []
    for _ in range(EPOCHS):
        module.train()
        total = torch.zeros((), device="cuda", dtype=torch.float64)
        for rows in torch.randperm(cut, device="cuda").split(BATCH):
            optimizer.zero_grad()
            value = loss(module(x[rows]), y[rows])
            value.backward()
            optimizer.step()
            total += value.detach() * len(rows)
        module.eval()
        with torch.no_grad():
            valid = sum(
                loss(module(a), b) * len(a) for a, b in zip(x[cut:].split(BATCH), y[cut:].split(BATCH), strict=True)
            )
        measured.append(float(valid) / (len(x) - cut))
    return min(measured)


def run_search(work: Work, dataset: Any, store: str, backend: Any, **options: Any) -> tuple[float, Any]:
    """Run the search; return its seconds and its result."""

    def model_fn(params: Mapping[str, Any]) -> cs.TorchModel:
        module = work.make()
        return cs.TorchModel(module, torch.optim.Adam(module.parameters(), lr=params["lr"]), work.loss)

    search = cs.GridSearch(
        model_fn,
        space={"lr": hp.choice(work.rates()), "batch_size": BATCH},
        backend=backend,
        fuse="auto",
        store=store,
        metric="val_loss",
        epochs=EPOCHS,
        progress=False,
        framework="torch",
        **options,
    )
    began = time.perf_counter()
    result = search.fit(dataset)
    return time.perf_counter() - began, result


def measure(name: str, work: Work, folder: str, rounds: int) -> dict[str, Any]:
    """Let loops and search take turns; return the seconds of both, and what their best models measure."""
    data = work.data()
    store = str(Path(folder) / name)
    dataset = cs.prepare(dict(data), store=store, features="x", label="y", partitions=1, validation=VALIDATION)
    x, y = (torch.from_numpy(data[key][: BATCH * 8]).cuda() for key in ("x", "y"))
    run_loop(work, 1e-3, x, y, BATCH * 7)  # what a process does once
    found: dict[str, Any] = {"goal": work.goal, "loops": [], "new workers": [], "workers there": [], "training": []}
    for _ in range(rounds):
        seconds, best = run_loops(work, data)
        torch.cuda.empty_cache()
        found["loops"].append(seconds)
        with cs.LocalBackend(num_workers=1) as backend:
            found["new workers"].append(run_search(work, dataset, store, backend)[0])
            seconds, result = run_search(work, dataset, store, backend)
        found["workers there"].append(seconds)
        units = result.units
        found["training"].append(float(units[units.kind == "train"].seconds.sum()))
    loops, new, there = (statistics.median(found[key]) for key in ("loops", "new workers", "workers there"))
    ends = f"first unit {units.start.min():.2f} s, training {found['training'][-1]:.2f} s, widths {set(units.width)}"
    print(
        f"{name:24} loops {loops:6.2f} s   fit {there:6.2f} s, {there / loops:.3f} x (goal {work.goal}),"
        f" with new workers {new:6.2f} s, {new / loops:.3f} x   {ends}"
        f"   best {best:.4f} / {result.best_trial.metrics['val_loss']:.4f}",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = {name: measure(name, WORKS[name], folder, options.rounds) for name in options.only}
    if options.json:
        kept = {**circumstances("benchmarks.gpu_search"), "gpu": torch.cuda.get_device_name(), "works": found}
        options.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
