"""What workers keep on their host: nothing once they have ended, and nothing in a folder that is not their user's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from observing import each_event
from small_driver import small_recipe
from small_search import small_dataset

from cerebro_spark import runs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.data.loading.cache_root import DISK_VARIABLE, MEMORY_VARIABLE
from cerebro_spark.errors import PreflightFailed
from cerebro_spark.events import Event, UnitFinished

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the workers' cache in memory; the one on disk lies beside it."""
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path / "disk"))
    monkeypatch.setenv(MEMORY_VARIABLE, str(tmp_path / "memory"))
    for limit in ("pool._SECONDS_TO_END", "parent_launcher._SECONDS_TO_END"):  # who is killed cannot clear it
        monkeypatch.setattr(f"cerebro_spark.backend.driver.{limit}", 300.0)
    return tmp_path / "memory"


def test_the_cache_is_gone_when_a_run_has_ended(tmp_path: Path, memory: Path) -> None:
    dataset = small_dataset(tmp_path, rows=80)
    held: list[int] = []

    @each_event
    def look(event: Event) -> None:
        if isinstance(event, UnitFinished):
            held.append(len(list(memory.glob("*/entry.json"))))

    runs.execute(small_recipe(dataset, 1), dataset.store, LocalBackend(2, threads=1), observers=[look])
    assert max(held) == len(dataset.partitions), "each is cached, once for both workers"
    assert not memory.exists()
    assert not (tmp_path / "disk").exists()


def test_a_folder_that_lets_others_in_is_said_before_the_run_begins(tmp_path: Path, memory: Path) -> None:
    dataset = small_dataset(tmp_path, rows=80)
    memory.mkdir()
    os.chmod(memory, 0o777)
    with pytest.raises(PreflightFailed, match=r"UntrustedCache: .*memory has the mode 0777, which lets others in"):
        runs.execute(small_recipe(dataset, 1), dataset.store, LocalBackend(1, threads=1), "r1")
    assert not dataset.store.list("runs/r1")
    assert not list(memory.iterdir())


def arrays(memory: Path) -> set[tuple[str, int]]:
    """The files of arrays that lie in the cache, and when they were written."""
    return {(f"{file.parent.name}/{file.name}", file.stat().st_mtime_ns) for file in memory.glob("*/*.npy")}


def test_between_the_runs_of_a_block_the_partitions_stay(tmp_path: Path, memory: Path) -> None:
    dataset = small_dataset(tmp_path, rows=80)
    with LocalBackend(2, threads=1) as backend:
        runs.execute(small_recipe(dataset, 1), dataset.store, backend)
        loaded = arrays(memory)
        assert len(list(memory.glob("*/entry.json"))) == len(dataset.partitions)
        runs.execute(small_recipe(dataset, 1), dataset.store, backend)
        assert arrays(memory) == loaded
        other = small_dataset(tmp_path / "other", rows=80)
        runs.execute(small_recipe(other, 1), other.store, backend)
        assert len(list(memory.glob("*/entry.json"))) == len(other.partitions), "those of the first are gone"
        assert not arrays(memory) & loaded
    assert not memory.exists()
    assert not (tmp_path / "disk").exists()
