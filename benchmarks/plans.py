"""Holds plans against what really happens: how long searches take, and which workers and threads are best.

    python -m benchmarks.plans [--only WORK ...] [--searches NAME ...] [--backends NAME ...] [--seconds 60]
        [--scale 1.0] [--json FILE]
    python -m benchmarks.plans --sweep [--only WORK ...] [--seconds 60] [--json FILE]
    python -m benchmarks.plans --large [--only WORK ...] [--seconds 60] [--json FILE]

Each work is planned over a prepared data set, on a LocalBackend and on Spark's `local[cores]`, then fitted as its plan
says, with workers that are not there yet. With `--sweep` a random search is run in every setting of workers and threads
(powers of two that the cores allow, whether the plan considers them or not), and the plan's choice is compared with the
fastest. With `--large` searches are planned for clusters that are described only: the one of Dike's example (5 nodes of
4 cores) and one of 300 such nodes. Spark and works with Keras are left out where these are not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cerebro_spark as cs
from benchmarks.circumstances import circumstances
from cerebro_spark import hp

Model = Callable[[dict[str, Any]], Any]


def torch_mlp(params: dict[str, Any]) -> Any:
    """Two hidden layers."""
    import torch
    from torch import nn

    width = params["width"]
    net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))
    return cs.TorchModel(net, optimizer=torch.optim.Adam(net.parameters(), lr=params["lr"]), loss=nn.MSELoss())


def torch_cnn(params: dict[str, Any]) -> Any:
    """Two convolutions with BatchNorm."""
    import torch
    from torch import nn

    width = params["width"] // 8
    net = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 1),
    )
    return cs.TorchModel(net, optimizer=torch.optim.Adam(net.parameters(), lr=params["lr"]), loss=nn.MSELoss())


def torch_gru(params: dict[str, Any]) -> Any:
    """A recurrent layer and what it says last."""
    import torch
    from torch import nn

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(8, params["width"] // 2, batch_first=True)
            self.out = nn.Linear(params["width"] // 2, 1)

        def forward(self, steps: Any) -> Any:
            return self.out(self.gru(steps)[0][:, -1])

    net = Last()
    return cs.TorchModel(net, optimizer=torch.optim.Adam(net.parameters(), lr=params["lr"]), loss=nn.MSELoss())


def keras_mlp(params: dict[str, Any]) -> Any:
    """Two hidden layers."""
    import keras

    layers = [keras.layers.Dense(params["width"], "relu"), keras.layers.Dense(params["width"], "relu")]
    net = keras.Sequential([keras.layers.Input((64,)), *layers, keras.layers.Dense(1)])
    net.compile(keras.optimizers.Adam(params["lr"]), "mse")
    return net


WORKS: dict[str, tuple[Model, tuple[int, ...], int]] = {
    "torch MLP": (torch_mlp, (64,), 120_000),
    "torch CNN": (torch_cnn, (3, 16, 16), 8_000),
    "torch GRU": (torch_gru, (16, 8), 16_000),
    "keras MLP": (keras_mlp, (64,), 60_000),
}
SEARCHES: dict[str, Callable[..., Any]] = {
    "grid": lambda model, **rest: cs.GridSearch(model, space=_grid(), epochs=3, **rest),
    "random": lambda model, **rest: cs.RandomSearch(model, space=_space(), num_trials=16, epochs=3, **rest),
    "ASHA": lambda model, **rest: cs.ASHA(model, space=_space(), num_trials=24, max_epochs=9, **rest),
    "Hyperband": lambda model, **rest: cs.Hyperband(model, space=_space(), max_epochs=9, **rest),
}


def _grid() -> dict[str, Any]:
    return {"lr": hp.choice([0.01, 0.003, 0.001, 0.0003]), "width": hp.choice([64, 128]), "batch_size": 128}


def _space() -> dict[str, Any]:
    return {"lr": hp.loguniform(1e-4, 1e-2), "width": hp.choice([64, 128, 256]), "batch_size": hp.choice([64, 128])}


def make_rows(shape: tuple[int, ...], rows: int) -> dict[str, Any]:
    """Return random rows with a label that can be learned."""
    x = np.random.default_rng(0).normal(size=(rows, *shape)).astype("float32")
    return {"x": x, "y": x.reshape(rows, -1)[:, :4].sum(axis=1)}


def make_data(shape: tuple[int, ...], rows: int, partitions: int, store: str) -> cs.Dataset:
    """Prepare such rows."""
    columns = make_rows(shape, rows)
    return cs.prepare(columns, store=store, features="x", label="y", validation=0.2, partitions=partitions)


def make_backend(name: str, cores: int) -> Any:
    """Return a backend of this machine."""
    if name == "local":
        return cs.LocalBackend()
    from pyspark.sql import SparkSession

    session = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return cs.SparkBackend(session)


def measure(name: str, kind: str, where: str, options: argparse.Namespace) -> dict[str, Any]:
    """Plan a search, run it, and return both."""
    model, shape, rows = WORKS[name]
    with tempfile.TemporaryDirectory() as store:
        data = make_data(shape, round(rows * options.scale), options.cores, store)
        backend = make_backend(where, options.cores)
        search = SEARCHES[kind](model, store=store, metric="val_loss", backend=backend, progress=False)
        began = time.perf_counter()
        plan = search.plan(data, seconds=options.seconds)
        planning = time.perf_counter() - began
        began = time.perf_counter()
        search.fit(data, plan=plan)
        seconds, expected = time.perf_counter() - began, plan.estimate
    found = {
        "work": name,
        "search": kind,
        "backend": where,
        "workers": plan.best.workers,
        "threads": plan.best.threads,
        "planned": expected.seconds,
        "low": expected.low,
        "high": expected.high,
        "took": seconds,
        "error": expected.seconds / seconds - 1,
        "covered": expected.low <= seconds <= expected.high,
        "planning": planning,
    }
    print(
        f"{name:10} {kind:9} {where:5} {found['workers']:2} x {found['threads']:2}  planned {expected.seconds:6.1f} s"
        f" ({expected.low:.1f} to {expected.high:.1f})  took {seconds:6.1f} s  error {found['error']:+.0%}"
        f"  planning {planning:.1f} s",
        flush=True,
    )
    return found


def sweep(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run a search in every setting, and compare the best with the plan's."""
    model, shape, rows = WORKS[name]
    took: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as store:
        data = make_data(shape, round(rows * options.scale), options.cores, store)
        search = cs.RandomSearch(
            model,
            space=_space(),
            num_trials=max(8, 2 * options.cores),
            epochs=2,
            store=store,
            metric="val_loss",
            backend=cs.LocalBackend(),
            progress=False,
        )
        began = time.perf_counter()
        plan = search.plan(data, seconds=options.seconds)
        planning = time.perf_counter() - began
        best = plan.best.workers, plan.best.threads
        planned = {(int(row.workers), int(row.threads)): row.seconds for _, row in plan.table.iterrows()}
        print(f"{name:10} planned in {planning:.1f} s: {best[0]} x {best[1]} is best, of {len(planned)}", flush=True)
        for workers, threads in dict.fromkeys([best, *_settings(options.cores)]):
            search.backend = cs.LocalBackend(workers, threads=threads)
            began = time.perf_counter()
            search.fit(data)
            seconds = took[f"{workers} x {threads}"] = time.perf_counter() - began
            said = f"planned {planned[workers, threads]:.1f} s" if (workers, threads) in planned else "not considered"
            print(f"{name:10} {workers:2} x {threads:2}: {said}, took {seconds:.1f} s", flush=True)
    found = {
        "work": name,
        "took": took,
        "planning": planning,
        "reached": min(took.values()) / took[f"{best[0]} x {best[1]}"],
        "share": planning / sum(took.values()),
    }
    print(f"{name:10} the plan reaches {found['reached']:.0%} of the best, in {found['share']:.0%} of a sweep's time")
    return found


def _settings(cores: int) -> list[tuple[int, int]]:
    """Return all settings of workers and threads that so many cores allow, of powers of two."""
    powers = [1 << bit for bit in range(cores.bit_length()) if 1 << bit <= cores]
    return [(workers, threads) for workers in powers for threads in powers if workers * threads <= cores]


def plan_large(name: str, hosts: int, options: argparse.Namespace) -> dict[str, Any]:
    """Plan 200 trials of ten epochs over 100 million rows for a cluster of such nodes, from a sample."""
    model, shape, rows = WORKS[name]
    sample = make_rows(shape, rows)
    with tempfile.TemporaryDirectory() as store:
        search = cs.RandomSearch(
            model,
            space=_space(),
            num_trials=200,
            epochs=10,
            metric="val_loss",
            store=store,
            features="x",
            label="y",
            validation=0.2,
            backend=cs.LocalBackend(),
            progress=False,
        )
        began = time.perf_counter()
        plan = search.plan(
            sample, rows=100_000_000, hosts=hosts, cores=4, memory="16g", network="10Gb", seconds=options.seconds
        )
        planning = time.perf_counter() - began
    print(f"{name:10} {hosts:3} nodes: {len(plan.table)} options, planned in {planning:.1f} s")
    print("\n".join(f"    {sentence}" for sentence in plan.why), flush=True)
    return {"work": name, "hosts": hosts, "options": len(plan.table), "planning": planning, "why": plan.why}


def main() -> None:
    """Measure what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    parser.add_argument("--backends", nargs="+", choices=["local", "spark"], default=["local", "spark"])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long planning may take (default: 60)")
    parser.add_argument("--scale", type=float, default=1.0, help="how many times as many rows")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.cores = len(os.sched_getaffinity(0))
    works = [name for name in options.only if importlib.util.find_spec(name.split()[0])]
    if options.large:
        found = [plan_large(name, hosts, options) for name in works for hosts in (5, 300)]
    elif options.sweep:
        found = [sweep(name, options) for name in works]
    else:
        backends = [where for where in options.backends if where == "local" or importlib.util.find_spec("pyspark")]
        kinds = [(kind, where) for where in backends for kind in options.searches]
        found = [measure(name, kind, where, options) for name in works for kind, where in kinds]
        errors = [abs(one["error"]) for one in found]
        covered = sum(one["covered"] for one in found) / len(found)
        print(
            f"median error {statistics.median(errors):.0%}, {covered:.0%} within their interval, {len(found)} searches"
        )
    if options.json:
        options.json.write_text(
            json.dumps({"circumstances": circumstances("benchmarks.plans"), "found": found}, indent=1)
        )


if __name__ == "__main__":
    main()
