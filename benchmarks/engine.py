"""Measures what the engine itself costs: units a second, gaps between units, the driver's share. It uses data it makes.

    python -m benchmarks.engine [--only copies|gaps|driver] [--store FOLDER] [--epochs N] [--json FILE]

All on real worker processes of this machine, with a real event log and real checkpoints in a local store. A gap is
measured by the worker itself, from the end of the computing of one unit to the first batch of the next: it holds the
copying of the state, the digest, the wait for the order and for the checkpoint, and its loading. Where a worker had no
next order when the driver heard that its last one was over, because all trials that it could train or evaluate were at
work or in line elsewhere, that wait is counted apart: it is the schedule's, not the overhead of a hop.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.prepare import prepare
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Settings, UnitFinished
from cerebro_spark.search import FixedSearch
from cerebro_spark.trainer.base import Hooks, Params
from cerebro_spark.trainer.checkpoints.arrays import StateArray, StateSource, read_array, wrap_numpy
from cerebro_spark.trainer.feed import Array, Batch, Feed
from cerebro_spark.trainer.framework_trainer import FrameworkTrainer
from cerebro_spark.trainer.sharing.built_model import BuiltModel
from cerebro_spark.trainer.sharing.inspection import Inspector
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot
from cerebro_spark.trainer.spec import Framework, TrainerSpec
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.turns import Turn
from cerebro_spark.types import Metrics, Objective

FEATURES = 32
COPIED_BYTES = 10_000


class Blob(BuiltModel):
    """Ten kilobytes, and nothing that could be trained."""

    nbytes = COPIED_BYTES

    def __init__(self) -> None:
        self._data = np.zeros(COPIED_BYTES, np.uint8)

    def state(self) -> Any:
        return {"data": self._data}

    def restore(self, source: StateSource, hyperparameters: Any = None) -> None:
        self._data = read_array(source, "model/data")

    def hyperparameters(self) -> Any:
        return {}

    def copy_statistics(self) -> Any:
        return None

    def restore_statistics(self, copies: Any) -> None: ...


class CopyingTrainer(FrameworkTrainer[Blob]):
    """Loads and saves ten kilobytes, through the checkpoints that all trainers write; in between it does nothing."""

    framework = "copying"
    _remedy = "never changes"

    def _make_inspector(self) -> Inspector:
        return lambda value: None

    def _take_snapshot(self, model: Blob) -> ObjectSnapshot:
        return ObjectSnapshot(dict, self._make_inspector)

    def _claim_resources(self) -> None: ...
    def _restore_generators(self, tree: Any) -> None: ...

    def _build(self, params: Params, seed: int) -> Blob:
        return Blob()

    def _sign(self, model: Blob) -> str:
        return "blob"

    def _train(self, model: Blob, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics:
        return Metrics({"loss": 0.0}, {"loss": 1.0})

    _evaluate = _train

    def _predict(self, model: Blob, batches: Iterable[Batch]) -> Iterator[dict[str, Array]]:
        return iter(())

    def _finish(self, model: Blob, metrics: Metrics) -> dict[str, float]:
        return {}

    def _wrap_array(self, name: str, leaf: Any) -> StateArray | None:
        return wrap_numpy(name, leaf)

    def _capture_generators(self) -> Any:
        return {}

    def _versions(self) -> dict[str, str]:
        return {}


def model_fn(params: Mapping[str, Any]) -> TorchModel:
    import torch
    from torch import nn

    width = params["width"]
    module = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, 1), nn.Flatten(0))
    return TorchModel(module, torch.optim.Adam(module.parameters(), lr=params["lr"]), nn.BCEWithLogitsLoss())


def made_data(folder: Path, rows: int, partitions: int, validation: float | None = None) -> Dataset:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    y = (x[:, :8].sum(axis=1) > 0).astype("float32")
    return prepare(
        {"x": x, "y": y},
        store=str(folder / "store"),
        features="x",
        label="y",
        validation=validation,
        partitions=partitions,
    )


class Orders:
    """Follows which orders workers have, to tell those that a worker could not be given sooner.

    Attributes:
        late: The attempts that were ordered of a worker that had nothing to do at the end of an earlier turn.
    """

    def __init__(self) -> None:
        self.late: set[int] = set()
        self._out: dict[str, set[int]] = {}
        self._idle: set[str] = set()

    def follow(self, turn: Turn) -> None:
        """Take in what happened, and what was ordered at once."""
        for event, outcome in turn:
            if isinstance(event, UnitFinished):
                self._out[event.worker].discard(event.attempt)
            for order in outcome.orders:
                self._out.setdefault(order.worker, set()).add(order.attempt)
                if order.worker in self._idle:
                    self.late.add(order.attempt)
                    self._idle.discard(order.worker)
        self._idle |= {worker for worker, attempts in self._out.items() if not attempts}


@dataclass
class Watch:
    """An observer: what each worker did, and what the driver's process used meanwhile.

    It takes a sample after every `every` units; it keeps the units only where that does not spoil what is measured.
    """

    every: int = 1
    keeps: bool = True
    count: int = 0
    units: list[UnitFinished] = field(default_factory=list)
    samples: list[tuple[float, float, float]] = field(default_factory=list)
    orders: Orders = field(default_factory=Orders)

    def __call__(self, turn: Turn) -> None:
        if self.keeps:
            self.orders.follow(turn)
        for event in turn.events:
            if isinstance(event, UnitFinished):
                self._note(event)

    def _note(self, event: UnitFinished) -> None:
        self.count += 1
        if self.keeps:
            self.units.append(event)
        if self.count % self.every == 0:
            self.samples.append((time.perf_counter(), time.process_time(), memory_mb()))

    def between(self, first: float, last: float) -> dict[str, float]:
        """Units a second, the driver's share of a core and its memory between two parts of the run."""
        a, b = (int(part * (len(self.samples) - 1)) for part in (first, last))
        (t0, c0, m0), (t1, c1, m1) = self.samples[a], self.samples[b]
        units, seconds = (b - a) * self.every, t1 - t0
        return {
            "rate": units / seconds,
            "share": (c1 - c0) / seconds,
            "mb": m1,
            "mb_per_1000": 1000 * (m1 - m0) / units,
        }

    def revisits(self) -> list[UnitFinished]:
        """The units but for those of a trial that their worker saw for the first time."""
        seen: set[tuple[str, str]] = set()
        found = []
        for unit in sorted(self.units, key=lambda unit: unit.attempt):
            visit = unit.worker, unit.unit.trial
            if visit in seen:
                found.append(unit)
            seen.add(visit)
        return found


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def run(
    dataset: Dataset,
    configurations: list[dict[str, Any]],
    epochs: int,
    workers: int,
    watch: Watch,
    framework: Framework = "auto",
) -> Watch:
    """One whole run on processes of this machine, one thread each."""
    backend = LocalBackend(num_workers=workers, threads=1)
    backend.bind(Job("bench", dataset.store, dataset, TrainerSpec(Hooks(model_fn), framework=framework)))
    settings = Settings(dataset.partitions, workers, queue_ahead=1, objective=Objective("loss", "min"))
    search = FixedSearch(configurations, epochs)
    Engine(search, settings, backend, EventLog(dataset.store, "bench"), "bench", [watch]).run()
    return watch


def copies(folder: Path, epochs: int | None) -> dict[str, float]:
    """200 trials on 8 workers that only copy 10 kB."""
    dataset = made_data(folder, rows=800, partitions=8)
    trials = [{"number": number} for number in range(200)]
    watch = Watch(every=100, keeps=False)
    run(dataset, trials, epochs or 6, 8, watch, CopyingTrainer)
    result = {**watch.between(0.1, 1.0), "mb_per_1000": watch.between(0.5, 1.0)["mb_per_1000"], "units": watch.count}
    print("| units | units/s (goal: at least 300) | driver, cores | driver MB | MB more per 1000 units, second half |")
    print("|---|---|---|---|---|")
    print(
        f"| {watch.count} | {result['rate']:.0f} | {result['share']:.2f} | {result['mb']:.0f}"
        f" | {result['mb_per_1000']:.2f} |"
    )
    return result


def gaps(folder: Path, epochs: int | None) -> dict[str, Any]:
    """2 workers on 2 cores, twice as many trials as workers, with validation."""
    print(
        "| model | units | unit s | gap ms, median (goal: 10) | 90 % | 99 % (goal: 50) | had to wait | 99 % with those"
        " | not training |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    results = {}
    for name, rows, width in (("tiny", 20_000, 32), ("small", 200_000, 64)):
        dataset = made_data(folder / name, rows=rows, partitions=4, validation=0.2)
        trials = [{"lr": 0.001 * (n + 1), "width": width, "batch_size": 128} for n in range(4)]
        watch = run(dataset, trials, epochs or 24, 2, Watch())
        revisits = watch.revisits()
        waits = [1000 * unit.waited for unit in revisits if unit.attempt not in watch.orders.late]
        cuts = statistics.quantiles(waits, n=100)
        had_to = [1000 * unit.waited for unit in revisits if unit.attempt in watch.orders.late]
        waited = sum(waits) + sum(had_to)
        result = {
            "units": len(watch.units),
            "unit_s": statistics.median(unit.seconds for unit in watch.units if unit.unit.kind == "train"),
            "median_ms": statistics.median(waits),
            "p90_ms": cuts[89],
            "p99_ms": cuts[98],
            "had_to_wait": len(had_to),
            "longest_of_those_ms": max(had_to, default=0.0),
            "p99_of_all_ms": statistics.quantiles(waits + had_to, n=100)[98],
            "idle": waited / (waited + 1000 * sum(unit.seconds for unit in revisits)),
        }
        results[name] = result
        print(
            f"| PyTorch MLP, {name} | {result['units']} | {result['unit_s']:.3f} | {result['median_ms']:.1f}"
            f" | {result['p90_ms']:.1f} | {result['p99_ms']:.1f}"
            f" | {len(had_to)}, up to {result['longest_of_those_ms']:.0f} ms | {result['p99_of_all_ms']:.1f}"
            f" | {100 * result['idle']:.1f} % |",
            flush=True,
        )
    return results


def driver(folder: Path, epochs: int | None) -> dict[str, float]:
    """What the driver uses while 8 workers train."""
    dataset = made_data(folder, rows=400_000, partitions=8)
    trials = [{"lr": 0.001 * (n + 1), "width": 64, "batch_size": 128} for n in range(16)]
    watch = run(dataset, trials, epochs or 1, 8, Watch())
    steady = watch.between(0.2, 1.0)
    usual = statistics.median(unit.seconds for unit in watch.units)
    print("| workers | units | unit s | driver, % of a core (goal: under 5) |")
    print("|---|---|---|---|")
    print(f"| 8 | {len(watch.units)} | {usual:.2f} | {100 * steady['share']:.1f} |")
    return {**steady, "unit_s": usual}


SECTIONS: dict[str, Callable[[Path, int | None], Any]] = {"copies": copies, "gaps": gaps, "driver": driver}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=SECTIONS)
    parser.add_argument("--store", help="a folder to work in; one for temporary files if not given")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for name in [options.only] if options.only else SECTIONS:
        print(f"\n## {name}: {SECTIONS[name].__doc__}\n", flush=True)
        with tempfile.TemporaryDirectory(dir=options.store) as folder:
            results[name] = SECTIONS[name](Path(folder), options.epochs)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
