"""What all tests share: one Hadoop cluster for the whole run, started by the first test that asks for it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hadoop import jars
from hadoop.cluster import HadoopCluster


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Stores first: their tests fork this process, which is safe only before Spark and others have started threads."""
    items.sort(key=lambda item: "store" not in item.path.parts)
