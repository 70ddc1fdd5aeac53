"""What this package needs of a Spark cluster: its Python, this package on it, and the hosts of a data set's blocks.

It starts no Spark job of its own, and explains what executors lack where Spark prints a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import BackendError
from cerebro_spark.types import PartitionId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def use_this_python(context: Any) -> None:
    """Let executors on this machine run the interpreter of this process, unless the configuration names one.

    Spark would take the `python3` of the PATH, which is another one if the environment is not activated. Executors on
    other machines have paths of their own. `PYSPARK_PYTHON` and `spark.pyspark.python` always hold.
    """
    master = str(context.master)
    here = master == "local" or master.startswith(("local[", "local-cluster["))
    named = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if here and not named and sys.executable and context.pythonExec == "python3":
        context.pythonExec = sys.executable


@contextmanager
def explain_missing_package() -> Iterator[None]:
    """Raise BackendError if a Spark job in the block fails because executors lack this package.

    >>> with explain_missing_package():
    ...     raise RuntimeError("ModuleNotFoundError: No module named 'cerebro_spark'")
    Traceback (most recent call last):
    ...
    cerebro_spark.errors.BackendError: the executors do not have cerebro_spark: install it there, or ship this
    environment with spark.archives (see docs/deploy)
    """
    try:
        yield
    except Exception as error:
        if "No module named 'cerebro_spark'" in str(error):
            raise BackendError(
                "the executors do not have cerebro_spark: install it there, or ship this environment with"
                " spark.archives (see docs/deploy)"
            ) from error
        raise


def find_replica_hosts(spark: SparkSession, dataset: Dataset) -> dict[PartitionId, tuple[str, ...]]:
    """Ask the name node which hosts hold blocks of each partition; the host with most bytes comes first.

    The answer is empty for a store that is not on HDFS: there no host is nearer than another.
    """
    root = dataset.store.url.rstrip("/")
    if not root.startswith(("hdfs://", "viewfs://")):
        return {}
    gateway: Any = spark
    jvm, configuration = gateway._jvm, gateway._jsc.hadoopConfiguration()
    hosts: dict[PartitionId, tuple[str, ...]] = {}
    for partition in dataset.partitions:
        held: dict[str, int] = {}
        for name in partition.files:
            path = jvm.org.apache.hadoop.fs.Path(f"{root}/{name}")
            system = path.getFileSystem(configuration)
            status = system.getFileStatus(path)
            for block in system.getFileBlockLocations(status, 0, status.getLen()):
                for host in block.getHosts():
                    held[host] = held.get(host, 0) + block.getLength()
        hosts[partition.id] = tuple(sorted(held, key=lambda host: (-held[host], host)))
    return hosts
