"""What the tests of the data layer share: a store, and a Spark session of two cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cerebro_spark.store.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session on two cores, whose Python workers run this interpreter and find the package."""
    from pyspark.sql import SparkSession

    here = Path(__file__).resolve()
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(here.parents[3]), str(here.parent), os.environ.get("PYTHONPATH", "")]
    )
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2]")
        .appName("data")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "3")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        # The data nodes of the test cluster are told apart by their names only.
        .config("spark.hadoop.dfs.client.use.datanode.hostname", "true")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark 3.5 compares versions with a deprecated class and leaves the sockets of `collect` to the collector."""
    for item in items:
        if item.get_closest_marker("jvm"):
            item.add_marker(pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated"))
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"))
