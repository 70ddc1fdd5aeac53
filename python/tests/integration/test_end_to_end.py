"""Whole runs in both frameworks, wherever units can run: they leave what a plain loop leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from whole_runs import PARTITIONS, check_against_plain_loop, check_complete, rows, run_to_end

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.backend.spark import SparkBackend
from cerebro_spark.data.prepare import prepare
from cerebro_spark.store.base import Store
from cerebro_spark.store.hdfs import HdfsStore
from cerebro_spark.store.local import LocalStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
FRAMEWORKS = pytest.mark.parametrize("framework", ["torch", "keras"])


def check_whole_run(framework: str, data: Any, store: Store, backend: Backend, folder: Path) -> None:
    dataset = prepare(data, store=store, features="x", label="y", validation=0.25, partitions=PARTITIONS, seed=3)
    told = run_to_end(framework, dataset, store, backend)
    check_complete(told, dataset)
    check_against_plain_loop(told, framework, dataset, folder)


@FRAMEWORKS
def test_on_processes_of_this_machine(framework: str, tmp_path: Path) -> None:
    check_whole_run(framework, rows(), LocalStore(tmp_path / "store"), LocalBackend(2, threads=1), tmp_path)


@pytest.mark.jvm
@FRAMEWORKS
def test_on_spark_executors(framework: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if framework == "keras" and "not hadoop" not in request.config.getoption("markexpr"):
        pytest.skip("the run on HDFS below does the same and more")
    spark_cluster = request.getfixturevalue("spark_cluster")
    check_whole_run(framework, rows(), LocalStore(tmp_path / "store"), SparkBackend(spark_cluster, 3), tmp_path)


@pytest.mark.jvm
@pytest.mark.hadoop
def test_on_spark_executors_with_everything_on_hdfs(spark_cluster: Any, hadoop_cluster: Any, tmp_path: Path) -> None:
    """The rows come as a DataFrame of Spark, whose executors write the partitions to HDFS.

    In Keras only: test_replica_awareness.py compares runs of PyTorch on HDFS with plain loops.
    """
    data = rows()
    frame = spark_cluster.createDataFrame(
        [(x.tolist(), float(y)) for x, y in zip(data["x"], data["y"], strict=True)], "x array<float>, y float"
    )
    store = HdfsStore(f"{hadoop_cluster.url}/whole-run", options=hadoop_cluster.settings)
    check_whole_run("keras", frame, store, SparkBackend(spark_cluster, 3), tmp_path)
