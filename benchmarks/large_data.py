"""Prepares and trains on data of many gigabytes, mapped from disk, beside data that is in memory. It never asserts.

    python -m benchmarks.large_data [--gigabytes 10] [--beside 1] [--folder DIR] [--json FILE]

Both are random float32 rows of 256 features, in four partitions. Spark prepares each on `local[2]`, from Parquet files
that are written before. Then two trials of a small model are trained for five epochs by one worker with one thread,
once with PyTorch and once with Keras. The large data is mapped from disk, the other lies in shared memory. What counts
is rows a second: those prepared, and those of training units after the first epoch, in which the page cache is filled.
The memory that the worker has for itself is read after each epoch. At last a process that prepares is killed in the
middle. It needs four times as much room on the disk as there is data.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import cerebro_spark as cs
from benchmarks.circumstances import circumstances
from benchmarks.data import spark_session
from cerebro_spark import hp
from cerebro_spark.cleaning import clean
from cerebro_spark.data.loading.cache_root import MEMORY_VARIABLE
from cerebro_spark.errors import CerebroError
from cerebro_spark.tune.trackers.base import Tracker

FEATURES, BATCH, PARTITIONS, EPOCHS, FILES = 256, 256, 4, 5, 16
GIB = 1 << 30
STEPS = ("prepare", "torch", "keras")


def torch_model(params: Mapping[str, Any]) -> Any:
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 1), nn.Flatten(0))
    return cs.TorchModel(net, torch.optim.SGD(net.parameters(), lr=params["lr"]), nn.MSELoss())


def keras_model(params: Mapping[str, Any]) -> Any:
    import keras

    model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.SGD(params["lr"]), loss="mse")
    return model


def write_source(folder: Path, rows: int) -> None:
    """Write Parquet files of random rows, as an array column and a label."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(FILES):
        count = rows // FILES
        values = rng.standard_normal(count * FEATURES, dtype=np.float32)
        x = pa.FixedSizeListArray.from_arrays(pa.array(values), FEATURES).cast(pa.list_(pa.float32()))
        table = pa.table({"x": x, "y": pa.array(values[::FEATURES] + 1)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=20_000, compression="none")


def prepare(store: str, source: str) -> dict[str, float]:
    """Have Spark prepare the files; return how long it took, once a session was there."""
    spark = spark_session()
    cs.prepare(spark.range(1000).selectExpr("rand() x", "rand() y"), store=f"{store}-warm", features="x", label="y")
    began = time.perf_counter()
    cs.prepare(spark.read.parquet(source), store=store, features="x", label="y", partitions=PARTITIONS, name="data")
    seconds = time.perf_counter() - began
    spark.stop()
    return {"seconds": seconds}


class Memory(Tracker):
    """Reads, after each epoch, the memory that workers have for themselves, and what of their files is in memory."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float, float]] = []

    def epoch(self, trial: str, params: Mapping[str, Any], epoch: int, metrics: Mapping[str, float]) -> None:
        own, mapped = max((_memory_of(number) for number in _workers()), default=(0.0, 0.0))
        self.seen.append((epoch, own, mapped))


def _workers() -> list[int]:
    """The processes of workers below this one."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b"cerebro_spark.backend.worker" in _bytes_of(path)
    ]


def _bytes_of(path: Path) -> bytes:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return path.read_bytes()
    return b""


def _memory_of(process: int) -> tuple[float, float]:
    """The MiB that a process has for itself, and those of files that it has mapped."""
    lines = _bytes_of(Path(f"/proc/{process}/status")).decode().splitlines()
    found = {
        line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.startswith(("RssAnon", "RssFile"))
    }
    return found.get("RssAnon", 0.0), found.get("RssFile", 0.0)


def train(store: str, framework: str) -> dict[str, Any]:
    """Train two trials for five epochs on one worker with one thread."""
    data, memory = cs.Dataset.open(cs.open_store(store), "data"), Memory()
    search = cs.GridSearch(
        torch_model if framework == "torch" else keras_model,
        space={"lr": hp.choice([1e-4, 1e-5]), "batch_size": BATCH},
        backend=cs.LocalBackend(num_workers=1, threads=1),
        store=store,
        metric="loss",
        epochs=EPOCHS,
        trackers=[memory],
        progress=False,
    )
    units = search.fit(data).units
    rows = sum(partition.rows for partition in data.train)
    by_epoch = units[units.kind == "train"].groupby("epoch").seconds.sum()
    rates = [2 * rows / seconds for seconds in by_epoch]
    return {"rows_a_second": rates, "memory": memory.seen}


def kill_in_the_middle(folder: Path, source: Path, seconds: float) -> dict[str, Any]:
    """Kill a process that prepares, when about half of its time is over; say what can be seen of it afterwards."""
    store = folder / "killed"
    process = subprocess.Popen(_command("prepare", store, source), start_new_session=True)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    was_under_way = process.poll() is None
    os.killpg(process.pid, 9)
    process.wait()
    opened = cs.open_store(str(store))
    try:
        cs.Dataset.open(opened, "data")
        visible = True
    except CerebroError:
        visible = False
    left = sum(leftover.bytes for leftover in clean(opened, older_than=0.0))
    after = sum(leftover.bytes for leftover in clean(opened, older_than=0.0, dry_run=True))
    return {"was_under_way": was_under_way, "visible": visible, "cleaned_mb": left / 1e6, "left_mb": after / 1e6}


def _command(step: str, *arguments: object) -> list[str]:
    return [sys.executable, "-m", "benchmarks.large_data", "--step", step, *map(str, arguments)]


def run_step(step: str, *arguments: object, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run a step in a process of its own."""
    own = {**os.environ, **(environment or {})}
    done = subprocess.run(_command(step, *arguments), check=True, stdout=subprocess.PIPE, text=True, env=own)
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return dict(json.loads(line.removeprefix("RESULT ")))


def measure(folder: Path, gigabytes: float, on_disk: bool) -> dict[str, Any]:
    rows = int(gigabytes * GIB / (4 * (FEATURES + 1))) // (FILES * PARTITIONS) * FILES * PARTITIONS
    source, store = folder / "source", folder / "store"
    write_source(source, rows)
    mapped = {MEMORY_VARIABLE: str(folder / "cache")} if on_disk else {}
    result: dict[str, Any] = {"gigabytes": gigabytes, "rows": rows, "prepare": run_step("prepare", store, source)}
    if on_disk:
        result["killed"] = kill_in_the_middle(folder, source, result["prepare"]["seconds"] / 2)
    shutil.rmtree(source)
    for framework in ("torch", "keras"):
        result[framework] = run_step(framework, store, environment=mapped)
    return result


def table(large: dict[str, Any], small: dict[str, Any]) -> None:
    both = (small, large)
    print(f"| | {small['gigabytes']:g} GiB in memory | {large['gigabytes']:g} GiB from disk | ratio (goal: 0.9) |")
    print("|---|---|---|---|")
    _row("prepared, MB a second", [each["gigabytes"] * GIB / 1e6 / each["prepare"]["seconds"] for each in both])
    for framework in ("torch", "keras"):
        rates = [each[framework]["rows_a_second"] for each in both]
        _row(f"{framework}, rows a second, first epoch", [found[0] for found in rates])
        _row(f"{framework}, rows a second, later epochs", [statistics.median(found[1:]) for found in rates])
    for framework in ("torch", "keras"):
        own = {epoch: mib for epoch, mib, _ in large[framework]["memory"]}
        print(
            f"\n{framework}: MiB of the worker's own after each epoch: {[round(own[epoch]) for epoch in sorted(own)]}"
        )
    print(f"\nkilled in the middle of preparing: {large['killed']}")


def _row(what: str, pair: Sequence[float]) -> None:
    print(f"| {what} | {pair[0]:,.0f} | {pair[1]:,.0f} | {pair[1] / pair[0]:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--beside", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="where there is room; one for temporary files if not given")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--step", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        step, *arguments = options.step
        result = prepare(*arguments) if step == "prepare" else train(arguments[0], step)
        print("RESULT " + json.dumps(result))
        return
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"circumstances": circumstances("benchmarks.large_data")}
    for name, gigabytes in (("small", options.beside), ("large", options.gigabytes)):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            results[name] = measure(Path(folder), gigabytes, on_disk=name == "large")
    table(results["large"], results["small"])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
