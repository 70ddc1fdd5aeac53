"""What the tests of docs/deploy share: one gateway with a packed environment."""

from __future__ import annotations

import pytest
from gateway import Gateway


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Gateway:
    """A folder with the job and the environment of the pages."""
    place = Gateway(tmp_path_factory.mktemp("gateway") / "home")
    place.make_environment()
    return place
