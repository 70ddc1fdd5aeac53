"""The cache where something goes wrong: loaders that die or fail, and no room left. Nothing stays in the way."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from cached_rows import DistantStore, cached_rows, check, size

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.loading import arrays as load
from cerebro_spark.data.loading import cache as cache_module
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.errors import StoreFull
from cerebro_spark.store.local import LocalStore


@pytest.fixture
def dataset(store: LocalStore) -> Dataset:
    return cached_rows(store)


def die_while_loading(dataset: Dataset, roots: dict[str, Any]) -> None:
    cache_module.fill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[attr-defined]
    Cache(**roots).load(dataset, dataset.train[0])


@pytest.mark.slow
def test_a_loader_that_is_killed_leaves_nothing_in_the_way(dataset: Dataset, roots: dict[str, Any]) -> None:
    context = multiprocessing.get_context("spawn")
    for number in (0, 1):
        child = context.Process(target=die_while_loading, args=(dataset, roots), daemon=True)
        child.start()
        child.join(300)
        assert child.exitcode == -signal.SIGKILL
        assert len(list(roots["memory_folder"].glob("*.staged"))) == 1, number
    with Cache(**roots, memory_budget=int(size(dataset) * 1.5)) as cache:
        check(cache.load(dataset, dataset.train[1]))
        assert not list(roots["memory_folder"].glob("*.staged"))
        check(cache.load(dataset, dataset.train[0]))


def test_a_load_that_fails_leaves_nothing(
    dataset: Dataset, roots: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("network gone")

    with Cache(**roots) as cache:
        with monkeypatch.context() as patch:
            patch.setattr(cache_module, "fill", fail)
            with pytest.raises(OSError, match="network gone"):
                cache.load(dataset, dataset.train[0])
        assert not list(roots["memory_folder"].glob("*.staged"))
        check(cache.load(dataset, dataset.train[0]))


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_no_room_anywhere_is_said_with_the_numbers(
    dataset: Dataset, roots: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", full)
    with Cache(**roots) as cache, pytest.raises(StoreFull, match=rf"needs {size(dataset)} bytes .* left: free some"):
        cache.load(dataset, dataset.train[0])
    assert not list(roots["folder"].glob("*.staged"))


def test_shared_memory_that_is_full_before_its_budget_is_no_matter(
    dataset: Dataset, roots: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.posix_fallocate
    asked: list[int] = []

    def full_at_first(descriptor: int, offset: int, length: int) -> None:
        asked.append(length)
        if len(asked) == 1:
            full()
        real(descriptor, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", full_at_first)
    with Cache(**roots) as cache:
        check(cache.load(dataset, dataset.train[0]))
        assert len(list(roots["folder"].glob("*/entry.json"))) == 1
        assert not list(roots["memory_folder"].glob("*.staged"))


def die_after_fetching(root: Path, name: str, roots: dict[str, Any]) -> None:
    load._choose_reader = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    distant = Dataset.open(DistantStore(root), name)
    Cache(**roots).load(distant, distant.train[0])


@pytest.mark.slow
@pytest.mark.parametrize("next_one", [0, 1])
def test_what_a_killed_loader_fetched_is_removed(dataset: Dataset, roots: dict[str, Any], next_one: int) -> None:
    root = dataset.store.root  # type: ignore[attr-defined]
    child = multiprocessing.get_context("spawn").Process(
        target=die_after_fetching, args=(root, dataset.id, roots), daemon=True
    )
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    assert len(list(roots["folder"].rglob("*.parquet"))) == 1
    with Cache(**roots) as cache:
        check(cache.load(dataset, dataset.train[next_one]))
    assert not list(roots["folder"].rglob("*.parquet"))
