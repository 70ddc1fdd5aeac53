"""Whole runs in both frameworks, wherever units can run: they leave what a plain loop leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chaos import Blow, Chaos, UntilCalm, WatchedBackend
from grouped_runs import check_exactly_once, check_survivors, digests, recipe, sizes
from small_driver import SEED
from small_search import small_dataset
from whole_runs import PARTITIONS, check_against_plain_loop, check_complete, rows, run_to_end

from cerebro_spark import runs
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
def test_groups_on_spark_executors_go_on_without_a_member_that_is_killed(spark_cluster: Any, tmp_path: Path) -> None:
    """Workers of different executors reach each other; what they learnt together comes out of two local processes."""
    dataset = small_dataset(tmp_path, rows=6000, partitions=PARTITIONS)
    calm, backend = tmp_path / "calm", WatchedBackend(spark_cluster, num_workers=3, threads=1)
    made = recipe(dataset, UntilCalm([{"lr": 0.01, "batch_size": 32}], calm))
    with Chaos(backend, [Blow("worker", units=1, in_unit=True)], SEED, calm) as chaos:
        runs.execute(made, dataset.store, backend, "wild", [chaos], progress=False)
    events = check_exactly_once(dataset, "wild")
    check_survivors(chaos.strikes, dataset, "wild", workers=3)
    assert 2 in sizes(events)
    runs.replay(dataset.store, "wild", LocalBackend(2, threads=1), "again", progress=False)
    assert digests(check_exactly_once(dataset, "again")) == digests(events)


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
