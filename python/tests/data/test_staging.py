"""Staged rows: what cannot be read back whole is an error, never memory that nobody wrote."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import pytest
from numbered_rows import numbered
from test_prepare_local import encoded

from cerebro_spark.data.input.inputs import parse_inputs
from cerebro_spark.data.partitioning.assembling import AssemblePartition
from cerebro_spark.data.partitioning.planning import Piece
from cerebro_spark.data.partitioning.staging import StageSplit
from cerebro_spark.errors import StoreError
from cerebro_spark.store.local import LocalStore


class ReadOnly:
    """A file that has `read` and `seek` but no `readinto`, as some clients' files are."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)
        self.read, self.seek = self._file.read, self._file.seek


class ShortStore(LocalStore):
    """Loses the last bytes of every blob it reads."""

    lost = 0
    plain = False

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        data = self.read(name)
        data = data[: len(data) - self.lost]
        file: Any = ReadOnly(data) if self.plain else io.BytesIO(data)
        yield file


@pytest.mark.parametrize("plain", [False, True], ids=["readinto", "read"])
@pytest.mark.parametrize("kind", ["numbers", "images"])
def test_a_short_staged_blob_is_an_error(store: LocalStore, kind: str, plain: bool) -> None:
    short = ShortStore(store.root)
    short.plain = plain
    data: Any = numbered(50) if kind == "numbers" else {"x": [encoded("png", n) for n in range(50)], "y": range(50)}
    if kind == "images":
        import pyarrow as pa

        data = {"x": pa.array(data["x"], pa.binary()), "y": numbered(50)["y"]}
    stage = StageSplit(parse_inputs("x", "y"), None, short, "staged", seed=1)
    (chunk,) = stage(0, [data]).chunks
    assemble = AssemblePartition(short, short, stage(0, [data]).columns, seed=1)
    assert assemble("whole.parquet", [Piece(chunk, 0, 50)]).rows == 50
    short.lost = 3
    with pytest.raises(StoreError, match=r"staged/split-00000-\w+.* ended 3 bytes early.*prepare the data again"):
        assemble("short.parquet", [Piece(chunk, 0, 50)])
    assert not store.exists("short.parquet")


def test_an_assembling_task_that_runs_again_finds_its_own_work_done(store: LocalStore) -> None:
    """Its first attempt wrote the file and was lost before it could say so."""
    stage = StageSplit(parse_inputs("x", "y"), None, store, "staged", seed=1)
    report = stage(0, [numbered(50)])
    (chunk,) = report.chunks
    assemble = AssemblePartition(store, store, report.columns, seed=1)
    pieces = [Piece(chunk, 10, 20), Piece(chunk, 40, 5)]
    first = assemble("train/a.parquet", pieces)
    assert assemble("train/a.parquet", pieces) == first
    assert first.rows == 25


def test_two_attempts_of_a_staging_task_do_not_meet(store: LocalStore) -> None:
    stage = StageSplit(parse_inputs("x", "y"), None, store, "staged", seed=1)
    blobs = [stage(0, [numbered(50)]).chunks[0].blob for _ in range(2)]
    assert store.list("staged") == sorted(blobs)
    assert store.read(blobs[0]) == store.read(blobs[1])
