"""One name, several writers: whoever writes the manifest first has it, and nobody harms anybody else."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from numbered_rows import numbered, numbers

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import AlreadyInStore, StoreError
from cerebro_spark.store.local import LocalStore


class MeetingStore(LocalStore):
    """Writers meet once all have seen that the name is free, so that they write at the same time."""

    def __init__(self, root: Path, parties: int) -> None:
        super().__init__(root)
        self.meeting = threading.Barrier(parties, timeout=300)

    def exists(self, name: str) -> bool:
        found = super().exists(name)
        self.meeting.wait()
        return found


@pytest.mark.parametrize("attempt", range(3))
def test_of_two_writers_at_once_one_wins_and_the_other_harms_nothing(tmp_path: Path, attempt: int) -> None:
    store = MeetingStore(tmp_path, 2)

    def write(rows: int) -> Dataset | AlreadyInStore:
        try:
            return prepare(numbered(rows), store=store, features="x", label="y", partitions=3, name="d")
        except AlreadyInStore as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        made, refused = sorted(pool.map(write, [300, 500]), key=lambda one: isinstance(one, AlreadyInStore))
    assert isinstance(made, Dataset)
    assert isinstance(refused, AlreadyInStore)
    assert "has a data set 'd' already" in str(refused)
    assert Dataset.open(LocalStore(tmp_path), "d").train == made.train
    assert numbers(made, "train") == list(range(made.rows))
    kept = [name for name in store.list() if name.endswith(".parquet")]
    assert kept == sorted(file for partition in made.partitions for file in partition.files)


def test_the_leftovers_of_a_killed_writer_are_no_part_of_the_data_set(store: LocalStore) -> None:
    store.write("datasets/d/0123/train/train-00007.parquet", b"left by a crash")
    dataset = prepare(numbered(10), store=store, features="x", label="y", partitions=2, name="d")
    assert numbers(dataset, "train") == list(range(10))
    assert len(Dataset.open(store, "d").partitions) == 2


def test_a_taken_name_is_refused(store: LocalStore) -> None:
    dataset = prepare(numbered(10), store=store, features="x", label="y", partitions=2, name="d")
    before = store.list()
    with pytest.raises(AlreadyInStore, match="'d'"):
        prepare(numbered(10), store=store, features="x", label="y", partitions=2, name="d")
    assert store.list() == before
    assert Dataset.open(store, "d") == dataset


def test_a_manifest_that_was_written_after_all_keeps_its_data(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the last write was lost on its way: the data set is visible, so its files must stay."""
    real = LocalStore.write

    def lost(self: LocalStore, name: str, data: bytes) -> None:
        real(self, name, data)
        if name.endswith("manifest.json"):
            raise StoreError("connection reset")

    monkeypatch.setattr(LocalStore, "write", lost)
    with pytest.raises(StoreError, match="connection reset"):
        prepare(numbered(10), store=store, features="x", label="y", partitions=2, name="d")
    assert numbers(Dataset.open(store, "d"), "train") == list(range(10))


def test_two_data_sets_of_one_name_are_told_apart(store: LocalStore) -> None:
    made: list[Any] = []
    for _ in range(2):
        made.append(prepare(numbered(10), store=store, features="x", label="y", partitions=1, name="d"))
        store.delete("datasets/d")
    assert made[0].made["token"] != made[1].made["token"]
    assert made[0].train[0].files != made[1].train[0].files
