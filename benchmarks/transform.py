"""What `result.transform` costs on Spark, beside a pandas UDF written by hand over the same columns. It never asserts.

python -m benchmarks.transform [--rows 400000] [--repeat 5] [--json out.json]

Both load their model once a process, get the same Arrow batches and are timed in turns, over a warm session; the rows
are cached, and every prediction is used (summed).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

WIDTH = 64


def keras_model_fn(params: Mapping[str, Any]) -> Any:
    import keras

    model = keras.Sequential([keras.layers.Dense(params["hidden"], activation="relu"), keras.layers.Dense(1)])
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss="mse")
    return model


def torch_model_fn(params: Mapping[str, Any]) -> Any:
    import torch

    from cerebro_spark import TorchModel

    module = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, params["hidden"]), torch.nn.ReLU(), torch.nn.Linear(params["hidden"], 1)
    )
    return TorchModel(module, torch.optim.Adam(module.parameters()), torch.nn.MSELoss())


def spark_session() -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def frame(spark: Any, rows: int, kind: str) -> Any:
    """`rows` of 64 floats, as one array column or as 64 columns, and one more column to keep."""
    from pyspark.sql import functions as f

    values = [f.rand(seed).cast("float").alias(f"f{seed}") for seed in range(WIDTH)]
    columns = [f.array(*values).alias("x")] if kind == "array" else values
    df = spark.range(rows).select("id", *columns).repartition(4).cache()
    df.count()
    return df


def trained(folder: Path, model_fn: Callable[..., Any], kind: str, hidden: int) -> Any:
    """A result with one trained trial."""
    from cerebro_spark.backend.local import LocalBackend
    from cerebro_spark.data.prepare import prepare
    from cerebro_spark.recipe import Recipe
    from cerebro_spark.result import Result
    from cerebro_spark.runs import execute
    from cerebro_spark.search import FixedSearch
    from cerebro_spark.store.local import LocalStore
    from cerebro_spark.trainer.base import Hooks
    from cerebro_spark.trainer.spec import TrainerSpec
    from cerebro_spark.types import Objective

    x = np.random.default_rng(0).random((512, WIDTH), dtype="float32")
    data = {"x": x} if kind == "array" else {f"f{i}": x[:, i] for i in range(WIDTH)}
    store = LocalStore(folder)
    features: Any = "x" if kind == "array" else list(data)
    dataset = prepare({**data, "y": x.sum(axis=1)}, store=store, features=features, label="y", partitions=1)
    search = FixedSearch([{"hidden": hidden}], 1)
    recipe = Recipe(search, Objective("loss", "min"), dataset, TrainerSpec(Hooks(model_fn)))
    execute(recipe, store, LocalBackend(num_workers=1, threads=1), "r1", progress=False)
    return Result(store, "r1")


def by_hand(model: Any, kind: str, framework: str, threads: int | None) -> Callable[[Any], Any]:
    """What somebody who knows Spark and the framework would write: an iterator UDF that loads the model once."""
    import pandas as pd
    from pyspark.sql import functions as f

    if framework == "keras":
        weights, config = model.get_weights(), model.to_json()
    else:
        import copy

        weights, config = None, copy.deepcopy(model)
    names = ["x"] if kind == "array" else [f"f{i}" for i in range(WIDTH)]

    def predict(batches: Iterator[Any]) -> Iterator[pd.Series]:
        if framework == "keras":
            if threads is not None and "tensorflow" not in sys.modules:
                import tensorflow as tf

                tf.config.threading.set_intra_op_parallelism_threads(threads)
                tf.config.threading.set_inter_op_parallelism_threads(threads)
            import keras

            live = keras.models.model_from_json(config)
            live.set_weights(weights)
        else:
            import torch

            if threads is not None:
                torch.set_num_threads(threads)
        for columns in batches:
            x = np.stack(columns.to_numpy()) if kind == "array" else np.stack(columns, axis=1)
            if framework == "keras":
                yield pd.Series(live.predict_on_batch(x)[:, 0])
            else:
                with torch.no_grad():
                    yield pd.Series(config(torch.from_numpy(x)).numpy()[:, 0])

    taken: Any = Iterator[pd.Series] if kind == "array" else Iterator[tuple[pd.Series, ...]]
    predict.__annotations__ = {"batches": taken, "return": Iterator[pd.Series]}
    functions: Any = f  # its stubs do not know iterator UDFs
    udf = functions.pandas_udf(predict, "float")
    return lambda df: df.withColumn("prediction", udf(*[f.col(name) for name in names]))


def seconds(scored: Any) -> tuple[float, float]:
    """How long it takes to score and use every row, and the sum that came out."""
    from pyspark.sql import functions as f

    began = time.perf_counter()
    total = scored.agg(f.sum("prediction"), f.max("id")).first()[0]
    return time.perf_counter() - began, float(total)


def compare(spark: Any, folder: Path, framework: str, kind: str, rows: int, repeat: int, hidden: int) -> dict[str, Any]:
    result = trained(folder, {"keras": keras_model_fn, "torch": torch_model_fn}[framework], kind, hidden)
    df = frame(spark, rows, kind)
    model = result.model()
    rivals = {
        "ours": result.transform(df),
        "by hand": by_hand(model, kind, framework, threads=None)(df),
        "by hand, 1 thread": by_hand(model, kind, framework, threads=1)(df),
    }
    times: dict[str, list[float]] = {name: [] for name in rivals}
    sums: dict[str, float] = {}
    for turn in range(repeat + 1):
        for name, scored in rivals.items():
            took, sums[name] = seconds(scored)
            if turn:
                times[name].append(took)
    df.unpersist()
    spread = max(sums.values()) - min(sums.values())
    assert spread <= 1e-3 * abs(sums["ours"]), f"the rivals do not agree: {sums}"
    best = {name: statistics.median(values) for name, values in times.items()}
    fastest = min(best["by hand"], best["by hand, 1 thread"])
    return {
        "framework": framework,
        "features": kind,
        "rows": rows,
        **best,
        "speed against the faster": fastest / best["ours"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--framework", choices=["keras", "torch", "both"], default="both")
    parser.add_argument("--features", choices=["array", "columns", "both"], default="both")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    frameworks = ["torch", "keras"] if given.framework == "both" else [given.framework]
    kinds = ["array", "columns"] if given.features == "both" else [given.features]
    spark = spark_session()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for framework in frameworks:
            for kind in kinds:
                place = Path(folder) / f"{framework}-{kind}"
                row = compare(spark, place, framework, kind, given.rows, given.repeat, given.hidden)
                print(json.dumps(row), flush=True)
                found.append(row)
    spark.stop()
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
