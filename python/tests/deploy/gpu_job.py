"""A search whose model function writes down which GPUs its worker sees; sent to an executor with two of them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql import SparkSession

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.backend.driver import spark_cluster as cluster


def main(folder: Path) -> None:
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.parallelize([0], 1).collect()  # from here on its executor is there
    backend = cs.SparkBackend(spark)
    print("expected", cluster.expected_slots(spark.sparkContext))
    print("workers", backend.num_workers)
    print("driver", os.getpid())
    seen = str(folder / "seen")

    def model_fn(params: dict[str, Any]) -> Any:
        import torch

        with open(seen, "a") as file:
            file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")
        module = torch.nn.Linear(2, 1)
        return cs.TorchModel(
            module, torch.optim.SGD(module.parameters(), lr=params["lr"]), lambda o, y: (o[:, 0] - y).square().mean()
        )

    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(200, 2)), columns=["a", "b"]).assign(y=lambda rows: rows.a + rows.b)
    result = cs.GridSearch(
        model_fn,
        space={"lr": hp.choice([0.1, 0.03, 0.01])},
        backend=backend,
        store=str(folder / "store"),
        features=["a", "b"],
        label="y",
        validation=0.2,
        metric="val_loss",
        epochs=1,
    ).fit(spark.createDataFrame(frame))
    print("trials", len(result.trials))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
