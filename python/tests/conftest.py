"""What all tests share: one Hadoop cluster for the whole run, started by the first test that asks for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from end_of_run import pytest_unconfigure as pytest_unconfigure
from fast_tier import imports_frozen, quicken
from hadoop import jars
from hadoop.cluster import HadoopCluster
from kept_workers import KeptWorkers, one_environment, staying
from side_by_side import check_dealt, deal
from sparks import CLUSTER, SparkHouse, excuse, excuse_sockets
from unwanted import unwanted

if TYPE_CHECKING:
    from cerebro_spark.backend.local import LocalBackend


def pytest_configure(config: pytest.Config) -> None:
    quicken(config)
    # A shell starts what is to run in the background with Ctrl-C ignored, and every process below would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return unwanted(collection_path, config.getoption("markexpr")) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    with imports_frozen():
        return (yield)


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook: marks added later have no effect
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    excuse(items)
    deal(config, items)


def pytest_collection_finish(session: pytest.Session) -> None:
    check_dealt(session.config, session.items)


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest reads which warnings a test ignores
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    excuse_sockets(item)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    with one_environment():
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a test that fails at once, where nobody watches: all else is said in the end."""
    if report.failed and os.environ.get("CI") == "true" and "PYTEST_XDIST_WORKER" not in os.environ:
        lines = report.longreprtext.strip().splitlines()
        why = next((line.removeprefix("E").strip() for line in lines if line.startswith("E ")), lines[-1])
        print(f"\njust failed: {report.nodeid}: {why}", flush=True)


@pytest.fixture(scope="module")
def staying_processes() -> Iterator[LocalBackend]:
    """Processes of a module's tests; see `kept_backend`."""
    with staying() as backend:
        yield backend


@pytest.fixture
def kept_backend(staying_processes: LocalBackend) -> Iterator[KeptWorkers]:
    """Makes the backend of a test that is not about how workers start: theirs come from processes that are there."""
    with KeptWorkers(staying_processes) as workers:
        yield workers


@pytest.fixture(scope="session")
def hadoop_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HadoopCluster]:
    """A running name node and three data nodes. A test that kills a daemon starts it again and waits for it."""
    reason = jars.missing()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; in CI these tests must run", pytrace=False)
        pytest.skip(reason)
    with HadoopCluster(tmp_path_factory.mktemp("hadoop") / "cluster") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def spark_house() -> Iterator[SparkHouse]:
    """Where sessions on other masters come from."""
    house = SparkHouse()
    yield house
    house.close()


@pytest.fixture
def spark(spark_house: SparkHouse) -> Any:
    """A session on two cores of this process."""
    return spark_house.session("local[2]")


@pytest.fixture
def spark_cluster(spark_house: SparkHouse) -> Any:
    """A session on three real executors, each a JVM of its own with one core."""
    return spark_house.session(CLUSTER)
