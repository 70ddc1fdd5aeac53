"""The checkpoint file by itself: what it keeps, what it refuses, and what it costs. No framework is needed."""

from __future__ import annotations

import io
import json
import os
import struct
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from cerebro_spark.errors import CheckpointError
from cerebro_spark.trainer.checkpoints.arrays import StateArray, read_array, wrap_numpy
from cerebro_spark.trainer.checkpoints.reading import open_checkpoint
from cerebro_spark.trainer.checkpoints.tree import flatten, unflatten
from cerebro_spark.trainer.checkpoints.writing import write_checkpoint
from cerebro_spark.types import DigestName

PLAIN = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8)
ARRAYS = st.sampled_from(["float32", "float64", "float16", "int64", "uint8", "bool", "uint32"]).flatmap(
    lambda dtype: st.lists(st.integers(0, 3), max_size=3).map(lambda shape: np.ones(shape, dtype=dtype))
)
TREES = st.recursive(
    PLAIN | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def distinct_names(tree: object) -> bool:
    names: list[str] = []

    def note(name: str, leaf: object) -> StateArray | None:
        names.append(name)
        return wrap_numpy(name, leaf)

    flatten({"state": tree}, note)
    return len(set(names)) == len(names)


@given(TREES.filter(distinct_names))
def test_any_tree_of_plain_values_and_storedcomes_back(tree: object) -> None:
    json_, stored = flatten({"state": tree}, wrap_numpy)
    file = io.BytesIO()
    written = write_checkpoint(file, stored, json_)
    assert written.bytes == len(file.getvalue())
    with open_checkpoint(file.getvalue(), digest=written.digest) as reader:
        assert same(unflatten(reader.meta, lambda name: read_array(reader, name)), {"state": tree})


def saved(path: Path) -> Path:
    arrays = {"model/w": np.arange(600_000, dtype="float32"), "rng/keys": np.arange(9)}
    json_, stored = flatten(arrays, wrap_numpy)
    write_checkpoint(path, stored, json_)
    return path


def test_the_safetensors_library_reads_it(tmp_path: Path) -> None:
    loaded = load_file(saved(tmp_path / "c"))
    assert loaded["model/w"].tolist() == list(range(600_000))


def test_bfloat16_comes_back(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([1.5, -2.25, 3e38], dtype=ml_dtypes.bfloat16)
    _, stored = flatten({"w": values}, wrap_numpy)
    write_checkpoint(tmp_path / "c", stored, {})
    with open_checkpoint(tmp_path / "c") as reader:
        assert reader.spec("w") == ("BF16", (3,))
        assert read_array(reader, "w").tobytes() == values.tobytes()


def test_a_leaf_that_is_neither_is_refused_by_path() -> None:
    with pytest.raises(CheckpointError, match=r"optimizer/state/0/fn.*function"):
        flatten({"optimizer": {"state": [{"fn": same}]}}, wrap_numpy)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"), open_checkpoint(tmp_path / "nowhere"):
        pass


@pytest.mark.parametrize("keep", [0, 4, 8, 40, 1_000, -1])
def test_a_truncated_file_is_refused_by_name(tmp_path: Path, keep: int) -> None:
    whole = saved(tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:keep])
    with pytest.raises(CheckpointError, match="cut"), open_checkpoint(tmp_path / "cut"):
        pass


def test_trailing_bytes_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "long")
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(CheckpointError, match="long has"), open_checkpoint(path):
        pass


@pytest.mark.parametrize("name", get_args(DigestName))
def test_a_changed_byte_shows_in_the_digest(tmp_path: Path, name: DigestName) -> None:
    path = tmp_path / "c"
    json_, stored = flatten({"model/w": np.arange(600_000, dtype="float32")}, wrap_numpy)
    digest = write_checkpoint(path, stored, json_, name).digest
    with open_checkpoint(path, digest=digest):
        pass
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged"), open_checkpoint(path, digest=digest):
        pass


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_byte_of_a_checkpoint_can_change_unnoticed(place: int, change: int) -> None:
    """Of the generators too, which the digest of what was learnt leaves out."""
    file = io.BytesIO()
    stored = [*flatten({"model": {"w": np.arange(5.0)}, "rng": {"keys": np.arange(9)}}, wrap_numpy)[1]]
    meta = {
        "rng": {"keys": {"$array": "rng/keys"}, "position": 3},
        "trial": "t0",
        "versions": {"numpy": "1"},
        "lr": 0.5,
    }
    written = write_checkpoint(file, stored, meta)
    data = bytearray(file.getvalue())
    data[place % len(data)] ^= change
    try:
        with open_checkpoint(bytes(data), digest=written.digest) as reader:
            found = [reader.meta, *(bytes(reader.read(array.name)) for array in stored)]
    except CheckpointError:
        return
    # White space in the header, say: what is read is the same.
    assert found == [meta, *(bytes(array.data()) for array in stored)]


def test_logs_of_all_versions_have_the_digests_of_the_same_bytes() -> None:
    json_, stored = flatten({"model": {"w": np.arange(3.0), "b": np.zeros(2, "int8")}, "lr": 0.5}, wrap_numpy)
    digests = {name: write_checkpoint(io.BytesIO(), stored, json_, name).digest for name in get_args(DigestName)}
    assert digests == {"sha256": "2c2f2f9d0627257aa2b78959126f660c", "xxh3": "xxh3:215dcde128917198b74e11693c661fed"}


def test_a_digest_by_an_algorithm_of_a_later_version_is_refused_by_its_name(tmp_path: Path) -> None:
    path = saved(tmp_path / "c")
    with pytest.raises(CheckpointError, match="by 'abc1', but this version knows sha256, xxh3"):
        open_checkpoint(path, digest="abc1:0123").__enter__()


def test_the_digest_counts_what_was_learnt_and_no_more() -> None:
    meta = {"lr": 0.1, "counters": {"units": 3}, "trial": "t1", "versions": {"numpy": "1"}, "rng": {"position": 1}}

    def digest(**changed: object) -> str:
        return write_checkpoint(io.BytesIO(), [], {**meta, **changed}).digest

    assert digest() == digest(trial="t2", versions={}, rng=None)
    assert len({digest(), digest(lr=0.2), digest(counters={"units": 4})}) == 3


def test_a_changed_number_shows_in_the_digest(tmp_path: Path) -> None:
    path = tmp_path / "c"
    digest = write_checkpoint(path, [], {"lr": 0.125}).digest
    path.write_bytes(path.read_bytes().replace(b"0.125", b"0.225"))
    with pytest.raises(CheckpointError, match="damaged"), open_checkpoint(path, digest=digest):
        pass


def foreign_files() -> dict[str, bytes]:
    def framed(header: object) -> bytes:
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text

    metadata = {"format": "cerebro-spark checkpoint", "version": "1", "state": "{}"}
    return {
        "empty": b"",
        "pickle": b"\x80\x04\x95" + bytes(100),
        "zip": b"PK\x03\x04" + bytes(100),
        "text": b"hello, world, this is text",
        "list": framed([1, 2]),
        "no metadata": framed({}),
        "other format": framed({"__metadata__": {"format": "pt"}}),
        "version 2": framed({"__metadata__": {**metadata, "version": "2"}}),
        "no state": framed({"__metadata__": {**metadata, "state": "{"}}),
        "bad dtype": framed({"__metadata__": metadata, "w": {"dtype": "X", "shape": [], "data_offsets": [0, 0]}}),
        "bad offsets": framed({"__metadata__": metadata, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}),
    }


@pytest.mark.parametrize("kind", foreign_files())
def test_foreign_files_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "given.safetensors"
    path.write_bytes(foreign_files()[kind])
    with pytest.raises(CheckpointError, match="given"), open_checkpoint(path):
        pass


def test_a_safetensors_file_of_somebody_else_is_refused(tmp_path: Path) -> None:
    save_file({"w": np.zeros(3)}, tmp_path / "theirs")
    with pytest.raises(CheckpointError, match=r"theirs.*something else wrote"), open_checkpoint(tmp_path / "theirs"):
        pass


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> memoryview:
        raise RuntimeError("gone")

    stored = [StateArray("a", "U8", (4,), lambda: memoryview(b"abcd")), StateArray("b", "U8", (4,), fails)]
    with pytest.raises(RuntimeError, match="gone"):
        write_checkpoint(tmp_path / "c", stored, {})
    assert os.listdir(tmp_path) == []


def test_two_storedof_one_name_are_refused() -> None:
    stored = [StateArray("a", "U8", (0,), lambda: memoryview(b""))] * 2
    with pytest.raises(CheckpointError, match="'a'"):
        write_checkpoint(io.BytesIO(), stored, {})
