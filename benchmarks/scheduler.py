"""The scheduler against the Cerebro paper: Figure 6, Figure 8B, Table 2, and scale. All in virtual time."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.exact import make_plan_policy, solve
from cerebro_spark.dispatch import POLICIES
from cerebro_spark.simulation import Scenario, draw_workload, simulate

SEEDS = range(5)
FIGURE_6 = [(n, p, mixed) for mixed in (False, True) for n in (16, 256) for p in (8, 16)]
TIGHT = [(8, 8, False), (12, 12, False)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solver-seconds", type=float, default=300.0, help="time limit of the exact solver (300)")
    parser.add_argument("--only", choices=list(SECTIONS), help="run one section")
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    parser.add_argument("--scale-run", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scale_run:
        print(json.dumps(scale_run(options.scale_run)))
        return
    chosen = [options.only] if options.only else list(SECTIONS)
    results = {name: SECTIONS[name](options) for name in chosen}
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def figure_6(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Makespan over lower bound, and the time spent on scheduling, for every policy and the solver."""
    print("\n## Figure 6: makespan over the lower bound, mean of five seeds (worst); scheduling seconds\n")
    print("| trials x workers | costs |", " | ".join(POLICIES), "| solver, seconds, proven |")
    print("|---|---|" + "---|" * (len(POLICIES) + 1))
    rows = []
    for trials, workers, mixed in [*FIGURE_6, *TIGHT]:
        solved = _solver_row(trials, workers, mixed, options.solver_seconds)
        for known in (True, False):
            row: dict[str, Any] = {"trials": trials, "workers": workers, "heterogeneous": mixed, "known": known}
            for policy in list(POLICIES):
                row[policy] = _policy_cell(trials, workers, mixed, known, policy)
            row["solver"] = solved
            rows.append(row)
            _print_row(row)
    return rows


def _policy_cell(trials: int, workers: int, mixed: bool, known: bool, policy: str) -> dict[str, float]:
    scenario = _setting(trials, workers, mixed, known, policy)
    outcomes = [simulate(scenario, seed) for seed in SEEDS]
    ratios = [outcome.ratio for outcome in outcomes]
    seconds = float(np.mean([outcome.scheduling_seconds for outcome in outcomes]))
    return {"mean": float(np.mean(ratios)), "worst": max(ratios), "seconds": seconds}


def _solver_row(trials: int, workers: int, mixed: bool, limit: float) -> dict[str, Any]:
    """One epoch of the first seed given to the solver, its order then kept for five epochs with jitter."""
    if limit <= 0:
        return {}
    scenario = _setting(trials, workers, mixed, True, "solver")
    costs, speeds = draw_workload(scenario, 0)
    began = time.perf_counter()
    solution = solve(np.outer(costs, 1 / np.asarray(speeds)), seconds=limit, threads=1)
    seconds = time.perf_counter() - began
    if not np.isfinite(solution.makespan):
        return {"mean": None, "seconds": seconds, "optimal": False}
    POLICIES["solver"] = make_plan_policy(solution)
    try:
        ratio = simulate(scenario, 0).ratio
    finally:
        del POLICIES["solver"]
    return {"mean": ratio, "seconds": seconds, "optimal": solution.optimal, "epoch": solution.makespan}


def _setting(trials: int, workers: int, mixed: bool, known: bool, policy: str) -> Scenario:
    return Scenario(
        trials=trials, workers=workers, epochs=5, heterogeneous=mixed, jitter=0.05, known_costs=known, policy=policy
    )


def _print_row(row: dict[str, Any]) -> None:
    cells = [f"{row[p]['mean']:.3f} ({row[p]['worst']:.3f}); {row[p]['seconds']:.2f} s" for p in POLICIES]
    solved = row["solver"]
    shown = "-"
    if solved:
        ratio = "nothing found" if solved["mean"] is None else f"{solved['mean']:.3f}"
        shown = f"{ratio}; {solved['seconds']:.1f} s; {'yes' if solved['optimal'] else 'no'}"
    kind = "mixed" if row["heterogeneous"] else "alike"
    known = "known" if row["known"] else "learnt"
    print(f"| {row['trials']} x {row['workers']} {kind} | {known} | " + " | ".join([*cells, shown]) + " |", flush=True)


def figure_8b(options: argparse.Namespace) -> dict[str, Any]:
    """Two of eight workers fail and come back; three replicas."""
    whole = simulate(Scenario(trials=256, workers=8, epochs=5, replicas=3, jitter=0.05))
    fails, returns = whole.makespan * 0.3, whole.makespan * 0.6
    deaths = {2: ((fails, returns),), 5: ((fails * 1.1, returns * 1.1),)}
    outcome = simulate(Scenario(trials=256, workers=8, epochs=5, replicas=3, jitter=0.05, deaths=deaths))
    ends = [0.0, *(outcome.timeline.epoch_ends[epoch] for epoch in range(1, 6))]
    epochs = np.diff(ends).tolist()
    units = outcome.traffic.units
    print("\n## Figure 8B: 256 trials on 8 workers, 3 replicas, two workers fail and come back\n")
    print(f"fault-free makespan {whole.makespan:.1f} s; with failures {outcome.makespan:.1f} s")
    print(f"time that the capacity present allows {outcome.lower_bound:.1f} s; ratio {outcome.ratio:.4f}")
    print(f"fails at {fails:.0f} and {fails * 1.1:.0f} s, returns at {returns:.0f} and {returns * 1.1:.0f} s")
    print("end of the last trial's epoch after the previous one's:", ", ".join(f"{e:.1f}" for e in epochs))
    print(f"units finished {units} of {256 * 8 * 5}, run again {outcome.units_rerun}, lost {256 * 8 * 5 - units}")
    return {"ratio": outcome.ratio, "epochs": epochs, "units": units, "rerun": outcome.units_rerun}


def table_2(options: argparse.Namespace) -> dict[str, Any]:
    """Checkpoint bytes as the simulator counts them, beside the paper's formulas."""
    epochs, trials, workers, size, batches, data = 20, 20, 10, 10**9, 100_000, 10**12
    outcome = simulate(Scenario(trials=trials, workers=workers, epochs=epochs, model_bytes=size))
    traffic = outcome.traffic
    grouped = simulate(Scenario(trials=trials, workers=workers, epochs=epochs, model_bytes=size, group=workers)).traffic
    kmps = epochs * size * workers * trials
    print("\n## Table 2: k = 20 epochs, S = 20 trials, p = 10 workers, m = 1 GB, D = 1 TB, B = 100,000 batches\n")
    print("| what | formula | formula TB | counted TB |")
    print("|---|---|---|---|")
    models = trials * size
    every_batch = -(-batches // workers)
    counted = [
        ("checkpoints written to the store, one a unit", "kmSp", kmps, traffic.written),
        (
            "checkpoints read: all units but a trial's first, which builds its model",
            "kmSp - mS",
            kmps - models,
            traffic.read,
        ),
        ("of these, hops: written by one worker, read by another", "at most kmSp - mS", kmps - models, traffic.hopped),
        ("in all, through a shared store", "2kmSp - mS", 2 * kmps - models, traffic.written + traffic.read),
        (
            "groups of all p workers: written, one for each unit of all partitions",
            "kmS",
            kmps // workers,
            grouped.written,
        ),
        (
            "groups of all p workers: read, by each member but in the first unit",
            "kmSp - mSp",
            kmps - models * workers,
            grouped.read,
        ),
    ]
    others = [
        (
            "groups of all p workers: exchanged in steps, with the batches of one worker",
            "2kmS(p-1) B",
            2 * kmps // workers * (workers - 1) * batches,
        ),
        ("the paper's figure for MOP with direct hops: mS more for initial models", "kmSp + mS", kmps + models),
        ("the paper's figure for MOP through a shared store", "2kmSp", 2 * kmps),
        ("task parallelism, full replication", "pD + mS", workers * data + models),
        ("task parallelism, remote reads", "kSD + mS", epochs * trials * data + models),
        ("bulk synchronous parallelism", "2kmSp", 2 * kmps),
        ("centralized, fine-grained", "2kmSp B/p", 2 * kmps * every_batch),
        ("decentralized, fine-grained", "2kmS(p-1) B/p", 2 * kmps // workers * (workers - 1) * every_batch),
    ]
    for name, formula, bytes_, count in counted:
        print(f"| {name} | {formula} | {bytes_ / 1e12:.3f} | {count / 1e12:.3f} |")
    for name, formula, bytes_ in others:
        print(f"| {name} | {formula} | {bytes_ / 1e12:,.2f} | - |")
    return {"written": traffic.written, "read": traffic.read, "hopped": traffic.hopped, "hops": traffic.hops}


def scale(options: argparse.Namespace) -> dict[str, Any]:
    """A million units in one process, and what a decision costs at that size."""
    print("\n## Scale: n trials on n workers with n partitions, one epoch, 5 % jitter, one process\n")
    print("| n | units | wall s | peak MB | us a decision | ratio to the bound |")
    print("|---|---|---|---|---|---|")
    results = {}
    for size in (100, 1000):
        command = [sys.executable, "-m", "benchmarks.scheduler", "--scale-run", str(size)]
        result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=1800).stdout)
        results[str(size)] = result
        print(
            f"| {size} | {result['units']} | {result['wall']:.1f} | {result['peak_mb']:.0f}"
            f" | {result['decision_us']:.1f} | {result['ratio']:.3f} |",
            flush=True,
        )
    growth = results["1000"]["decision_us"] / results["100"]["decision_us"]
    print(f"\nA decision at 1000 x 1000 costs {growth:.2f} x one at 100 x 100.")
    return {**results, "growth": growth}


def scale_run(size: int) -> dict[str, float]:
    began = time.perf_counter()
    outcome = simulate(Scenario(trials=size, workers=size, epochs=1, jitter=0.05))
    units = outcome.traffic.units
    return {
        "units": units,
        "wall": time.perf_counter() - began,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "decision_us": outcome.scheduling_seconds / units * 1e6,
        "ratio": outcome.ratio,
    }


SECTIONS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "figure-6": figure_6,
    "figure-8b": figure_8b,
    "table-2": table_2,
    "scale": scale,
}

if __name__ == "__main__":
    main()
