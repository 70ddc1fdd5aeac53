"""A Hyperopt script that runs on cerebro_spark: two lines of it changed, each below the one that it took the place of.

    python examples/hyperopt_fmin.py [--max-evals 8] [--epochs 3]
    python examples/hyperopt_fmin.py --master 'local[2]'

The space, the algorithm, and every other argument of `fmin` are what they were. Without `--master` models hop over two
processes of this machine, and no Spark is needed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any

from hyperopt import fmin, hp, space_eval, tpe

import cerebro_spark as cs
from cerebro_spark.tune.hyperopt import CerebroTrials

SPACE = {
    "lr": hp.loguniform("lr", -8, -3),
    "hidden": hp.choice("hidden", [32, 64, 128]),
    "dropout": hp.uniform("dropout", 0.0, 0.5),
    "batch_size": hp.choice("batch_size", [32, 64]),
}


def objective(params: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    hidden = params["hidden"]
    module = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(params["dropout"]), nn.Linear(hidden, 10))
    optimizer, loss = torch.optim.Adam(module.parameters(), lr=params["lr"]), nn.CrossEntropyLoss()
    # before: return train_and_score(module, optimizer, loss, params["batch_size"])
    return cs.TorchModel(module, optimizer, loss, metrics={"accuracy": accuracy})


def accuracy(output: Any, label: Any) -> Any:
    return (output.argmax(dim=1) == label).float()


def session(master: str) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("hyperopt_fmin")
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
    }
    spark = builder.config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--master", help="the Spark master to train on; two processes of this machine, if not given")
    parser.add_argument("--max-evals", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()

    from sklearn.datasets import load_digits

    digits = load_digits(as_frame=True)
    table = digits.frame.assign(**digits.data.div(16).astype("float32"))
    spark = session(options.master) if options.master else None

    # before: trials = SparkTrials(parallelism=2)
    trials = CerebroTrials(
        backend=cs.SparkBackend(spark, num_workers=2) if spark else cs.LocalBackend(num_workers=2),
        data=spark.createDataFrame(table) if spark else table,
        features=list(digits.feature_names),
        label="target",
        validation=0.2,
        metric="val_loss",
        epochs=options.epochs,
        store=tempfile.mkdtemp(prefix="fmin-"),
    )
    best = fmin(objective, SPACE, algo=tpe.suggest, max_evals=options.max_evals, max_queue_len=4, trials=trials)

    print(f"the best of {len(trials)}: {space_eval(SPACE, best)}, loss {min(trials.losses()):.4f}")
    print(trials.result)
    if spark:
        spark.stop()


if __name__ == "__main__":
    main()
