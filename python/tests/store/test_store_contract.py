"""The contract of a store, over every store there is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cerebro_spark.errors import AlreadyInStore, ConfigurationError, NotFoundInStore, StoreError
from cerebro_spark.store.base import Store

NAMES = [
    "a",
    "runs/r1/log/00000001.jsonl",
    "with space/and  two .bin",
    "Größe/日本語/мир.txt",
    "emoji 🙂.bin",
    "e\u0301 and \u00e9",
    "percent %41 %2F/100%",
    "hash#tag/plus+sign/eq=1/amp&.x",
    "quote'double\"back`tick",
    "glob*/question?/[abc]{d,e}",
    "dots.../.hidden/..x",
    "tilde~/comma,/semi;/dollar$HOME",
    "~",
]
BAD_NAMES = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "a/../b",
    "./a",
    "a\0b",
    "a\nb",
    ".staging/a",
    ".staging",
    "\ud800",
]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read(store: Store, name: str) -> None:
    store.write(name, b"hello")
    assert store.read(name) == b"hello"
    assert store.exists(name)
    assert store.size(name) == 5
    assert store.list() == [name]
    store.delete(name)
    assert not store.exists(name)
    assert store.list() == []


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_refused(store: Store, name: str, tmp_path: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.write(name, b""),
        lambda: store.read(name),
        lambda: store.size(name),
        lambda: store.exists(name),
        lambda: store.delete(name),
        lambda: store.fetch(name, tmp_path / "x"),
        lambda: store.local_path(name),
        lambda: store.reader(name).__enter__(),
        lambda: store.writer(name).__enter__(),
    ]
    for call in calls:
        with pytest.raises(ConfigurationError, match="cannot name a blob"):
            call()
    assert store.list() == []


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000], ids=["empty", "one", "1.2MB"])
def test_sizes(store: Store, data: bytes) -> None:
    store.write("whole", data)
    store.write("view", memoryview(data))
    with store.writer("streamed") as file:
        for start in range(0, len(data), 100_000):
            file.write(data[start : start + 100_000])
            assert file.tell() == min(start + 100_000, len(data))
    for name in ("whole", "view", "streamed"):
        assert store.read(name) == data
        assert store.size(name) == len(data)


def test_a_blob_is_never_changed(store: Store) -> None:
    store.write("a/b", b"first")
    with pytest.raises(AlreadyInStore, match="'a/b' is already in the store"):
        store.write("a/b", b"second")
    with pytest.raises(AlreadyInStore), store.writer("a/b") as file:
        file.write(b"third")
    assert store.read("a/b") == b"first"
    assert store.list() == ["a/b"]


def test_a_name_taken_while_the_block_runs_is_refused_at_its_end(store: Store) -> None:
    with pytest.raises(AlreadyInStore), store.writer("a") as file:  # noqa: PT012 (the end of the block raises)
        file.write(b"late")
        store.write("a", b"early")
    assert store.read("a") == b"early"
    assert store.list() == ["a"]


@pytest.mark.parametrize("data", [b"", b"hello", b"z" * 2_500_000], ids=["empty", "short", "long"])
def test_writing_what_is_there_is_no_error(store: Store, data: bytes) -> None:
    """A request that is sent again, because its answer was lost, finds its own bytes."""
    store.write("a/b", data)
    store.write("a/b", memoryview(data))
    for other in (data + b"x", data[:-1] + b"y"):
        with pytest.raises(AlreadyInStore):
            store.write("a/b", other)
    assert store.read("a/b") == data
    assert store.list() == ["a/b"]


def test_a_stream_that_finds_its_own_bytes_at_its_end_is_written(store: Store) -> None:
    with store.writer("a") as file:
        file.write(b"mine")
        store.write("a", b"mine")
    assert store.read("a") == b"mine"
    assert store.list() == ["a"]


def test_a_deleted_name_is_free_again(store: Store) -> None:
    store.write("a", b"1")
    store.delete("a")
    store.write("a", b"2")
    assert store.read("a") == b"2"


class OwnError(Exception):
    pass


@pytest.mark.parametrize(
    "error", [OwnError("mine"), FileNotFoundError("mine"), OSError(28, "mine"), KeyboardInterrupt()]
)
def test_the_callers_error_comes_out_unchanged_and_nothing_is_left(store: Store, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, store.writer("a/b") as file:  # noqa: PT012 (what the block raises)
        file.write(b"half")
        raise error
    assert caught.value is error
    assert store.list() == []
    assert not store.exists("a")
    assert store.sweep(older_than=-60) == 0
    store.write("a/b", b"whole")
    with pytest.raises(type(error)) as caught, store.reader("a/b") as file:
        raise error
    assert caught.value is error


def test_a_block_sees_no_name_before_its_end(store: Store) -> None:
    with store.writer("a/b") as file:
        file.write(b"x" * 300_000)
        file.flush()
        assert not store.exists("a/b")
        assert store.list() == []
        with pytest.raises(NotFoundInStore):
            store.read("a/b")
    assert store.size("a/b") == 300_000


def test_a_file_closed_inside_the_block_is_committed_whole(store: Store) -> None:
    with store.writer("a") as file:
        file.write(b"all of it")
        file.close()
        with pytest.raises(ValueError, match="closed"):
            file.write(b"more")
    assert store.read("a") == b"all of it"


def test_missing_names(store: Store, tmp_path: Path) -> None:
    store.write("folder/blob", b"x")
    for name in ("nothing", "folder/other", "folder", "folder/blob/under"):
        with pytest.raises(NotFoundInStore) as caught:
            store.read(name)
        assert repr(name) in str(caught.value)
        assert store.url in str(caught.value)
        with pytest.raises(NotFoundInStore):
            store.size(name)
        with pytest.raises(NotFoundInStore), store.reader(name) as file:
            file.read()
    for name in ("nothing", "folder/blob/under"):
        with pytest.raises(NotFoundInStore):
            store.fetch(name, tmp_path / "copy")
        assert not store.exists(name)
        assert store.list(name) == []
        store.delete(name)
    assert list(tmp_path.glob("*copy*")) == []
    assert store.list() == ["folder/blob"]


def test_list_is_deep_sorted_and_exact(store: Store) -> None:
    assert store.list() == []
    for name in ("b/2", "a/x/deep", "b/10", "bb/1", "b.txt", "a/y"):
        store.write(name, b"")
    assert store.list() == ["a/x/deep", "a/y", "b.txt", "b/10", "b/2", "bb/1"]
    assert store.list("b") == ["b/10", "b/2"]
    assert store.list("a/x") == ["a/x/deep"]
    assert store.list("a/y") == []
    assert store.exists("b")
    assert not store.exists("b/1")


def test_delete_takes_a_folder_and_nothing_else(store: Store) -> None:
    for name in ("b/2", "b/x/10", "bb/1", "b.txt", "b*/3", "c/b/1"):
        store.write(name, b"")
    store.delete("b")
    assert store.list() == ["b*/3", "b.txt", "bb/1", "c/b/1"]
    assert not store.exists("b")
    store.delete("b*")
    assert store.list() == ["b.txt", "bb/1", "c/b/1"]
    store.delete("c")
    store.write("c", b"a blob where a folder was")
    assert store.read("c") == b"a blob where a folder was"


def test_readers_seek(store: Store) -> None:
    data = bytes(range(256)) * 1000
    store.write("a", data)
    with store.reader("a") as file:
        assert file.seekable()
        assert file.read(10) == data[:10]
        assert file.seek(-10, 2) == len(data) - 10
        assert file.read() == data[-10:]
        assert file.seek(100_000) == 100_000
        assert file.read(7) == data[100_000:100_007]
        assert file.tell() == 100_007
        assert file.seek(1, 1) == 100_008
        assert file.read(1) == data[100_008:100_009]
    assert file.closed


def test_parquet_goes_through_the_files(store: Store) -> None:
    table = pa.table({"x": list(range(50_000)), "name": [f"n{i}" for i in range(50_000)]})
    with store.writer("t.parquet") as sink:
        pq.write_table(table, sink)
    with store.reader("t.parquet") as source:
        assert pq.read_table(source).equals(table)


def test_fetch_copies_blobs_and_folders(store: Store, tmp_path: Path) -> None:
    store.write("d/one", b"1")
    store.write("d/sub folder/zwei ü", b"22")
    store.write("dd", b"no")
    assert store.fetch("d/one", tmp_path / "new/blob") == tmp_path / "new/blob"
    assert (tmp_path / "new/blob").read_bytes() == b"1"
    folder = store.fetch("d", tmp_path / "copy")
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == {"one": b"1", "sub folder/zwei ü": b"22"}
    for target in (tmp_path / "copy", tmp_path / "new/blob"):
        for name in ("d", "dd"):
            with pytest.raises(AlreadyInStore, match=r"fetch 'd+' to a path that does not"):
                store.fetch(name, target)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_one_of_several_fetchers_makes_the_copy(store: Store, tmp_path: Path) -> None:
    store.write("d/a", b"x" * 100_000)
    target = tmp_path / "copy"
    assert sorted(at_once(4, lambda _: store.fetch("d", target))) == ["AlreadyInStore"] * 3 + ["done"]
    assert (target / "a").stat().st_size == 100_000


@pytest.mark.parametrize("streaming", [False, True], ids=["write", "writer"])
def test_one_of_several_threads_wins(exclusive_store: Store, streaming: bool) -> None:
    store = exclusive_store

    def write(number: int) -> None:
        if not streaming:
            store.write("runs/r1/contested", bytes([number]) * 10_000)
            return
        with store.writer("runs/r1/contested") as file:
            file.write(bytes([number]) * 10_000)

    outcomes = at_once(8, write)
    assert sorted(outcomes) == ["AlreadyInStore"] * 7 + ["done"]
    assert store.read("runs/r1/contested") == bytes([outcomes.index("done")]) * 10_000
    assert store.list() == ["runs/r1/contested"]


@pytest.mark.slow
def test_readers_never_see_half(store: Store) -> None:
    data = b"y" * 2_000_000
    gone = threading.Event()

    def watch() -> int:
        while not gone.is_set():
            try:
                return len(store.read("slow"))
            except NotFoundInStore:
                continue
        return -1

    with ThreadPoolExecutor(2) as pool:
        watchers = [pool.submit(watch) for _ in range(2)]
        try:
            with store.writer("slow") as file:
                for start in range(0, len(data), 100_000):
                    file.write(data[start : start + 100_000])
            assert [watcher.result(300) for watcher in watchers] == [len(data)] * 2
        finally:
            gone.set()


def test_threads_read_one_blob_side_by_side(store: Store) -> None:
    data = bytes(range(256)) * 4000
    store.write("shared", data)

    def read(number: int) -> None:
        with store.reader("shared") as file:
            file.seek(number)
            assert file.read() == data[number:]
        assert store.read("shared") == data

    assert at_once(8, read) == ["done"] * 8


def test_several_delete_at_once(store: Store) -> None:
    for _ in range(8):
        for number in range(3):
            store.write(f"d/{number}", b"")
        assert at_once(4, lambda _: store.delete("d")) == ["done"] * 4
        assert store.list() == []


def test_writing_beside_deletes_never_fails(store: Store) -> None:
    """The folder of a new blob may be deleted at any moment of its writing."""
    turns = 30
    begun = threading.Semaphore(0)

    def delete() -> None:
        for _ in range(turns):
            assert begun.acquire(timeout=300)
            store.delete("d/e")

    with ThreadPoolExecutor(1) as pool:
        deleter = pool.submit(delete)
        try:
            for number in range(turns):
                begun.release()
                store.write(f"d/e/{number}", b"x")
        finally:
            begun.release(turns)
        deleter.result(300)
    assert all(store.read(name) == b"x" for name in store.list("d"))
    store.delete("d")
    assert store.list() == []


def at_once(count: int, act: Callable[[int], object]) -> list[str]:
    """Run `act(0)` ... `act(count - 1)` in threads that begin together; "done" or the error's name of each."""
    ready = threading.Barrier(count, timeout=300)

    def run(number: int) -> str:
        ready.wait()
        try:
            act(number)
        except StoreError as error:
            return type(error).__name__
        return "done"

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
