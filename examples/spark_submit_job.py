"""A whole job for spark-submit: make rows, search for a PyTorch model, print the table, write scored rows.

`docs/deploy` shows the commands. It asks nothing of the cluster by itself: master, executors and the Python environment
are spark-submit's to say.
"""

from __future__ import annotations

import argparse
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import cerebro_spark as cs
from cerebro_spark import hp


def model_fn(params):
    import torch
    from torch import nn

    module = nn.Sequential(nn.Linear(2, params["hidden"]), nn.ReLU(), nn.Linear(params["hidden"], 1), nn.Flatten(0))

    def accuracy(output, label):
        return ((output > 0) == (label > 0)).float()

    optimizer = torch.optim.Adam(module.parameters(), lr=params["lr"])
    return cs.TorchModel(module, optimizer, nn.BCEWithLogitsLoss(), metrics={"accuracy": accuracy})


def churn(spark, rows):
    columns = spark.range(rows).select("id", F.randn(1).alias("age"), F.randn(2).alias("income"))
    return columns.withColumn("churned", (F.col("age") - F.col("income") + F.randn(3) > 0).cast("int"))


def homes(spark, tasks):
    """Where the executors' Python finds this package: one look tells whether the environment has arrived."""
    return spark.sparkContext.parallelize(range(tasks), tasks).map(lambda _: os.path.dirname(cs.__file__)).distinct()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, help="where data, checkpoints and results go, such as hdfs:///churn")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--workers", type=int, help="as many as the cluster has places for tasks, if not given")
    parser.add_argument("--port", type=int, default=0, help="the driver's port for workers; any free one, if not given")
    options = parser.parse_args()

    spark = SparkSession.builder.appName("churn").getOrCreate()
    df = churn(spark, options.rows).cache()
    backend = cs.SparkBackend(spark, num_workers=options.workers, port=options.port)
    search = cs.GridSearch(
        model_fn,
        space={"lr": hp.choice([1e-2, 1e-3]), "hidden": hp.choice([8, 32]), "batch_size": 256},
        backend=backend,
        store=options.store,
        features=["age", "income"],
        label="churned",
        validation=0.2,
        metric="val_accuracy",
        epochs=2,
        seed=7,
    )
    result = search.fit(df)
    print(result)
    print("package", *homes(spark, backend.num_workers).collect())
    print("hosts", *sorted(set(result.units.host)))
    print("best", result.best_trial.id, result.best_trial.params, result.best_trial.metrics)
    result.transform(df).write.mode("overwrite").parquet(f"{options.store}/scored")
    spark.stop()


if __name__ == "__main__":
    main()
