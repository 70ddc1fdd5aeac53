"""Spark for tests: one session at a time in this process, on the master that the test at hand asks for.

A session is kept as long as the tests that follow ask for the same master, which the order of the test files makes the
rule; another one stops it first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent
EXECUTORS = 3
CLUSTER = f"local-cluster[{EXECUTORS},1,1024]"
# JVMs of tests live for a minute: compiling less and a serial collector start sooner on few cores.
QUICK_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class SparkHouse:
    """Makes sessions, one at a time."""

    def __init__(self) -> None:
        self._session: Any = None
        self._wanted: tuple[str, tuple[tuple[str, str], ...]] | None = None

    def session(self, master: str, **settings: str) -> Any:
        """A session on that master; settings have `__` where Spark's names have dots."""
        wanted = (master, tuple(sorted(settings.items())))
        if self._wanted != wanted or self._session is None or self._session.sparkContext._jsc is None:
            self.close()
            self._session = _session(master, {name.replace("__", "."): value for name, value in settings.items()})
            self._wanted = wanted
        return self._session

    def close(self) -> None:
        if self._session is not None:
            self._session.stop()
        self._session = None


def _session(master: str, settings: dict[str, str]) -> Any:
    import pyspark
    from pyspark.sql import SparkSession

    # Executors run this interpreter, and find the package and what tests define.
    folders = sorted({file.parent for file in TESTS.rglob("test_*.py")})
    os.environ["PYTHONPATH"] = os.pathsep.join(str(folder) for folder in (TESTS.parents[1], TESTS, *folders))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder
    builder._options = {}  # the options of the session before are remembered there
    chosen = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "3",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.executor.extraJavaOptions": QUICK_JVM,
        # The data nodes of the test cluster are told apart by their names only.
        "spark.hadoop.dfs.client.use.datanode.hostname": "true",
        **settings,
    }
    builder = builder.master(master).appName("tests")
    for name, value in chosen.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


_UNCLOSED = "ignore:unclosed <socket.socket:ResourceWarning"


def excuse_sockets(item: Any) -> None:
    """Where a session was used, a job of it may end at any time, and its socket is left to the collector then."""
    import pytest

    pyspark = sys.modules.get("pyspark")
    if pyspark is not None and pyspark.SparkContext._gateway is not None:
        item.add_marker(pytest.mark.filterwarnings(_UNCLOSED))


def excuse(items: list[Any]) -> None:
    """PySpark 3.5 uses deprecated parts of Python and pandas, and leaves the sockets of `collect` to the collector.

    PySpark 4 warns of pandas 3 as such, whatever is done with it, and uses deprecated parts of it.
    """
    import pytest

    ignored = (
        "ignore:distutils Version classes are deprecated",
        _UNCLOSED,
        "ignore:is_datetime64tz_dtype is deprecated:DeprecationWarning",
        "ignore:PySpark does not yet fully support:FutureWarning",
        "ignore:The copy keyword is deprecated:DeprecationWarning",
    )
    for item in items:
        if item.get_closest_marker("jvm"):
            for warning in ignored:
                item.add_marker(pytest.mark.filterwarnings(warning))
