"""What the tests of the data layer share: a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro_spark.store.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")
