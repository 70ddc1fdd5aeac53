"""Measures a search on all cores of a machine against plain loops in as many processes. It needs no Spark.

    python -m benchmarks.cores [--workers N] [--trials 64] [--rows 250000] [--rounds 1] [--json FILE]

The work is that of `benchmarks.peers` called `reference`, with more rows and more learning rates. The loops are started
as processes of one thread, each trains its share of the trials on all rows, their imports are included, and nothing
else is. The search is `fit` of a prepared data set on a LocalBackend with as many workers of one thread, three times
inside one `with` block: without workers that are there, then with them, and once more with them but with `fuse=False`.
Loops and searches take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import cerebro_spark as cs
from benchmarks.circumstances import circumstances
from benchmarks.peers.loops import torch_arrays, torch_trial
from benchmarks.peers.models import torch_parts
from benchmarks.peers.works import BATCH, WORKS, Work, make_files, rates, read_files
from cerebro_spark import hp

STATES: dict[str, Any] = {"new workers": "auto", "workers there": "auto", "workers there, not fused": False}
_SECONDS = 1800.0


def make_work(trials: int, rows: int) -> Work:
    """The reference work with so many trials and rows."""
    return replace(WORKS["reference"], rows=rows, rates=rates(trials // 2))


def train_share(work: Work, folder: Path, rank: int, ranks: int) -> None:
    """Be one of the processes with plain loops."""
    tensors = torch_arrays(folder)
    for params in work.trials[rank::ranks]:
        list(torch_trial(work, params, tensors))


def run_loops(options: argparse.Namespace, folder: Path) -> float:
    """Start the processes with plain loops, and return the seconds until the last one has ended."""
    shared = ["--workers", str(options.workers), "--trials", str(options.trials), "--rows", str(options.rows)]
    command = [sys.executable, "-m", "benchmarks.cores", *shared, "--folder", str(folder), "--rank"]
    alone = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    began = time.perf_counter()
    processes = [subprocess.Popen([*command, str(rank)], env=alone) for rank in range(options.workers)]
    try:
        codes = [process.wait(timeout=_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(codes):
        raise SystemExit(f"the processes with plain loops ended with {codes}, but must end with 0: see what they said")
    seconds = time.perf_counter() - began
    print(f"{options.trials} trials by loops in {options.workers} processes: {seconds:.1f} s", flush=True)
    return seconds


def run_searches(options: argparse.Namespace, work: Work, store: str, dataset: Any) -> dict[str, dict[str, float]]:
    """Run the search in each state; return its seconds, and where they went."""

    def model_fn(params: dict[str, Any]) -> cs.TorchModel:
        return cs.TorchModel(*torch_parts(work.kind, params))

    found = {}
    with cs.LocalBackend(num_workers=options.workers, threads=1) as backend:
        for state, fuse in STATES.items():
            search = cs.GridSearch(
                model_fn,
                space={"size": hp.choice(list(work.sizes)), "lr": hp.choice(list(work.rates)), "batch_size": BATCH},
                backend=backend,
                store=store,
                metric="val_loss",
                epochs=work.epochs,
                progress=False,
                framework="torch",
                resources=cs.Resources(device="cpu", threads=1),
                fuse=fuse,
            )
            began = time.perf_counter()
            units = search.fit(dataset).units
            wall = time.perf_counter() - began
            print(f"{options.trials} trials by a search, {state}: {wall:.1f} s", flush=True)
            found[state] = {
                "wall_s": wall,
                "training_s": float(units[units.kind == "train"].seconds.sum()),
                "evaluation_s": float(units[units.kind == "eval"].seconds.sum()),
                "first_unit_at_s": float(units.start.min()),
                "mean_width": float(units[units.kind == "train"].width.mean()),
            }
    return found


def prepare(folder: Path, store: str, partitions: int) -> Any:
    x, y, vx, vy = read_files(folder)
    held = np.repeat([False, True], [len(x), len(vx)])
    columns = {"x": np.concatenate([x, vx]), "y": np.concatenate([y, vy]), "held": held}
    return cs.prepare(columns, store=store, features="x", label="y", validation="held", partitions=partitions)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    work, store = make_work(options.trials, options.rows), str(folder / "store")
    make_files(work, folder)
    dataset = prepare(folder, store, options.workers)
    loops, searches = [run_loops(options, folder)], []
    for _ in range(options.rounds):
        searches.append(run_searches(options, work, store, dataset))
        loops.append(run_loops(options, folder))
    limit = statistics.mean(loops)
    for state in STATES:
        wall = statistics.median(each[state]["wall_s"] for each in searches)
        rest = ", ".join(f"{name} {_short(value)}" for name, value in searches[-1][state].items())
        print(f"  {state:26} {wall:6.1f} s  {wall / limit:5.2f} x   {rest}", flush=True)
    return {"loops": loops, "searches": searches}


def _short(number: float) -> str:
    return f"{number:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        train_share(make_work(options.trials, options.rows), options.folder, options.rank, options.workers)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    if options.json:
        options.json.write_text(json.dumps({**circumstances("benchmarks.cores"), **found}, indent=1))


if __name__ == "__main__":
    main()
