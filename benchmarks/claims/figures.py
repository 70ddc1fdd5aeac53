"""Figures 7B and 9 of the paper in small: numbers over seeds, and what they say. It draws nothing.

Partitions are eight, as there; batch sizes and epochs are fewer, as the rows are.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.claims import hopping
from benchmarks.claims.digits import model_fn, prepared, tensors
from benchmarks.claims.spread import within_spread
from benchmarks.claims.ways import Averaging, Point, Sequential, Synchronous, curve

PARTITIONS = 8
MOP, SEQUENTIAL, KEPT, TIMES_P, AVERAGING = "MOP", "sequential", "DDP, batch kept", "DDP, batch x p", "model averaging"


@dataclass(frozen=True)
class Size:
    """How much of it: all, or just enough to see that it runs."""

    seeds: int = 5
    batch: int = 32
    lr: float = 3e-3
    epochs: int = 20
    sweep_epochs: int = 10
    sweep_seeds: int = 3
    sweep_batches: tuple[int, ...] = (8, 16, 32, 64, 128)
    sweep_lrs: tuple[float, ...] = (1e-3, 3e-3)
    rows: int | None = None


SMALL = Size(seeds=2, epochs=2, sweep_epochs=1, sweep_seeds=1, sweep_batches=(32,), sweep_lrs=(3e-3,), rows=400)


Curves = dict[str, list[list[Point]]]
CurveOf = Callable[[float, int], list[Point]]


def figure_7b(size: Size) -> dict[str, Any]:
    """Curves of each way over the same seeds, from the same initial weights on the same partitions."""
    with tempfile.TemporaryDirectory() as name:
        dataset = prepared(Path(name), PARTITIONS, size.rows)
        parts, validation = tensors(dataset)
        space: dict[str, list[Any]] = {"batch_size": [size.batch], "lr": [size.lr], "seed": list(range(size.seeds))}
        hopped, result = hopping.curves(dataset, space, size.epochs, Path(name))

    def plain(way: Callable[..., Any], batch: int) -> list[list[Point]]:
        given = {"batch_size": batch, "lr": size.lr}
        return [curve(way({**given, "seed": s}, parts), size.epochs, validation) for s in range(size.seeds)]

    found: Curves = {
        MOP: [hopped[size.batch, size.lr, seed] for seed in range(size.seeds)],
        SEQUENTIAL: plain(Sequential, size.batch),
        KEPT: plain(Synchronous, size.batch),
        TIMES_P: plain(Synchronous, size.batch * PARTITIONS),
        AVERAGING: plain(Averaging, size.batch),
    }
    return {"curves": found, "hops": hops(result), "claims": judge_curves(found)}


def hops(result: Any) -> int:
    """How often a trial went on at another worker than it came from."""
    train = result.units[result.units.kind == "train"].sort_values(["trial", "epoch", "end"])
    return int(train.groupby("trial").worker.apply(lambda workers: int((workers != workers.shift()).sum()) - 1).sum())


def judge_curves(found: Curves) -> dict[str, bool]:
    """What the paper says of its Figure 7B, asked of these numbers."""
    last = {name: [points[-1].loss for points in curves] for name, curves in found.items()}
    middle = {
        name: statistics.fmean(points[len(points) // 2].loss for points in curves) for name, curves in found.items()
    }
    return {
        "MOP ends where sequential SGD ends, within the spread over seeds": within_spread(last[MOP], last[SEQUENTIAL]),
        "DDP with the batch kept ends there too": within_spread(last[KEPT], last[SEQUENTIAL]),
        "DDP with the batch x p is behind MOP, halfway and at the end": behind(last, middle, TIMES_P),
        "model averaging is behind MOP, halfway and at the end": behind(last, middle, AVERAGING),
    }


def behind(last: Mapping[str, Sequence[float]], middle: Mapping[str, float], who: str) -> bool:
    """Whether every seed of this way ends above every seed of MOP's, and its mean is higher halfway."""
    return min(last[who]) > max(last[MOP]) and middle[who] > middle[MOP]


def figure_9(size: Size) -> dict[str, Any]:
    """The lowest validation error for each batch size a worker, MOP against DDP, the best learning rate for each."""
    with tempfile.TemporaryDirectory() as name:
        dataset = prepared(Path(name), PARTITIONS, size.rows)
        parts, validation = tensors(dataset)
        seeds, lrs = range(size.sweep_seeds), size.sweep_lrs
        space: dict[str, list[Any]] = {"batch_size": list(size.sweep_batches), "lr": list(lrs), "seed": list(seeds)}
        hopped, result = hopping.curves(dataset, space, size.sweep_epochs, Path(name))
        seconds, checkpoint = unit_seconds(result), hopping.checkpoint_bytes(Path(name), result)
    rows = sum(len(y) for _, y in parts)
    made = model_fn({"seed": 0, "lr": 1e-3})
    model = sum(each.numel() * each.element_size() for each in made.module.parameters())
    table = []
    for batch in size.sweep_batches:

        def hops(lr: float, seed: int, batch: int = batch) -> list[Point]:
            points: list[Point] = hopped[batch, lr, seed]
            return points

        def together(lr: float, seed: int, batch: int = batch) -> list[Point]:
            params = {"batch_size": batch * PARTITIONS, "lr": lr, "seed": seed}
            return curve(Synchronous(params, parts), size.sweep_epochs, validation)

        table.append(
            {
                "batch": batch,
                "mop": best_errors(hops, lrs, seeds),
                "ddp": best_errors(together, lrs, seeds),
                "mop_unit_s": seconds[batch],
                **moved_an_epoch(rows, batch, checkpoint[batch], model),
            }
        )
    return {"table": table, "checkpoint_bytes": checkpoint, "gradient_bytes": model, "claims": judge_sweep(table)}


def best_errors(curve_of: CurveOf, lrs: Sequence[float], seeds: Sequence[int]) -> list[float]:
    """For each seed the lowest error after any epoch of any learning rate."""
    return [min(point.error for lr in lrs for point in curve_of(lr, seed)) for seed in seeds]


def unit_seconds(result: Any) -> dict[int, float]:
    """Seconds of training an epoch on all partitions took, for each batch size; the median over trials and epochs."""
    train = result.units[result.units.kind == "train"].merge(result.trials[["trial", "param_batch_size"]], on="trial")
    epochs = train.groupby(["param_batch_size", "trial", "epoch"]).seconds.sum()
    return {int(batch): float(values.median()) for batch, values in epochs.groupby("param_batch_size")}


def moved_an_epoch(rows: int, batch: int, checkpoint: int, gradient: int, p: int = PARTITIONS) -> dict[str, int]:
    """Exchanges and bytes between workers for one trial and epoch: a hop a partition, or an all-reduce a step.

    A hop moves a checkpoint, which has Adam's state beside the weights, into the store and out of it. A ring all-reduce
    moves 2 (p - 1) times the gradients.

    >>> moved_an_epoch(rows=8000, batch=100, checkpoint=30, gradient=10)
    {'hops': 8, 'mop_bytes': 480, 'steps': 10, 'ddp_bytes': 1400}
    """
    steps = -(-rows // (batch * p))
    return {"hops": p, "mop_bytes": 2 * p * checkpoint, "steps": steps, "ddp_bytes": 2 * (p - 1) * gradient * steps}


def judge_sweep(table: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """What the paper says of its Figure 9, asked of these numbers."""
    mop = {row["batch"]: statistics.fmean(row["mop"]) for row in table}
    ddp = {row["batch"]: statistics.fmean(row["ddp"]) for row in table}
    small, large = min(mop), max(mop)
    return {
        "MOP's mean error is at most DDP's at every batch size": all(mop[batch] <= ddp[batch] for batch in mop),
        "the best error of all is MOP's": min(mop.values()) <= min(ddp.values()),
        "models converge slower with larger batches, both ways": mop[large] >= mop[small] and ddp[large] >= ddp[small],
        "what MOP moves does not depend on the batch size (within 1 %), what DDP moves does": (
            max(row["mop_bytes"] for row in table) <= 1.01 * min(row["mop_bytes"] for row in table)
            and len({row["ddp_bytes"] for row in table}) == len(table)
        ),
    }
