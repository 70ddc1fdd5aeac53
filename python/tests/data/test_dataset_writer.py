"""What killed writers of data sets left goes after a week; nothing else ever does."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_rows import numbered, numbers

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.partitioning.dataset_writer import delete_abandoned, new_token
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import StoreForbidden
from cerebro_spark.store.fsspec import FsspecStore
from cerebro_spark.store.local import LocalStore
from cerebro_spark.store.paths import manifest

DAY = 86_400.0


class DeadlyStore(LocalStore):
    """Kills its process when the last partition is written."""

    def _stage(self, name: str) -> Any:
        if name.endswith("train-00001.parquet"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super()._stage(name)


def prepare_and_die(root: Path, name: str | None) -> None:
    prepare(numbered(10), store=DeadlyStore(root), features="x", label="y", partitions=2, name=name)


def old(store: LocalStore, id: str, age: float) -> str:
    name = f"datasets/{id}/{new_token(time.time() - age)}/train/train-00000.parquet"
    store.write(name, b"left by a crash")
    return name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["d", None])
def test_what_a_killed_prepare_left_goes_when_it_is_old(store: LocalStore, name: str | None) -> None:
    child = multiprocessing.get_context("spawn").Process(target=prepare_and_die, args=(store.root, name), daemon=True)
    child.start()
    child.join(300)
    assert child.exitcode == -signal.SIGKILL
    left = store.list()
    assert [file.rpartition("/")[2] for file in left] == ["train-00000.parquet"]
    dataset = prepare(numbered(10), store=store, features="x", label="y", partitions=2, name="d")
    assert set(left) < set(store.list()), "it might be at work still"
    assert delete_abandoned(store, older_than=-60) == 1
    assert not set(left) & set(store.list())
    assert delete_abandoned(store, older_than=-60) == 0
    assert numbers(Dataset.open(store, dataset.id), "train") == list(range(10))


def test_the_next_prepare_sweeps_what_is_older_than_a_week(store: LocalStore) -> None:
    gone = [old(store, id, age=8 * DAY) for id in ("d", "other")]
    young = old(store, "d", age=6 * DAY)
    prepare(numbered(10), store=store, features="x", label="y", partitions=2, name="d")
    assert not set(gone) & set(store.list())
    assert young in store.list()


def test_a_sweep_that_is_forbidden_harms_no_data_set(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    left = old(store, "other", age=8 * DAY)

    def forbidden(self: LocalStore, name: str) -> None:
        raise StoreForbidden(f"no permission for {name!r}")

    monkeypatch.setattr(LocalStore, "delete", forbidden)
    dataset = prepare(numbered(10), store=store, features="x", label="y", partitions=2)
    assert numbers(dataset, "train") == list(range(10))
    assert left in store.list()


def test_beside_a_manifest_that_cannot_be_read_nothing_goes(store: LocalStore) -> None:
    left = old(store, "d", age=8 * DAY)
    store.write(manifest("d"), b"{")
    assert delete_abandoned(store) == 0
    assert left in store.list()


WRITERS = st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 20), st.booleans()), max_size=6)


@settings(deadline=None, max_examples=drawn(30))
@given(WRITERS, st.sampled_from(["mine", "20261115-120000", "20261315-120000-" + "0" * 32, "x" * 48]))
def test_only_old_writers_without_a_manifest_go(writers: list[tuple[str, float, bool]], foreign: str) -> None:
    store = FsspecStore(f"memory://leftovers/{uuid.uuid4().hex}")
    made = prepare(numbered(4), store=store, features="x", label="y", partitions=1, name="template")
    text = store.read(manifest("template")).decode()
    kept = {*store.list(), f"datasets/a/{foreign}/train/x", "datasets/a/notes.txt"}
    gone: set[str] = set()
    for id, days, finished in writers:
        token = new_token(time.time() - days * DAY)
        name = f"datasets/{id}/{token}/train/train-00000.parquet"
        owns = finished and manifest(id) not in kept
        if owns:
            store.write(manifest(id), text.replace(made.made["token"], token).encode())
            kept.add(manifest(id))
        (kept if owns or days < 7 else gone).add(name)
    for name in sorted((kept | gone) - set(store.list())):
        store.write(name, b"x")
    assert delete_abandoned(store) == len(gone)
    assert set(store.list()) == kept
