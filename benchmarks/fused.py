"""Measures searches whose trials train together against the limit: plain loops in two processes, nothing else.

    python -m benchmarks.fused [--works reference reference-32 reference-128 cnn] [--rounds 1] [--json FILE]

The works are those of `benchmarks.reference`, with more learning rates for more trials. A search runs on Spark
`local[2]` with `fuse="auto"`, over a prepared data set, three times inside one `with` block: without workers that are
there, then with them, and once more with them but with `fuse=False`. The limit runs before and after it, in processes
of its own, its imports included; the mean of both counts. Learning rates of a work are all different: labels tell
trials apart by them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cerebro_spark as cs
from benchmarks.circumstances import circumstances
from benchmarks.peers.harness import compare
from benchmarks.peers.ours import model_fn, prepared
from benchmarks.peers.roster import LIMITS
from benchmarks.peers.sessions import in_use, two_cores
from benchmarks.peers.works import BATCH, WORKS, Work, make_files
from cerebro_spark import hp
from cerebro_spark.cleaning import clean

NAMES = ("reference", "reference-32", "reference-128", "cnn")
STATES = (("new workers", "auto"), ("workers there", "auto"), ("workers there, not fused", False))


def run_limit(work: Work, folder: Path) -> float:
    rows, failed = compare(work, [LIMITS[0]], folder, 1)
    if failed:
        raise SystemExit("\n".join(failed))
    return float(rows[0].median("wall_s") or 0.0)


def run_searches(work: Work, folder: Path) -> dict[str, dict[str, float]]:
    """Run all searches of a work in a process of their own; return the seconds of each, and where they went."""
    asked = [sys.executable, "-m", "benchmarks.fused", "--searches", work.name, str(folder)]
    done = subprocess.run(asked, stdout=subprocess.PIPE, text=True, check=True, timeout=3600)
    found: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def search_all(work: Work, folder: Path) -> dict[str, dict[str, float]]:
    dataset = prepared(work, folder)
    clean()
    found = {}
    with cs.SparkBackend(in_use(two_cores()), num_workers=2) as backend:
        for state, fuse in STATES:
            search = cs.GridSearch(
                model_fn(work.kind, "torch"),
                space={"size": hp.choice(list(work.sizes)), "lr": hp.choice(list(work.rates)), "batch_size": BATCH},
                backend=backend,
                store=str(folder / "store"),
                metric="val_loss",
                epochs=work.epochs,
                progress=False,
                fuse=fuse,  # type: ignore[arg-type]
            )
            began = time.perf_counter()
            result = search.fit(dataset)
            found[state] = {"wall_s": time.perf_counter() - began, **look_at(result.units)}
    return found


def look_at(units: Any) -> dict[str, float]:
    trained = units[units.kind == "train"]
    return {
        "training_s": float(trained.seconds.sum()),
        "evaluation_s": float(units[units.kind == "eval"].seconds.sum()),
        "first_unit_at_s": float((units.end - units.seconds).min()),
        "mean_width": float(trained.width.mean()),
    }


def measure(work: Work, rounds: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_files(work, folder)
        limits, searches = [run_limit(work, folder)], []
        for _ in range(rounds):
            searches.append(run_searches(work, folder))
            limits.append(run_limit(work, folder))
    limit = statistics.mean(limits)
    print(f"{work.name}: {len(work.trials)} trials, limit {limit:.1f} s ({', '.join(f'{s:.1f}' for s in limits)})")
    for state, _ in STATES:
        wall = statistics.median(each[state]["wall_s"] for each in searches)
        last = searches[-1][state]
        print(
            f"  {state:26} {wall:6.1f} s  {wall / limit:5.2f} x   first unit {last['first_unit_at_s']:.1f} s,"
            f" training {last['training_s']:.1f} s, evaluation {last['evaluation_s']:.1f} s,"
            f" mean width {last['mean_width']:.1f}",
            flush=True,
        )
    return {"limits": limits, "searches": searches}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--works", nargs="+", choices=WORKS, default=["reference", "reference-32", "reference-128", "cnn"]
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--searches", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.searches:
        print(json.dumps(search_all(WORKS[options.searches[0]], Path(options.searches[1]))))
        return 0
    found = {name: measure(WORKS[name], options.rounds) for name in options.works}
    if options.json:
        options.json.write_text(json.dumps({**circumstances("benchmarks.fused"), "works": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
