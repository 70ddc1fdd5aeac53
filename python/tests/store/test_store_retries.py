"""A request that was carried out, and whose answer was lost, is sent again by the client or the kernel: no error."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cerebro_spark.errors import AlreadyInStore, NotFoundInStore
from cerebro_spark.store.base import Store
from cerebro_spark.store.fsspec import FsspecStore
from cerebro_spark.store.local import LocalStore


def streamed(store: Store, name: str, data: bytes) -> None:
    with store.writer(name) as file:
        file.write(data)


WAYS: list[Callable[[Store, str, bytes], None]] = [lambda store, name, data: store.write(name, data), streamed]


@pytest.mark.parametrize("write", WAYS, ids=["write", "writer"])
def test_a_link_that_a_network_file_system_made_twice(
    write: Callable[[Store, str, bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def linked_twice(source: Any, target: Any) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr("cerebro_spark.store.local.os.link", linked_twice)
    store = LocalStore(tmp_path)
    write(store, "runs/a", b"mine")
    assert store.read("runs/a") == b"mine"
    assert list((tmp_path / ".staging").iterdir()) == [], "nothing is left"
    with pytest.raises(AlreadyInStore):
        write(store, "runs/a", b"other")


@pytest.mark.parametrize("write", WAYS, ids=["write", "writer"])
def test_a_removal_that_a_network_file_system_made_twice(
    write: Callable[[Store, str, bytes], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The staging name is gone when the second request comes: the blob is there all the same."""
    unlink = Path.unlink

    def unlinked_twice(self: Path, missing_ok: bool = False) -> None:
        unlink(self, missing_ok)
        unlink(self, missing_ok)

    monkeypatch.setattr(Path, "unlink", unlinked_twice)
    store = LocalStore(tmp_path)
    write(store, "a", b"mine")
    assert store.read("a") == b"mine"
    store.delete("a")
    assert store.list() == []


def test_a_staged_file_that_was_swept_is_a_store_error(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(NotFoundInStore), store.writer("a") as file:  # noqa: PT012 (the end of the block raises)
        file.write(b"mine")
        assert store.sweep(older_than=-60) == 1
    assert store.list() == []


@pytest.mark.parametrize("write", WAYS, ids=["write", "writer"])
@pytest.mark.parametrize("error", [FileNotFoundError, FileExistsError], ids=["gone", "exists"])
def test_a_move_whose_answer_was_lost(
    error: type[OSError],
    write: Callable[[Store, str, bytes], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sent again, it finds nothing to move, or the name taken."""
    store = FsspecStore((tmp_path / "files").as_uri())
    store.connect()
    move = store._fs.mv

    def moved_twice(source: str, target: str) -> None:
        move(source, target)
        raise error(errno.ENOENT, "as the second request finds it", source)

    monkeypatch.setattr(store._fs, "mv", moved_twice)
    write(store, "a", b"mine")
    assert store.read("a") == b"mine"
    with pytest.raises(AlreadyInStore):
        write(store, "a", b"other")


def test_a_move_that_never_happened_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FsspecStore((tmp_path / "files").as_uri())
    store.connect()

    def lost(source: str, target: str) -> None:
        store._fs.rm_file(source)
        raise FileNotFoundError(errno.ENOENT, "gone", source)

    monkeypatch.setattr(store._fs, "mv", lost)
    with pytest.raises(NotFoundInStore):
        store.write("a", b"mine")
    assert not store.exists("a")


@pytest.mark.jvm
@pytest.mark.hadoop
@pytest.mark.parametrize("write", WAYS, ids=["write", "writer"])
def test_a_rename_on_hdfs_whose_answer_was_lost(
    write: Callable[[Store, str, bytes], None], hadoop_cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cerebro_spark.store.hdfs import HdfsStore

    store = HdfsStore(
        f"{hadoop_cluster.url}/renamed-twice-{os.getpid()}-{WAYS.index(write)}", options=hadoop_cluster.settings
    )
    rename = store._client.rename_new

    def renamed_twice(source: str, target: str) -> None:
        rename(source, target)
        rename(source, target)

    monkeypatch.setattr(store._client, "rename_new", renamed_twice)
    write(store, "a", b"mine")
    assert store.read("a") == b"mine"
    with pytest.raises(AlreadyInStore):
        write(store, "a", b"other")
