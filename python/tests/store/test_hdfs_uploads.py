"""Uploads to HDFS whose data nodes do not answer. The real ones are killed in tests/hadoop."""

from __future__ import annotations

import gc
import io
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

import pytest

from cerebro_spark.errors import StoreFull
from cerebro_spark.store import hdfs_patience, hdfs_uploads
from cerebro_spark.store.files import FileStatus
from cerebro_spark.store.hdfs_clients import hdfs_error_kind
from cerebro_spark.store.hdfs_patience import Pace, PatientClient, within
from cerebro_spark.store.hdfs_uploads import upload_new
from cerebro_spark.store.webhdfs import WebHdfs


class Names:
    """A name node: files by their paths. The first `silent` files that are created never take their bytes."""

    def __init__(self, silent: int = 0, error: Exception | None = None) -> None:
        self.files: dict[str, bytes] = {}
        self.silent, self.error = silent, error
        self.released = threading.Event()
        self.created: list[str] = []
        self.closed: list[str] = []
        self.kinds: set[type] = set()
        """What bytes came as."""

    def create(self, path: str, block_size: int) -> BinaryIO:
        del block_size
        self.created.append(path)
        self.files[path] = b""
        return Written(self, path, len(self.created) <= self.silent)

    def delete(self, path: str) -> None:
        self.files.pop(path, None)

    def make_folder(self, path: str) -> None:
        del path

    def rename_new(self, source: str, target: str) -> None:
        if target in self.files:
            raise FileExistsError(target)
        self.files[target] = self.files.pop(source)

    def status(self, path: str) -> FileStatus | None:
        return FileStatus(path, False, len(self.files[path]), 0.0) if path in self.files else None

    list_folder: Any = None
    open: Any = None


class Clock:
    """What uploads take for `time`: nobody waits."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Detour(WebHdfs):
    """Another way to write, to the same name node. It fails with `error`, if there is one."""

    def __init__(self, names: Names, error: Exception | None = None, is_open: bool = True) -> None:
        super().__init__("hdfs://names:8020", {} if is_open else {"dfs.webhdfs.enabled": "false"})
        self._names, self._error = names, error
        self.written: list[str] = []
        self.may_write = threading.Event()
        self.may_write.set()

    def write(self, path: str, source: bytes | memoryview | Path, block_size: int, patience: float) -> None:
        assert isinstance(source, bytes)
        self.written.append(path)
        self.may_write.wait(60)
        if self._error is not None:
            raise self._error
        assert path not in self._names.files
        self._names.files[path] = source


class Written(io.RawIOBase, BinaryIO):
    def __init__(self, names: Names, path: str, silent: bool) -> None:
        self._names, self._path, self._silent = names, path, silent

    def write(self, data: Any) -> int:
        if self._names.error is not None:
            raise self._names.error
        if self._silent:
            self._names.released.wait(60)
        self._names.kinds.add(type(data))
        if self._path in self._names.files:
            self._names.files[self._path] += bytes(data)
        return len(data)

    def close(self) -> None:
        """As the native client's: it never says that it is closed."""
        self._names.closed.append(self._path)


@pytest.mark.parametrize("kind", ["bytes", "memoryview", "numbers", "file"])
def test_the_client_gets_plain_bytes(kind: str, tmp_path: Path) -> None:
    """For anything else it takes eight times as long, and lets no other thread run meanwhile."""
    data = bytes(range(256)) * 4 * 5000  # more than a piece
    (tmp_path / "file").write_bytes(data)
    views: dict[str, memoryview | Path] = {
        "memoryview": memoryview(data),
        "numbers": memoryview(data).cast("i"),
        "file": tmp_path / "file",
    }
    names = Names()
    upload_new(PatientClient(names), views.get(kind, data), "/s/1", "/a")
    assert names.files == {"/a": data}
    assert names.kinds == {bytes}


def test_data_nodes_that_never_answer_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_patience, "_TO_WRITE", 0.2)
    names = Names(silent=1)
    try:
        upload_new(PatientClient(names), b"abc", "/s/1", "/a")
        assert names.files == {"/a": b"abc"}, "no staging file is left"
        assert len(set(names.created)) == len(names.created) > 1, "an attempt that still waits has its own file"
    finally:
        names.released.set()


def test_a_few_bytes_are_not_waited_for_as_long_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def noted(seconds: float, act: Callable[[], Any], nothing: str) -> Any:
        if nothing.startswith("the data nodes"):
            waits.append(seconds)
        return within(seconds, act, nothing)

    monkeypatch.setattr(hdfs_patience, "within", noted)
    upload_new(PatientClient(Names()), b"a turn of a log", "/s/1", "/a")
    assert max(waits) < 5
    for count in (3 << 20, (4 << 20) + 1):  # the second ends with a piece of one byte, which waits behind the first
        waits.clear()
        upload_new(PatientClient(Names()), bytes(count), "/s/1", "/a")
        assert 6 < min(waits) <= max(waits) < 10
    monkeypatch.setattr(hdfs_uploads, "_PATIENCE", hdfs_uploads._PATIENCE[-1:])
    waits.clear()
    upload_new(PatientClient(Names()), bytes(3 << 20), "/s/1", "/a")
    assert set(waits) == {60.0}, "a later attempt has a minute"


def test_a_few_bytes_go_to_others_when_nobody_confirms_them_for_a_second() -> None:
    names = Names(silent=2)
    began = time.monotonic()
    try:
        upload_new(PatientClient(names), b"abc", "/s/1", "/a")
        assert 1.9 < time.monotonic() - began < 3.9, "after one second, and one more"
        assert names.files == {"/a": b"abc"}, "no staging file is left"
        assert len(names.created) == 3
    finally:
        names.released.set()


def test_a_data_node_that_is_only_late_is_waited_for_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_patience, "SILENT", 0.05)
    names = Names(silent=99)
    threading.Timer(1.5, names.released.set).start()
    upload_new(PatientClient(names), b"abc", "/s/1", "/a")
    assert len(names.created) == 6, "no more than six at once"
    assert names.files["/a"] == b"abc"


def test_data_nodes_that_usually_are_fast_are_not_waited_for_a_second() -> None:
    names = Names()
    client = PatientClient(names)
    for number in range(8):
        upload_new(client, b"abc", f"/s/{number}", f"/{number}")
    assert len(names.created) == 8
    names.silent = len(names.created) + 3
    began = time.monotonic()
    try:
        upload_new(client, b"abc", "/s/last", "/last")
        assert 0.9 < time.monotonic() - began < 3.9, "a quarter of a second, one more, and half a second: not four"
        assert len(names.created) == 12
    finally:
        names.released.set()


def test_what_data_nodes_take_that_are_slow_is_what_is_usual() -> None:
    pace = Pace()
    for seconds in [*[0.01] * 32, *[0.2] * 32]:
        pace.note(seconds)
    assert pace.silent == pytest.approx(0.8)
    pace.note(30.0)
    assert pace.silent == pytest.approx(0.8), "one that was late says little"
    for _ in range(32):
        pace.note(5.0)
    assert pace.silent == hdfs_patience.SILENT


def test_what_is_given_up_while_it_is_made_is_deleted_once_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_patience, "SILENT", 0.1)
    names, asked, answered = Names(), threading.Event(), threading.Event()
    create = names.create

    def late(path: str, block_size: int) -> BinaryIO:
        if path.endswith("-0"):
            asked.set()
            answered.wait(60)
        return create(path, block_size)

    deleted: SimpleQueue[str] = SimpleQueue()
    delete = names.delete

    def noted(path: str) -> None:
        delete(path)
        deleted.put(path)

    monkeypatch.setattr(names, "create", late)
    monkeypatch.setattr(names, "delete", noted)
    upload_new(PatientClient(names), b"abc", "/s/1", "/a")
    assert asked.is_set()
    assert deleted.get(timeout=10) == "/s/1-0", "it was given up before it was there"
    answered.set()
    assert deleted.get(timeout=10) == "/s/1-0"
    assert names.files == {"/a": b"abc"}


def test_many_bytes_are_sent_only_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_patience, "SILENT", 0.1)
    names = Names(silent=1)
    threading.Timer(1.0, names.released.set).start()
    upload_new(PatientClient(names), bytes(3 << 20), "/s/1", "/a")
    assert len(names.created) == 1


def test_data_nodes_that_are_all_slow_get_more_time_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_uploads, "_PATIENCE", (0.01, 0.01, 60.0))
    names = Names(silent=3)
    threading.Timer(0.5, names.released.set).start()
    upload_new(PatientClient(names), b"abc", "/s/1", "/a")
    assert names.files == {"/a": b"abc"}
    assert len(names.created) == 3


def test_refusals_that_come_at_once_do_not_use_up_all_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name node may hand out a data node that was just killed many times in a row."""
    monkeypatch.setattr(hdfs_uploads, "time", Clock())
    names = Names()
    refused = OSError("Connection refused (os error 111)")
    create = names.create

    def hand_out(path: str, block_size: int) -> BinaryIO:
        names.error = refused if len(names.created) < 15 else None
        return create(path, block_size)

    monkeypatch.setattr(names, "create", hand_out)
    upload_new(PatientClient(names), b"abc", "/s/1", "/a")
    assert names.files == {"/a": b"abc"}
    assert len(names.created) == 16 > len(hdfs_uploads._PATIENCE)


def test_refusals_that_do_not_end_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(hdfs_uploads, "time", clock)
    names = Names(error=OSError("Connection refused (os error 111)"))
    with pytest.raises(OSError, match="refused"):
        upload_new(PatientClient(names), b"abc", "/s/1", "/a")
    assert 20 <= clock.now < 25
    assert names.files == {}


def test_if_none_answers_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_patience, "_TO_WRITE", 0.01)
    monkeypatch.setattr(hdfs_uploads, "_PATIENCE", (60.0, 60.0))
    monkeypatch.setattr(hdfs_uploads, "_REFUSED_FOR", 0.0)
    names = Names(silent=2)
    try:
        with pytest.raises(OSError, match=r"took no bytes within 0\.01 s"):
            upload_new(PatientClient(names), b"abc", "/s/1", "/a")
        assert names.files == {}
    finally:
        names.released.set()


def test_errors_that_are_final_are_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abc")
    full = RuntimeError('RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "...")')
    names = Names(error=full)
    with pytest.raises(RuntimeError) as raised:
        upload_new(PatientClient(names), tmp_path / "x", "/s/1", "/a")
    assert hdfs_error_kind(raised.value) is StoreFull
    gc.collect()
    assert (names.files, len(names.created)) == ({}, 1)
    assert names.closed == [], "a file is never closed on data nodes that failed, not even when Python frees it"


def test_a_file_that_exists_stays() -> None:
    names = Names()
    names.files["/a"] = b"old"
    with pytest.raises(FileExistsError):
        upload_new(PatientClient(names), b"new", "/s/1", "/a")
    assert names.files == {"/a": b"old"}


def test_where_the_only_data_node_that_is_named_refuses_the_detour_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(hdfs_uploads, "time", clock)
    names = Names(error=OSError("Connection refused (os error 111)"))
    detour = Detour(names)
    upload_new(PatientClient(names, detour), b"abc", "/s/1", "/a")
    assert names.files == {"/a": b"abc"}
    assert (names.created, detour.written) == (["/s/1-0"], ["/s/1-1"])
    assert clock.now < 0.5


@pytest.mark.parametrize("size", [3, 3 << 20])
def test_where_the_only_data_node_that_is_named_hangs_the_detour_is_taken(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdfs_patience, "SILENT", 0.1)
    monkeypatch.setattr(hdfs_patience, "_TO_WRITE", 0.1)
    names = Names(silent=99)
    detour = Detour(names)
    try:
        upload_new(PatientClient(names, detour), bytes(size), "/s/1", "/a")
        assert names.files == {"/a": bytes(size)}
        assert len(detour.written) == 1
    finally:
        names.released.set()


def test_a_detour_that_is_closed_is_not_taken() -> None:
    names = Names(silent=1)
    detour = Detour(names, is_open=False)
    try:
        upload_new(PatientClient(names, detour), b"abc", "/s/1", "/a")
        assert names.files == {"/a": b"abc"}
        assert detour.written == []
    finally:
        names.released.set()


def test_what_a_detour_raises_is_not_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be forbidden, or fail for reasons of its own; the client's error is what is said in the end."""
    monkeypatch.setattr(hdfs_uploads, "time", Clock())
    names = Names(error=OSError("Connection refused (os error 111)"))
    detour = Detour(names, PermissionError("not you"))
    with pytest.raises(OSError, match="Connection refused"):
        upload_new(PatientClient(names, detour), b"abc", "/s/1", "/a")
    assert len(detour.written) > 3
    assert names.files == {}
    names.error = None
    upload_new(PatientClient(names, detour), b"abc", "/s/1", "/a")
    assert names.files == {"/a": b"abc"}


def test_a_detour_that_is_late_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_patience, "SILENT", 0.1)
    names = Names(silent=1)
    detour = Detour(names)
    detour.may_write.clear()
    deleted: SimpleQueue[str] = SimpleQueue()
    delete = names.delete

    def noted(path: str) -> None:
        delete(path)
        deleted.put(path)

    monkeypatch.setattr(names, "delete", noted)
    try:
        upload_new(PatientClient(names, detour), b"abc", "/s/1", "/a")
        assert names.files == {"/a": b"abc"}, "by the third attempt"
        assert {deleted.get(timeout=10), deleted.get(timeout=10)} == {"/s/1-0", "/s/1-1"}
        detour.may_write.set()
        assert deleted.get(timeout=10) == "/s/1-1", "once it was there"
        assert names.files == {"/a": b"abc"}
    finally:
        names.released.set()
