"""A Spark session on two cores of this machine, for every contender that runs on Spark. It tunes nothing."""

from __future__ import annotations

import os
import sys
from typing import Any


def two_cores() -> Any:
    """`local[2]`, with executors on the Python that runs this."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    return builder.getOrCreate()


def in_use(session: Any) -> Any:
    """The same session, after a small Python job on both cores.

    A session in which somebody prepared data has started Python on its executors; what a run costs there is told apart
    from what the first Python job of any session costs.
    """
    session.sparkContext.parallelize(range(2), 2).mapPartitions(list).collect()
    return session
