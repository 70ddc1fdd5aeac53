"""Measures whole searches against the limit: two processes that train the same trials in plain loops, nothing else.

    python -m benchmarks.reference [--rounds 1] [--json FILE] [--only torch|keras] [--scale 1.0]

The work: 8 trials (an MLP 64-{128, 256}-64-1, Adam, four learning rates, batches of 256), 2 epochs, 100,000 rows of 64
float32, 20 % of them for validation after every epoch. Everybody gets the same arrays, already prepared: the limit as
.npy files, a search as two partitions with one replica, so that every trial hops. Wall time is from the start of the
work (for the limit: of its processes; for a search: of `fit`) to its end. Each contender runs in a process of its own,
one after another, and the rounds are interleaved.
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
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

ROWS, FEATURES, BATCH, EPOCHS = 100_000, 64, 256, 2
TRIALS = [{"hidden": hidden, "lr": lr, "batch_size": BATCH} for hidden in (128, 256) for lr in (3e-4, 1e-3, 3e-3, 1e-2)]
CONTENDERS = ("limit", "local", "spark")


def make_data(folder: Path, rows: int) -> None:
    """The arrays, and the same rows as a prepared data set of two partitions."""
    import cerebro_spark as cs

    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, FEATURES)).astype("float32")
    y = (x[:, :8].sum(axis=1) + rng.normal(size=rows) > 0).astype("float32")
    held_out = np.arange(rows) % 5 == 0
    for name, rows_of in (("train", ~held_out), ("validation", held_out)):
        np.save(folder / f"x_{name}.npy", x[rows_of])
        np.save(folder / f"y_{name}.npy", y[rows_of])
    cs.prepare(
        {"x": x, "y": y, "held_out": held_out},
        store=str(folder / "store"),
        features="x",
        label="y",
        validation="held_out",
        partitions=2,
        name="reference",
    )


# -- the models, for everybody


def torch_model_fn(params: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    import cerebro_spark as cs

    hidden = params["hidden"]
    module = nn.Sequential(
        nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
    )
    return cs.TorchModel(module, torch.optim.Adam(module.parameters(), lr=params["lr"]), nn.BCEWithLogitsLoss())


def keras_model_fn(params: dict[str, Any]) -> Any:
    import keras

    model = keras.Sequential(
        [
            keras.layers.Input((FEATURES,)),
            keras.layers.Dense(params["hidden"], activation="relu"),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(optimizer=keras.optimizers.Adam(params["lr"]), loss="binary_crossentropy")
    return model


# -- the limit


def plain_torch(folder: Path, trials: list[dict[str, Any]]) -> None:
    import torch

    torch.set_num_threads(1)
    x, y, vx, vy = (torch.from_numpy(np.load(folder / f"{n}.npy")) for n in ARRAYS)
    for params in trials:
        made = torch_model_fn(params)
        module, optimizer, loss_fn = made.module, made.optimizer, made.loss
        for epoch in range(EPOCHS):
            module.train()
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
            for start in range(0, len(x), BATCH):
                rows = order[start : start + BATCH]
                optimizer.zero_grad()
                loss_fn(module(x[rows]), y[rows]).backward()
                optimizer.step()
            module.eval()
            with torch.no_grad():
                for start in range(0, len(vx), BATCH):
                    loss_fn(module(vx[start : start + BATCH]), vy[start : start + BATCH])


def plain_keras(folder: Path, trials: list[dict[str, Any]]) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    x, y, vx, vy = (np.load(folder / f"{n}.npy") for n in ARRAYS)
    for params in trials:
        model = keras_model_fn(params)
        model.fit(
            x, y, batch_size=BATCH, epochs=EPOCHS, validation_data=(vx, vy), validation_batch_size=BATCH, verbose=0
        )


ARRAYS = ("x_train", "y_train", "x_validation", "y_validation")


# -- who runs in which process


def contend(who: str, framework: str, folder: Path) -> dict[str, float]:
    """Run one contender here, and say what it took."""
    if who == "limit":
        return _limit(framework, folder)
    import cerebro_spark as cs

    started = time.perf_counter()
    backend: Any
    if who == "spark":
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYTHONPATH"] = str(ROOT)
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        spark = (
            builder.config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .getOrCreate()
        )
        backend = cs.SparkBackend(spark, num_workers=2)
    else:
        backend = cs.LocalBackend(num_workers=2, threads=1)
    session = time.perf_counter() - started
    return {"session_s": session, **_search(framework, folder, backend)}


def _search(framework: str, folder: Path, backend: Any) -> dict[str, float]:
    import cerebro_spark as cs
    from cerebro_spark import hp

    dataset = _dataset(folder)
    search = cs.GridSearch(
        torch_model_fn if framework == "torch" else keras_model_fn,
        space={
            "hidden": hp.choice([128, 256]),
            "lr": hp.choice([3e-4, 1e-3, 3e-3, 1e-2]),
            "batch_size": BATCH,
        },
        backend=backend,
        store=str(folder / "store"),
        metric="val_loss",
        epochs=EPOCHS,
        progress=False,
    )
    started = time.perf_counter()
    result = search.fit(dataset)
    wall = time.perf_counter() - started
    units = result.units
    return {
        "wall_s": wall,
        "units": len(units),
        "training_s": float(units[units.kind == "train"].seconds.sum()),
        "evaluation_s": float(units[units.kind == "eval"].seconds.sum()),
        "first_unit_at_s": float((units.end - units.seconds).min()),
        "best_val_loss": float(result.best_trial.metrics["val_loss"]),
    }


def _dataset(folder: Path) -> Any:
    from cerebro_spark.data.dataset import Dataset
    from cerebro_spark.store.opening import open_store

    return Dataset.open(open_store(str(folder / "store")), "reference")


def _limit(framework: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.reference", "--plain", framework, "--folder", str(folder), "--half"]
    started = time.perf_counter()
    halves = [subprocess.Popen([*command, str(half)], cwd=ROOT) for half in (0, 1)]
    for half in halves:
        if half.wait(timeout=1800):
            raise RuntimeError(f"the plain loop of {framework} failed")
    return {"wall_s": time.perf_counter() - started}


def measure(who: str, framework: str, folder: Path) -> dict[str, float]:
    """Run one contender in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.reference", "--contend", who, "--framework", framework]
    done = subprocess.run(
        [*command, "--folder", str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=1800, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the rows, for a quick look")
    parser.add_argument("--only", choices=["torch", "keras"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plain", help=argparse.SUPPRESS)
    parser.add_argument("--contend", help=argparse.SUPPRESS)
    parser.add_argument("--framework", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--half", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        loop = plain_torch if options.plain == "torch" else plain_keras
        loop(options.folder, TRIALS[options.half :: 2])
        return 0
    if options.contend:
        print(json.dumps(contend(options.contend, options.framework, options.folder)))
        return 0
    found = compare(options.rounds, int(ROWS * options.scale), [options.only] if options.only else ["torch", "keras"])
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    return 0


def compare(rounds: int, rows: int, frameworks: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_data(folder, rows)
        print(
            f"{'framework':10} {'who':8} {'wall s':>8} {'x limit':>8} {'train s':>8} {'eval s':>8} {'first unit s':>13}"
        )
        for framework in frameworks:
            taken: dict[str, list[dict[str, float]]] = {who: [] for who in CONTENDERS}
            for _ in range(rounds):
                for who in CONTENDERS:
                    taken[who].append(measure(who, framework, folder))
            for who, several in taken.items():
                ratios = [a["wall_s"] / b["wall_s"] for a, b in zip(several, taken["limit"], strict=True)]
                row = {key: statistics.median(one[key] for one in several) for key in several[0]}
                row["ratio"] = statistics.median(ratios)
                found[f"{framework}/{who}"] = row
                cells = [row.get(key, float("nan")) for key in ("training_s", "evaluation_s", "first_unit_at_s")]
                numbers = " ".join(f"{cell:8.2f}" for cell in cells)
                print(f"{framework:10} {who:8} {row['wall_s']:8.2f} {row['ratio']:8.3f} {numbers}", flush=True)
    return found


if __name__ == "__main__":
    sys.exit(main())
