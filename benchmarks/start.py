"""Measures how long a search takes from `fit` to its first unit: the first of a session, and those after it.

    python -m benchmarks.start [--json FILE] [--rows 100000] [--searches 3] [--backends local spark] [--no-block]

PyTorch on CPUs, two workers, data that is prepared already. Each backend runs in a process of its own, with its
searches inside one `with` block, and then, for comparison, without one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import cerebro_spark as cs
from benchmarks.circumstances import circumstances
from cerebro_spark import hp
from cerebro_spark.backend.driver.run import RemoteRun
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.remote import RemoteBackend
from cerebro_spark.backend.wire.messages import FromWorker, UnitStarted

WORKERS, FEATURES, EPOCHS = 2, 64, 1


class FirstUnit:
    """Notes when the first unit of a search is under way, which no event of the log says."""

    def __init__(self) -> None:
        self.at: float | None = None
        note = RemoteRun._note

        def watched(run: RemoteRun, handle: WorkerHandle, message: FromWorker) -> None:
            if isinstance(message, UnitStarted) and self.at is None:
                self.at = time.monotonic()
            note(run, handle, message)

        setattr(RemoteRun, "_note", watched)  # noqa: B010 (types do not allow it otherwise)


def model_fn(params: Mapping[str, Any]) -> Any:
    import torch
    from torch import nn

    from cerebro_spark import TorchModel

    hidden = params["hidden"]
    module = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(module.parameters(), lr=params["lr"])
    return TorchModel(nn.Sequential(module, nn.Flatten(0)), optimizer, nn.BCEWithLogitsLoss())


def prepared(folder: Path, rows: int) -> cs.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    data = {"x": x, "y": (x[:, :8].sum(1) > 0).astype("float32")}
    return cs.prepare(data, store=str(folder), features="x", label="y", validation=0.2, partitions=WORKERS)


def backend_of(kind: str) -> RemoteBackend:
    if kind == "local":
        return cs.LocalBackend(num_workers=WORKERS, threads=1)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{WORKERS}]").config("spark.ui.enabled", "false")
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return cs.SparkBackend(session, num_workers=WORKERS)


def searched(backend: RemoteBackend, dataset: cs.Dataset, folder: Path, first: FirstUnit) -> dict[str, float]:
    """Search once; return the seconds to the first unit, and to the end."""
    search = cs.GridSearch(
        model_fn,
        space={"lr": hp.choice([1e-2, 1e-3]), "hidden": hp.choice([128, 256]), "batch_size": 256},
        backend=backend,
        store=str(folder),
        features="x",
        label="y",
        metric="val_loss",
        epochs=EPOCHS,
        progress=False,
    )
    first.at = None
    began = time.monotonic()
    search.fit(dataset)
    assert first.at is not None, "a search has units"
    return {"first_unit_s": first.at - began, "whole_s": time.monotonic() - began}


def measure(kind: str, rows: int, searches: int, block: bool) -> list[dict[str, float]]:
    """Search several times with one backend, in this process."""
    first = FirstUnit()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset, backend = prepared(folder, rows), backend_of(kind)
        if not block:
            return [searched(backend, dataset, folder, first) for _ in range(searches)]
        with backend:
            return [searched(backend, dataset, folder, first) for _ in range(searches)]


def measured_apart(kind: str, options: argparse.Namespace, block: bool) -> list[dict[str, float]]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        asked = ["--one", kind, "--rows", str(options.rows), "--searches", str(options.searches), "--json", str(answer)]
        command = [sys.executable, "-m", "benchmarks.start", *asked, *([] if block else ["--no-block"])]
        subprocess.run(command, check=True)
        measured: list[dict[str, float]] = json.loads(answer.read_text())
        return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--searches", type=int, default=3)
    parser.add_argument("--backends", nargs="+", choices=("local", "spark"), default=("local", "spark"))
    parser.add_argument("--no-block", action="store_true", help="only without a `with` block")
    parser.add_argument("--one", choices=("local", "spark"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        options.json.write_text(json.dumps(measure(options.one, options.rows, options.searches, not options.no_block)))
        return
    results: dict[str, Any] = {**circumstances("benchmarks.start"), "rows": options.rows, "searches": []}
    print(f"{results['machine']}, load {os.getloadavg()[0]:.1f}")
    print("\n| backend | `with` | search | first unit s | whole s |\n|---|---|---|---|---|")
    for kind in options.backends:
        for block in (False,) if options.no_block else (True, False):
            for number, row in enumerate(measured_apart(kind, options, block), 1):
                results["searches"].append({"backend": kind, "block": block, "search": number, **row})
                inside = "yes" if block else "no"
                numbers = f"{row['first_unit_s']:.2f} | {row['whole_s']:.2f}"
                print(f"| {kind} | {inside} | {number} | {numbers} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
