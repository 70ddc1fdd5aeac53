"""Who uses a cache: the last one out clears it, the first one in removes what the dead left, however they meet."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from numbered_rows import numbered

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.data.loading.cache_root import CacheRoot
from cerebro_spark.data.prepare import prepare
from cerebro_spark.store.local import LocalStore

ROWS = 40


@pytest.fixture
def dataset(store: LocalStore) -> Dataset:
    return prepare(numbered(ROWS, 2), store=store, features="x", label="y", partitions=4, name="d")


def gone(roots: dict[str, Any]) -> bool:
    return not any(Path(root).exists() for root in roots.values())


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_the_last_one_out_leaves_nothing(dataset: Dataset, roots: dict[str, Any], budget: int) -> None:
    one, two = (Cache(**roots, memory_budget=budget) for _ in range(2))
    one.load(dataset, dataset.train[0])
    two.load(dataset, dataset.train[1])
    one.close()
    assert two.holds(dataset, dataset.train[0]), "who is still there may want it"
    arrays = two.load(dataset, dataset.train[0])
    two.close()
    assert gone(roots)
    assert len(arrays["label"]) == ROWS // 4, "what was handed out stays"


def test_a_closed_cache_can_be_used_again(dataset: Dataset, roots: dict[str, Any]) -> None:
    cache = Cache(**roots)
    for _ in range(2):
        cache.load(dataset, dataset.train[0])
        cache.close()
        cache.close()
        assert gone(roots)


def test_a_folder_removed_under_its_users_is_made_again(dataset: Dataset, roots: dict[str, Any]) -> None:
    import shutil

    with Cache(**roots) as cache:
        cache.load(dataset, dataset.train[0])
        for root in roots.values():
            shutil.rmtree(root)
        assert len(cache.load(dataset, dataset.train[0])["label"]) == ROWS // 4
        assert cache.holds(dataset, dataset.train[0])
    assert gone(roots)


@pytest.mark.parametrize("stuck_in", ["memory_folder", "folder"])
def test_a_neighbour_that_is_stuck_with_a_load_keeps_nobody_from_it(
    dataset: Dataset, roots: dict[str, Any], stuck_in: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A mount that died holds whoever reads from it, killed or not, and so the lock that it has."""
    partition = dataset.train[0]
    with Cache(**roots, patience=0.2) as first:
        expected = first.load(dataset, partition)
        (name,) = [path.name for path in roots["memory_folder"].iterdir() if path.is_dir()]
        first.release(dataset, partition)
        neighbour = CacheRoot(Path(roots[stuck_in]))
        neighbour.enter()
        with neighbour.locked(f"{name}.lock"), Cache(**roots, patience=0.2) as second:
            found = second.load(dataset, partition)
            assert {column: array.tolist() for column, array in found.items()} == {
                column: array.tolist() for column, array in expected.items()
            }
            assert f"the process that loads partition {partition.id} seems to be stuck" in caplog.text
            assert second.load(dataset, partition) is found, "and it is held as any other"
        neighbour.leave()
    assert gone(roots)


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        CacheRoot(Path("/proc/nowhere/cache")).enter()


def test_what_is_not_ours_to_remove_stays(roots: dict[str, Any]) -> None:
    root = CacheRoot(roots["folder"])
    root.enter()
    (roots["folder"] / "notes.txt").write_text("mine")
    root.leave()
    assert [path.name for path in roots["folder"].iterdir()] == ["notes.txt"]


def load_and_die(root: str, roots: dict[str, Any], name: str) -> None:
    dataset = Dataset.open(LocalStore(root), name)
    cache = Cache(**roots)
    for partition in dataset.train:
        cache.load(dataset, partition)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_the_next_one_in_keeps_what_it_can_use_of_the_dead(store: LocalStore, roots: dict[str, Any]) -> None:
    """A worker that takes a dead one's place finds its data; what only another data set could use goes."""
    data = numbered(ROWS, 2)
    dead, other = (prepare(data, store=store, features="x", label="y", partitions=2, name=n) for n in ("a", "b"))
    child = multiprocessing.get_context("spawn").Process(target=load_and_die, args=(str(store.root), roots, "a"))
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    with Cache(**roots) as cache:
        cache.load(dead, dead.train[0])
        assert all(cache.holds(dead, partition) for partition in dead.train)
        with Cache(**roots) as late:
            late.load(other, other.train[0])
            assert all(cache.holds(dead, partition) for partition in dead.train), "it was not the first one in"
        for held in cache._open_entries.values():
            held.lock.close()
        for root in cache._roots():
            root._close()
    with Cache(**roots) as cache:
        cache.load(other, other.train[0])
        assert not any(cache.holds(dead, partition) for partition in dead.train)
    assert gone(roots)


def come_and_go(root: str, roots: dict[str, Any], seed: int, start: Any, failures: Any) -> None:
    """Enter, load, check and leave, again and again, without a pause between."""
    dataset = Dataset.open(LocalStore(root), "d")
    chance = random.Random(seed)
    start.wait()
    try:
        for _ in range(12):
            with Cache(**roots, memory_budget=chance.choice([0, 500, 1 << 30])) as cache:
                for partition in chance.sample(dataset.train, chance.randint(1, 3)):
                    arrays = cache.load(dataset, partition)
                    assert (arrays["features"] == arrays["label"][:, None]).all()
    except BaseException as error:
        failures.put(f"{type(error).__name__}: {error}")
        raise


@pytest.mark.slow
def test_processes_that_come_and_go_at_once_never_lose_an_array(dataset: Dataset, roots: dict[str, Any]) -> None:
    context = multiprocessing.get_context("spawn")
    start, failures = context.Barrier(3), context.Queue()
    root = str(dataset.store.root)  # type: ignore[attr-defined]
    children = [
        context.Process(target=come_and_go, args=(root, roots, seed, start, failures), daemon=True) for seed in range(3)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join(300)
    assert failures.empty(), failures.get()
    assert [child.exitcode for child in children] == [0] * 3
    assert gone(roots)
