"""The cache: one load a host, shared by processes, verified, bounded, and never Parquet twice."""

from __future__ import annotations

import fcntl
import io
import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cached_rows import ROWS, DistantStore, cached_rows, check, clear, size
from numbered_rows import needs_petastorm, numbered

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.foreign import open_dataset
from cerebro_spark.data.loading import arrays as load
from cerebro_spark.data.loading import cache as cache_module
from cerebro_spark.data.loading.arrays import fill
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.data.prepare import prepare
from cerebro_spark.data.shuffling import row_order
from cerebro_spark.store import open_store
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.feed import Feed


@pytest.fixture
def dataset(store: LocalStore) -> Dataset:
    return cached_rows(store)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The partitions that are loaded from Parquet, in order."""
    seen: list[str] = []
    real = load.fill

    def counted(dataset: Dataset, partition: Any, arrays: Any, **options: Any) -> None:
        seen.append(partition.id)
        real(dataset, partition, arrays, **options)

    monkeypatch.setattr(cache_module, "fill", counted)
    return seen


def test_arrays_are_right_contiguous_and_read_only(dataset: Dataset, roots: dict[str, Any]) -> None:
    with Cache(**roots) as cache:
        for partition in dataset.train:
            arrays = cache.load(dataset, partition)
            check(arrays)
            for array in arrays.values():
                assert array.flags.c_contiguous
                assert type(array) is np.ndarray
                with pytest.raises(ValueError, match="read-only"):
                    array[0] = 0


def test_a_data_set_prepared_again_under_its_name_is_loaded_again(store: LocalStore, roots: dict[str, Any]) -> None:
    with Cache(**roots) as cache:
        for sign in (1, -1):
            data = {name: values * sign for name, values in numbered(10).items()}
            dataset = prepare(data, store=store, features="x", label="y", partitions=1, name="d")
            assert sorted(cache.load(dataset, dataset.train[0])["label"] * sign) == list(range(10))
            store.delete("datasets/d")


@pytest.mark.parametrize("where", ["local", "memory"])
def test_a_parquet_file_that_was_written_again_is_loaded_again(
    tmp_path: Path, roots: dict[str, Any], where: str
) -> None:
    """With as many rows and bytes as before, and, where the file's age is known, not even another footer."""
    folder = LocalStore(tmp_path / "p") if where == "local" else open_store(f"memory://{tmp_path}/p")
    with Cache(**roots) as cache:
        for number in (1, 2):
            sink = io.BytesIO()
            table = pa.table({"x": [float(number)] * 4, "y": [number] * 4})
            pq.write_table(table, sink, write_statistics=where == "memory", compression="none", use_dictionary=False)
            folder.delete("a.parquet")
            folder.write("a.parquet", sink.getvalue())
            dataset = open_dataset(folder, features=["x"], label="y")
            assert cache.load(dataset, dataset.train[0])["label"].tolist() == [number] * 4
            assert open_dataset(folder, features=["x"], label="y") == dataset


def test_a_partition_is_loaded_once(dataset: Dataset, roots: dict[str, Any], loads: list[str]) -> None:
    with Cache(**roots) as cache, Cache(**roots) as other:
        first = cache.load(dataset, dataset.train[0])
        assert cache.load(dataset, dataset.train[0]) is first
        check(other.load(dataset, dataset.train[0]))
        assert cache.holds(dataset, dataset.train[0])
        assert not cache.holds(dataset, dataset.train[1])
    assert loads == ["train-00000"]


@needs_petastorm
def test_epochs_after_the_first_open_no_file(dataset: Dataset, roots: dict[str, Any]) -> None:
    """Counted by the interpreter's own audit events, in a process of its own: a hook can never be taken off again."""
    assert isinstance(dataset.store, LocalStore)
    code = f"""
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.foreign import open_dataset
from cerebro_spark.data.shuffling import row_order
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.feed import Feed
dataset = Dataset.open(LocalStore({str(dataset.store.root)!r}))
with Cache({str(roots["folder"])!r}, memory_folder={str(roots["memory_folder"])!r}, reader="petastorm") as cache:
    cache.load(dataset, dataset.train[0])
    first = [name for name in opened if name.endswith(".parquet")]
    assert first, opened
    opened.clear()
    for epoch in range(3):
        arrays = cache.load(dataset, dataset.train[0])
        for batch in Feed(arrays, row_order(len(arrays["label"]), 0, "t", epoch, "p"), batch_size=32):
            pass
    assert opened == [], opened
print("opened", len(first))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("opened ")


def load_in_child(dataset: Dataset, roots: dict[str, Any], barrier: Any, results: Any) -> None:
    counted = 0
    real = fill

    def count(*args: Any, **options: Any) -> None:
        nonlocal counted
        counted += 1
        real(*args, **options)

    vars(cache_module)["fill"] = count
    barrier.wait()
    with Cache(**roots) as cache:
        arrays = cache.load(dataset, dataset.train[0])
        check(arrays)
        inode = [path.stat().st_ino for path in sorted(Path(roots["memory_folder"]).glob("*/*.npy"))]
        results.put((counted, inode))
        barrier.wait()


@pytest.mark.slow
def test_processes_of_one_host_load_once_and_share_the_pages(dataset: Dataset, roots: dict[str, Any]) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    children = [
        context.Process(target=load_in_child, args=(dataset, roots, barrier, results), daemon=True) for _ in range(3)
    ]
    for child in children:
        child.start()
    seen = [results.get(timeout=600) for _ in children]
    for child in children:
        child.join(300)
        assert child.exitcode == 0
    assert sorted(counted for counted, _ in seen) == [0, 0, 1]
    assert len({tuple(inodes) for _, inodes in seen}) == 1


@pytest.mark.parametrize("budget", [0, 1 << 30])
@pytest.mark.parametrize("harm", ["flip", "truncate", "delete", "header", "entry", "swap"])
def test_damage_is_noticed_and_mended(
    dataset: Dataset, roots: dict[str, Any], loads: list[str], harm: str, budget: int
) -> None:
    neighbour = Cache(**roots, memory_budget=budget)
    neighbour.enter()
    with Cache(**roots, memory_budget=budget) as cache:
        cache.load(dataset, dataset.train[0])
    root = roots["folder"] if budget == 0 else roots["memory_folder"]
    (file,) = root.glob("*/features.npy")
    if harm == "flip":
        with open(file, "r+b") as raw:
            raw.seek(-5, os.SEEK_END)
            raw.write(b"\xff")
    elif harm == "truncate":
        os.truncate(file, file.stat().st_size // 2)
    elif harm == "delete":
        file.unlink()
    elif harm == "header":
        file.write_bytes(b"not a npy file")
    elif harm == "entry":
        (file.parent / "entry.json").write_text("{")
    else:
        np.save(file, np.zeros((ROWS, 16), "float64"))
    with Cache(**roots, memory_budget=budget) as cache:
        check(cache.load(dataset, dataset.train[0]))
    assert loads == ["train-00000"] * 2
    neighbour.close()


@pytest.mark.parametrize("harm", ["evicted", "touched"])
def test_a_cache_that_holds_a_partition_notices_that_its_file_is_gone(
    dataset: Dataset, roots: dict[str, Any], loads: list[str], harm: str
) -> None:
    with Cache(**roots) as cache:
        before = cache.load(dataset, dataset.train[0])
        (file,) = roots["memory_folder"].glob("*/features.npy")
        if harm == "evicted":
            file.unlink()
        else:
            with open(file, "r+b") as raw:
                raw.seek(-5, os.SEEK_END)
                raw.write(b"\xff")
        check(cache.load(dataset, dataset.train[0]))
        if harm == "evicted":
            check(before)
    assert len(loads) == 2


def test_over_the_memory_budget_partitions_go_to_disk(dataset: Dataset, roots: dict[str, Any]) -> None:
    budget = int(size(dataset) * 2.5)
    with Cache(**roots, memory_budget=budget) as cache:
        for partition in dataset.train:
            check(cache.load(dataset, partition))
        assert len(list(roots["memory_folder"].glob("*/entry.json"))) == 2
        assert len(list(roots["folder"].glob("*/entry.json"))) == 2
        assert sum(file.stat().st_size for file in roots["memory_folder"].glob("*/*.npy")) <= budget


def test_what_nobody_holds_makes_room_longest_unused_first(
    dataset: Dataset, roots: dict[str, Any], loads: list[str]
) -> None:
    one, two, three, four = dataset.train
    with Cache(**roots, memory_budget=int(size(dataset) * 2.5)) as cache:
        for partition in (one, two):
            cache.load(dataset, partition)
            cache.release(dataset, partition)
        kept = cache.load(dataset, one)
        cache.load(dataset, three)
        assert len(list(roots["memory_folder"].glob("*/entry.json"))) == 2
        assert not list(roots["folder"].glob("*/entry.json"))
        assert [cache.holds(dataset, partition) for partition in dataset.train] == [True, False, True, False]
        cache.load(dataset, four)
        check(kept)
        assert loads == ["train-00000", "train-00001", "train-00002", "train-00003"]
        cache.release(dataset, four)
        clear(roots)
        assert [cache.holds(dataset, partition) for partition in dataset.train] == [True, False, True, False]


def test_an_eviction_never_breaks_who_still_reads(dataset: Dataset, roots: dict[str, Any]) -> None:
    with Cache(**roots) as cache:
        arrays = cache.load(dataset, dataset.train[0])
        cache.release(dataset, dataset.train[0])
        clear(roots)
        assert not list(roots["memory_folder"].glob("*/*.npy"))
        check(arrays)


def test_who_shares_memory_but_no_disk_waits_too(
    dataset: Dataset, roots: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As containers do that share /dev/shm, and jobs with temporary folders of their own."""
    one, two = Cache(**roots), Cache(tmp_path / "elsewhere", memory_folder=roots["memory_folder"])
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(two.load(dataset, dataset.train[0])))
    real = load.fill

    def fill(source: Dataset, partition: Any, arrays: Any, **options: Any) -> None:
        if partition == source.train[0] and not waiting.ident:
            waiting.start()
            check(two_others.load(source, source.train[1]))
            waiting.join(0.5)
            assert waiting.is_alive(), "it has to wait for who was first"
        real(source, partition, arrays, **options)

    two_others = Cache(tmp_path / "elsewhere", memory_folder=roots["memory_folder"])
    monkeypatch.setattr(cache_module, "fill", fill)
    check(one.load(dataset, dataset.train[0]))
    waiting.join(300)
    check(found[0])
    for cache in (one, two, two_others):
        cache.close()


def test_nobody_counts_while_a_folder_becomes_an_entry(
    dataset: Dataset, roots: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.rename
    renamed = []

    def rename(source: Path, target: Path) -> None:
        with open(target.parent / "root.lock", "ab") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        renamed.append(target)
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with Cache(**roots) as cache:
        check(cache.load(dataset, dataset.train[0]))
    assert len(renamed) == 1


def test_data_sets_with_the_same_partition_ids_do_not_meet(store: LocalStore, roots: dict[str, Any]) -> None:
    with Cache(**roots) as cache:
        for name, rows in (("a", 4), ("b", 4)):
            data = numbered(rows) if name == "a" else {k: v + 100 for k, v in numbered(rows).items()}
            dataset = prepare(data, store=store, features="x", label="y", partitions=1, name=name)
            arrays = cache.load(dataset, dataset.train[0])
            assert arrays["label"].min() == (0 if name == "a" else 100)


def test_from_a_distant_store_files_are_fetched_and_not_kept(dataset: Dataset, roots: dict[str, Any]) -> None:
    distant = Dataset.open(DistantStore(dataset.store.root), dataset.id)  # type: ignore[attr-defined]
    with Cache(**roots) as cache:
        check(cache.load(distant, distant.train[0]))
    assert not list(roots["folder"].rglob("*.parquet"))


def test_a_row_group_without_rows_is_nothing_to_complain_of(tmp_path: Path, roots: dict[str, Any]) -> None:
    table = pa.table({"x": [1.0, 2.0], "y": [0.5, 1.5]})
    (tmp_path / "elsewhere").mkdir()
    with pq.ParquetWriter(tmp_path / "elsewhere" / "a.parquet", table.schema) as writer:
        for part in (table.slice(0, 1), table.slice(0, 0), table.slice(1, 1)):
            writer.write_table(part)
    dataset = open_dataset(str(tmp_path / "elsewhere"), features=["x"], label="y")
    with Cache(**roots, reader="arrow") as cache:
        assert cache.load(dataset, dataset.train[0])["label"].tolist() == [0.5, 1.5]


def test_batches_over_cached_arrays(dataset: Dataset, roots: dict[str, Any]) -> None:
    with Cache(**roots) as cache:
        arrays = cache.load(dataset, dataset.train[0])
        feed = Feed(arrays, row_order(len(arrays["label"]), 0, "t", 1, "p"), batch_size=7)
        seen = [int(v) for batch in feed for v in batch["label"]]
    assert sorted(seen) == sorted(arrays["label"].tolist())
