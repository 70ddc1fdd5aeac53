"""Executors that are as large as a plan says, on a YARN that kills who takes more memory than was granted."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest
from gateway import SPARK_HOME, Gateway, Said
from hadoop.cluster import HadoopCluster
from hadoop.yarn import YarnCluster
from test_yarn import THRIFT

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.hadoop,
    pytest.mark.slow,
    pytest.mark.rare,
    pytest.mark.timeout(1200),
]
KILLED = r"killed by YARN|beyond the 'PHYSICAL' memory limit|exceeding .* memory limits"
JOB = Path(__file__).with_name("planned_job.py")


@pytest.fixture(scope="module")
def yarn(hadoop_cluster: HadoopCluster) -> Iterator[YarnCluster]:
    with YarnCluster(hadoop_cluster, nodemanagers=1, memory_mb=10_000, limits_memory=True) as cluster:
        yield cluster


@pytest.fixture
def peaks(tmp_path: Path) -> Path:
    """A folder in which workers leave how much memory they had."""
    return tmp_path


def plan(gateway: Gateway, hdfs: HadoopCluster, name: str) -> str:
    """Return what `cerebro-spark plan` tells to paste, for one host with one core.

    The store is the run's: it takes memory.
    """
    shutil.copy(JOB, gateway.folder)
    said = gateway.run(
        f"cerebro-spark plan --recipe planned_job.py:{name} --store {hdfs.url}/user/planned --hosts 1 --cores 1"
        " --seconds 30",
        HADOOP_CONF_DIR=hdfs.conf_dir,
    )
    return said.line("spark-submit")


def submit(gateway: Gateway, yarn: YarnCluster, hdfs: HadoopCluster, name: str, options: str, peaks: Path) -> Said:
    """Submit a search with these options, whatever becomes of it."""
    defaults = pages.block("yarn", "properties", under="What the cluster should say")
    gateway.configure(pages.filled(defaults, SPARK_HOME=SPARK_HOME) + THRIFT)
    return gateway.run(
        "export PYSPARK_DRIVER_PYTHON=environment/bin/python PYSPARK_PYTHON=./environment/bin/python\n"
        f"spark-submit --master yarn --deploy-mode client {options} --conf spark.dynamicAllocation.enabled=false"
        f" --conf spark.executorEnv.PEAKS={peaks} --archives environment.tar.gz#environment"
        f" planned_job.py {name} {hdfs.url}/user/planned || echo ended $?",
        HADOOP_CONF_DIR=yarn.conf_dir,
    )


def overhead_of(options: str) -> int:
    (found,) = re.findall(r"spark\.executor\.memoryOverhead=(\d+)m", options)
    return int(found)


@pytest.mark.parametrize("model", ["table", "dense", "wide"])
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_executors_of_that_size_live_and_smaller_ones_do_not(
    gateway: Gateway, yarn: YarnCluster, hadoop_cluster: HadoopCluster, framework: str, model: str, peaks: Path
) -> None:
    name = f"{framework}_{model}_search"
    planned = plan(gateway, hadoop_cluster, name)
    told = submit(gateway, yarn, hadoop_cluster, name, planned, peaks)
    assert told.line("finished") == "2"
    assert not re.search(KILLED, told.err)
    peak = max(int(file.read_text()) for file in peaks.iterdir() if file.name.isdecimal()) / 2**20
    # What a plan says is what was measured, and 15 % beyond that, in steps of 64 MiB.
    assert overhead_of(planned) / 1.15 == pytest.approx(peak, rel=0.15)

    smaller = planned.replace(f"memoryOverhead={overhead_of(planned)}m", f"memoryOverhead={round(0.8 * peak)}m")
    told = submit(gateway, yarn, hadoop_cluster, name, smaller, peaks)
    assert re.search(KILLED, told.err)
