"""The commands of docs/deploy/yarn.md, on a real resource manager with two node managers, and HDFS beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pages
import pyarrow.parquet as pq
import pytest
from gateway import SPARK_HOME, Gateway, Said
from hadoop.cluster import HadoopCluster
from hadoop.yarn import YarnCluster

from cerebro_spark.result import Result
from cerebro_spark.store import paths
from cerebro_spark.store.hdfs import HdfsStore

pytestmark = [pytest.mark.jvm, pytest.mark.hadoop, pytest.mark.slow, pytest.mark.timeout(1200)]
# Only so that a minute is enough: JVMs of little memory, no web pages. And so that a busy machine is no trouble: the
# job counts its executors, and a node may take long to unpack the environment.
THRIFT = """
spark.scheduler.maxRegisteredResourcesWaitingTime 600s
spark.ui.enabled       false
spark.driver.memory    512m
spark.yarn.am.memory   512m
spark.ui.showConsoleProgress false
"""
# An executor takes 2 GiB, and an application master or a driver up to 1.5: so each node has one executor.
NODE_MB = 3584


@pytest.fixture(scope="module")
def yarn(hadoop_cluster: HadoopCluster) -> Iterator[YarnCluster]:
    with YarnCluster(hadoop_cluster, nodemanagers=2, memory_mb=NODE_MB) as cluster:
        yield cluster


def submitted(gateway: Gateway, yarn: YarnCluster, mode: str, user: str) -> Said:
    defaults = pages.block("yarn", "properties", under="What the cluster should say")
    gateway.configure(pages.filled(defaults, SPARK_HOME=SPARK_HOME) + THRIFT)
    return gateway.run(pages.block("yarn", "bash", under=mode), HADOOP_CONF_DIR=yarn.conf_dir, USER=user)


def driver_output(yarn: YarnCluster, said: Said) -> Said:
    """What the driver of cluster mode wrote, from the log of its container: the only one that printed anything."""
    (application,) = set(re.findall(r"application_\d+_\d+", said.err))
    logs = [log.read_text() for log in Path(yarn.folder).glob(f"logs-*/{application}/*/stdout")]
    (out,) = [text for text in logs if text]
    return Said(out, "")


def check_job(told: Said, hdfs: HadoopCluster, user: str) -> None:
    """The run is in the store, its scored rows beside it, and the executors had the package from the archive."""
    store = HdfsStore(f"{hdfs.url}/user/{user}/churn", options=hdfs.settings)
    (run,) = paths.run_ids(store.list())
    result = Result(store, run)
    assert result.finished
    assert len(result.trials) == 4
    assert told.line("best").startswith(f"{result.best_trial.id} ")
    assert result.best_trial.metrics["val_accuracy"] > 0.7
    assert told.line("hosts") == "127.0.0.2 127.0.0.3"
    homes = told.line("package").split()
    assert len(homes) == 2, "one in each executor's container"
    assert all(
        re.fullmatch(r".*/container_\w+/environment/lib/python[\d.]+/site-packages/cerebro_spark", h) for h in homes
    )
    scored = [pq.read_table(BytesIO(store.read(name))) for name in store.list("scored") if name.endswith(".parquet")]
    assert sum(table.num_rows for table in scored) == 20_000
    assert "prediction" in scored[0].column_names


def test_client_mode(gateway: Gateway, yarn: YarnCluster, hadoop_cluster: HadoopCluster) -> None:
    told = submitted(gateway, yarn, "Client mode", "anna")
    check_job(told, hadoop_cluster, "anna")


@pytest.mark.rare
def test_cluster_mode(gateway: Gateway, yarn: YarnCluster, hadoop_cluster: HadoopCluster) -> None:
    said = submitted(gateway, yarn, "Cluster mode", "bert")
    assert "best" not in said.out, "the driver is not here"
    check_job(driver_output(yarn, said), hadoop_cluster, "bert")
