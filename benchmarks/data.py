"""What preparing and reading data costs, each number beside a plain yardstick of the same run. It never asserts.

python benchmarks/data.py [--rows 800000] [--repeat 3] [--json out.json]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.data.prepare import prepare
from cerebro_spark.data.shuffling import row_order
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.feed import Feed

WIDTH = 64
BATCH = 256


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spark_session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "4g")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def frame(spark: Any, rows: int, kind: str) -> tuple[Any, list[str]]:
    """`rows` x 64 random floats and a label, as 64 columns or as one array column."""
    from pyspark.sql import functions as f

    values = [f.rand(seed).cast("float") for seed in range(WIDTH)]
    label = (f.col("id") % 2).cast("int").alias("y")
    if kind == "array":
        return spark.range(rows).select(f.array(*values).alias("x"), label), ["x"]
    names = [f"f{i}" for i in range(WIDTH)]
    return spark.range(rows).select(*[v.alias(n) for v, n in zip(values, names, strict=True)], label), names


def measure_prepare(spark: Any, folder: Path, rows: int, partitions: int, kind: str, repeat: int) -> dict[str, Any]:
    df, names = frame(spark, rows, kind)
    plain, ours = [], []
    for number in range(repeat + 1):
        target = folder / f"plain-{number}"

        def write(target: Path = target) -> None:
            df.repartition(partitions).write.parquet(str(target))

        plain.append(seconds(write))
        shutil.rmtree(target)
        store = LocalStore(folder / f"prepared-{kind}-{rows}-{number}")
        ours.append(
            seconds(
                partial(prepare, df, store=store, features=names, label="y", partitions=partitions, name="d", seed=1)
            )
        )
        if number < repeat:
            shutil.rmtree(store.root)
    # The first round warms the JVM and the Python workers for both sides and is not counted.
    return row(f"prepare {rows} x {WIDTH} ({kind})", "s", ours[1:], plain[1:], "repartition.write.parquet", 1.5)


def row(what: str, unit: str, ours: list[float], plain: list[float], yardstick: str, limit: float) -> dict[str, Any]:
    mine, theirs = statistics.median(ours), statistics.median(plain)
    return {
        "what": what,
        "unit": unit,
        "ours": mine,
        "yardstick": yardstick,
        "theirs": theirs,
        "ratio": mine / theirs,
        "limit": limit,
    }


def memory(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def child(store: str, mode: str, folder: str) -> None:
    """One load in a fresh process: its seconds, and by how much the resident memory rose at most."""
    warnings.simplefilter("ignore")
    from petastorm import make_batch_reader

    dataset = Dataset.open(LocalStore(store), "d")
    partition = dataset.train[0]
    path = dataset.store.local_path(partition.files[0])
    budget = 0 if mode == "disk" else None
    cache = Cache(Path(folder) / "disk", memory_folder=Path(folder) / "memory", memory_budget=budget)
    if mode != "bare":
        # What is loaded once a process, whatever the partition: libraries, thread pools.
        tiny = {"x": np.zeros((64, WIDTH), "float32"), "y": np.zeros(64, "int32")}
        small = prepare(tiny, store=f"{folder}/tiny", features="x", label="y", partitions=1)
        cache.load(small, small.train[0])
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    start = time.perf_counter()
    if mode == "bare":
        with make_batch_reader(f"file://{path}") as reader:
            for _ in reader:
                pass
    else:
        arrays = cache.load(dataset, partition)
    taken = time.perf_counter() - start
    result: dict[str, Any] = {"seconds": taken, "peak": (memory("VmHWM") - before) / partition.bytes}
    if mode != "bare":
        result["gather"] = gather_speed(arrays)
    print("RESULT " + json.dumps(result))


def gather_speed(arrays: Any, epochs: int = 7) -> list[float]:
    """Seconds an epoch, ours and a bare gather in a given order, one after the other."""
    rows = len(next(iter(arrays.values())))
    bare, ours = [], []
    for epoch in range(epochs):
        order = np.random.default_rng(epoch).permutation(rows)

        def gather(order: Any = order) -> None:
            for start in range(0, rows, BATCH):
                chosen = order[start : start + BATCH]
                for array in arrays.values():
                    array[chosen]

        bare.append(seconds(gather))

        def feed(epoch: int = epoch) -> None:
            order = row_order(rows, 0, "", epoch, "")
            for _ in Feed(arrays, order, batch_size=BATCH):
                pass

        ours.append(seconds(feed))
    return [statistics.median(ours), statistics.median(bare)]


def run_child(store: Path, mode: str, folder: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=folder) as disk, tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        place = Path(disk)
        (place / "memory").symlink_to(shared)
        command = [sys.executable, __file__, "--child", str(store), mode, str(place)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    line = next(line for line in out.splitlines() if line.startswith("RESULT "))
    return dict(json.loads(line.removeprefix("RESULT ")))


def measure_loads(store: Path, folder: Path, repeat: int) -> list[dict[str, Any]]:
    bare, memory_runs, disk_runs = [], [], []
    for _ in range(repeat):
        bare.append(run_child(store, "bare", folder))
        memory_runs.append(run_child(store, "memory", folder))
        disk_runs.append(run_child(store, "disk", folder))
    rows = []
    plain = [run["seconds"] for run in bare]
    for name, runs in (("shared memory", memory_runs), ("disk", disk_runs)):
        rows.append(row(f"first load, {name}", "s", [r["seconds"] for r in runs], plain, "make_batch_reader", 1.2))
        rows.append(row(f"peak memory, {name}", "x partition", [r["peak"] for r in runs], [1.0], "its bytes", 1.5))
        ours, theirs = [r["gather"][0] for r in runs], [r["gather"][1] for r in runs]
        speed = [1 / value for value in ours], [1 / value for value in theirs]
        rows.append(row(f"batches of {BATCH}, {name}", "epochs/s", *speed, "bare gather (at least)", 0.9))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    spark = spark_session()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows, partitions, repeat = arguments.rows, arguments.partitions, arguments.repeat
        results = [measure_prepare(spark, folder, rows, partitions, kind, repeat) for kind in ("array", "scalar")]
        results.append(measure_prepare(spark, folder, rows // 8, partitions, "array", repeat))
        spark.stop()
        results += measure_loads(folder / f"prepared-array-{rows}-{repeat}", folder, repeat)
    print(f"{'what':<38}{'ours':>10} {'unit':<12}{'yardstick':<28}{'theirs':>10}{'ratio':>8}{'limit':>7}")
    for r in results:
        print(
            f"{r['what']:<38}{r['ours']:>10.3f} {r['unit']:<12}{r['yardstick']:<28}"
            f"{r['theirs']:>10.3f}{r['ratio']:>8.2f}{r['limit']:>7.2f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:5])
    else:
        main()
