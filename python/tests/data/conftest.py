"""What the tests of the data layer share: a store, and folders for a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cerebro_spark.store.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, Any]:
    return {"folder": tmp_path / "disk", "memory_folder": tmp_path / "memory"}
