"""What a local store has written is on disk: the bytes before the name, the name and its folders before it returns."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro_spark.errors import StoreError
from cerebro_spark.store.local import LocalStore
from cerebro_spark.store.retrying import RetryingStore


class Disk:
    """Keeps what was synced, as a disk does: files by inode, and the names that a folder had when it was synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes: dict[int, bytes] = {}
        self.names: dict[int, dict[str, int]] = {}
        self.fail: list[OSError] = []
        monkeypatch.setattr("cerebro_spark.store.local.os.fsync", self._fsync)

    def _fsync(self, handle: int) -> None:
        status = os.fstat(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if stat.S_ISDIR(status.st_mode):
            if self.fail:
                raise self.fail.pop(0)
            self.names[status.st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self.bytes[status.st_ino] = path.read_bytes()

    def after_a_power_cut(self, root: Path) -> dict[str, bytes]:
        """The blobs that would be found, from the folder above the root on, which was there before."""
        return dict(self._found(os.stat(root.parent).st_ino, Path()))

    def _found(self, folder: int, at: Path) -> Iterator[tuple[str, bytes]]:
        for name, inode in self.names.get(folder, {}).items():
            if inode in self.bytes:
                yield str(at / name), self.bytes[inode]
            yield from self._found(inode, at / name)


@pytest.mark.parametrize("streaming", [False, True], ids=["write", "writer"])
def test_what_was_written_outlives_a_power_cut(
    streaming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    store = LocalStore(tmp_path / "store")
    for number, name in enumerate(["runs/r1/log/0", "runs/r1/log/1", "runs/r2/functions", "top"]):
        data = f"bytes {number}".encode()
        if streaming:
            with store.writer(name) as file:
                file.write(data)
        else:
            store.write(name, data)
        assert disk.after_a_power_cut(store.root)[f"store/{name}"] == data


def test_folders_that_somebody_else_has_made_and_not_put_on_disk_yet_are_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    store = LocalStore(tmp_path / "store")
    store.write("first", b"1")
    (tmp_path / "store/runs/r1/log").mkdir(parents=True)
    store.write("runs/r1/log/0", b"2")
    assert disk.after_a_power_cut(store.root)["store/runs/r1/log/0"] == b"2"


def test_a_name_that_could_not_be_put_on_disk_is_put_there_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is visible already, and found with its own bytes: which says nothing of the disk."""
    disk = Disk(monkeypatch)
    store = LocalStore(tmp_path / "store")
    store.write("before", b"0")
    disk.fail = [OSError(errno.EIO, "a bad sector")]
    with pytest.raises(StoreError, match="bad sector"):
        store.write("a/b", b"1")
    assert "store/a/b" not in disk.after_a_power_cut(store.root)
    store.write("a/b", b"1")
    assert disk.after_a_power_cut(store.root)["store/a/b"] == b"1"
    disk.fail = [OSError(errno.EIO, "a bad sector")]
    RetryingStore(store, seconds=60.0, sleep=lambda seconds: None).write("c/d", b"2")
    assert disk.after_a_power_cut(store.root)["store/c/d"] == b"2"


def test_a_file_system_that_cannot_sync_folders_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    store = LocalStore(tmp_path / "store")
    store.write("before", b"0")
    disk.fail = [OSError(errno.EINVAL, "fsync on a folder")] * 9
    store.write("a", b"1")
    assert store.read("a") == b"1"
