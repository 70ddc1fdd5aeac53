"""Measures how good forecasts of real runs are, at half time: the error of the remaining time, and who covers the end.

    python -m benchmarks.forecast [--json FILE] [--rows 60000] [--only NAME ...] [--epochs 6] [--keep FOLDER] [--tiny]

Twenty searches on a LocalBackend, PyTorch on CPUs, one thread a worker: grid, random, ASHA and Hyperband, on one worker
and on two, each on two kinds of model; and each once more on two workers of which one is killed. While a search runs
the process that makes its forecasts runs beside it, as it does for users. Afterwards the log is cut where half of the
time since the first unit had passed, and the forecast is made from what was known then. Goals: an error of 15 % in the
median, and 85 % of the ends inside the interval.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import cerebro_spark as cs
from benchmarks.circumstances import circumstances
from cerebro_spark import hp, runs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.engine import Observer
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, UnitFinished
from cerebro_spark.forecast.remaining import forecast
from cerebro_spark.forecast.values import Forecast
from cerebro_spark.recipe import Recipe
from cerebro_spark.search import Search
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.tune.algorithms.fixed import GridAlgorithm, RandomAlgorithm
from cerebro_spark.tune.algorithms.halving import ASHAAlgorithm, HyperbandAlgorithm
from cerebro_spark.turns import Turn
from cerebro_spark.types import Objective

OBJECTIVE = Objective("val_loss", "min")
PARTITIONS, FEATURES = 4, 64
ERROR_GOAL, COVERAGE_GOAL = 0.15, 0.85
FLAG = "BENCHMARK_FORECAST_FLAG"
"""The variable with the name of a file: while it is there, the next worker that sees it dies of it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A search on some workers, of which one may be killed after so many units."""

    name: str
    search: Callable[[int], Search]
    workers: int
    wide: bool = False
    killed_after: int | None = None


def space(wide: bool) -> dict[str, Any]:
    sizes = [256, 512] if wide else [64, 128, 256]
    return {"lr": hp.loguniform(1e-4, 1e-2), "hidden": hp.choice(sizes), "batch_size": hp.choice([64, 256])}


def grid_space(wide: bool) -> dict[str, Any]:
    return {**space(wide), "lr": hp.choice([1e-2, 1e-3])}


def searches(wide: bool, seed: int) -> dict[str, Callable[[int], Search]]:
    """By name, what makes a search of so many epochs."""
    mixed = space(wide)
    return {
        "grid": lambda epochs: GridAlgorithm(grid_space(wide), OBJECTIVE, epochs),
        "random": lambda epochs: RandomAlgorithm(mixed, OBJECTIVE, epochs, num_trials=10, seed=seed),
        "asha": lambda epochs: ASHAAlgorithm(
            mixed, OBJECTIVE, num_trials=18, max_epochs=max(9, epochs), seed=seed, max_concurrent=4
        ),
        "hyperband": lambda epochs: HyperbandAlgorithm(mixed, OBJECTIVE, max_epochs=max(9, epochs), seed=seed),
    }


def cases() -> list[Case]:
    """Return the twenty.

    >>> len(cases()), sum(case.killed_after is not None for case in cases())
    (20, 4)
    """
    found = []
    for wide in (False, True):
        for workers in (1, 2):
            for name, make in searches(wide, seed=workers + 2 * wide).items():
                found.append(Case(f"{name}-{workers}{'-wide' if wide else ''}", make, workers, wide))
    lost = [Case(f"{name}-lost", make, 2, killed_after=20) for name, make in searches(False, seed=7).items()]
    return [*found, *lost]


def model_fn(params: Mapping[str, Any]) -> Any:
    import torch
    from torch import nn

    from cerebro_spark import TorchModel

    hidden = params["hidden"]
    module = nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(module.parameters(), lr=params["lr"])
    return TorchModel(nn.Sequential(module, nn.Flatten(0)), optimizer, nn.BCEWithLogitsLoss())


def input_fn(batch: Any, params: Mapping[str, Any]) -> Any:
    """Pass on every batch, and die once if somebody wants that."""
    flag = os.environ.get("BENCHMARK_FORECAST_FLAG", "")
    if flag and os.path.exists(flag):
        os.unlink(flag)
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


class Killer:
    """An observer that wants a worker to die after so many units."""

    def __init__(self, flag: Path, after: int | None) -> None:
        self._flag = flag
        self._left = after

    def __call__(self, turn: Turn) -> None:
        if self._left is None:
            return
        self._left -= sum(isinstance(event, UnitFinished) for event in turn.events)
        if self._left <= 0:
            self._flag.touch()
            self._left = None


def prepared(folder: Path, rows: int) -> cs.Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    data = {"x": x, "y": (x[:, :8].sum(1) + rng.normal(size=rows) > 0).astype("float32")}
    return cs.prepare(data, store=str(folder), features="x", label="y", validation=0.2, partitions=PARTITIONS)


def run_case(case: Case, dataset: cs.Dataset, folder: Path, epochs: int) -> dict[str, Any]:
    """Run a search, and look at what would have been said of it at half time."""
    store, flag = LocalStore(folder), folder / f"flag-{case.name}"
    os.environ[FLAG] = str(flag) if case.killed_after else ""
    hooks = Hooks(model_fn, input_fn if case.killed_after else None)
    recipe = Recipe(case.search(epochs), OBJECTIVE, dataset, TrainerSpec(hooks, framework="torch"))
    began = time.monotonic()
    observers: list[Observer] = [Killer(flag, case.killed_after)]
    runs.execute(recipe, store, LocalBackend(case.workers, threads=1), case.name, observers, progress=False)
    seconds = time.monotonic() - began
    return {"case": case.name, "seconds": seconds, **look_at(store, case.name, lambda: case.search(epochs))}


def look_at(store: LocalStore, run: str, search: Callable[[], Search]) -> dict[str, Any]:
    """Compare the end of a run with the forecast at half time."""
    events = list(EventLog(store, run).read())
    end = events[-1].at
    half = (end + first_unit(events)) / 2
    known = [event for event in events if event.at <= half]
    began = time.monotonic()
    found = forecast(known, search, half)
    return {
        "end": end,
        "half": half,
        "units": _units(events),
        "forecast_s": time.monotonic() - began,
        **judge(found, end),
    }


def first_unit(events: Sequence[Event]) -> float:
    """Return when the first unit began: until then workers start, and there is nothing to learn from."""
    done = next(event for event in events if isinstance(event, UnitFinished))
    return done.at - done.seconds


def judge(found: Forecast, end: float) -> dict[str, Any]:
    """Return how good a forecast was, made when as much time was left as `end` says.

    >>> judge(Forecast(50.0, 9, done_at=105.0, low=90.0, high=120.0), 100.0)["error"]
    0.1
    """
    if found.done_at is None or found.low is None or found.high is None:
        return {"error": None, "covered": False, "reason": found.reason}
    left = end - found.made_at
    return {
        "error": abs(found.done_at - end) / left,
        "bias": (found.done_at - end) / left,
        "covered": found.low <= end <= found.high,
        "width": (found.high - found.low) / left,
        "exact": found.exact,
    }


def _units(events: Sequence[Event]) -> int:
    return sum(isinstance(event, UnitFinished) for event in events)


def sum_up(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median error and the coverage. A run without a forecast counts as an error of 100 %."""
    errors = [1.0 if row["error"] is None else row["error"] for row in rows]
    covered = sum(bool(row["covered"]) for row in rows) / len(rows)
    median = statistics.median(errors)
    return {"median_error": median, "coverage": covered, "met": median <= ERROR_GOAL and covered >= COVERAGE_GOAL}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the logs are kept")
    parser.add_argument("--tiny", action="store_true", help="few rows, two epochs: to see that it works")
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # several workers on one GPU would change each other's pace
    rows, epochs = (2_000, 2) if options.tiny else (options.rows, options.epochs)
    chosen = [case for case in cases() if not options.only or case.name in options.only]
    found: list[dict[str, Any]] = []
    print("| run | units | s | error | bias | interval | covered | forecast s |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        dataset = prepared(folder, rows)
        for case in chosen:
            row = run_case(case, dataset, folder, epochs)
            found.append(row)
            shown = (
                "none | - | -"
                if row["error"] is None
                else f"{row['error']:.1%} | {row['bias']:+.1%} | {row['width']:.0%}"
            )
            times = f"{'yes' if row['covered'] else 'no'} | {row['forecast_s']:.1f}"
            print(f"| {case.name} | {row['units']} | {row['seconds']:.0f} | {shown} | {times} |", flush=True)
    result = {**circumstances("benchmarks.forecast"), "runs": found, **sum_up(found)}
    print(f"\nmedian error {result['median_error']:.1%} (goal 15 %), coverage {result['coverage']:.0%} (goal 85 %)")
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
