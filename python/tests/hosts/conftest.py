"""A cluster of hosts for the tests of a file."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hadoop import jars

from hosts.cluster import Hosts


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    reason = jars.missing()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; in CI these tests must run", pytrace=False)
        pytest.skip(reason)
    with Hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


@pytest.fixture
def mended(hosts: Hosts) -> Iterator[None]:
    """All faults are over after the test."""
    yield
    hosts.mend()
