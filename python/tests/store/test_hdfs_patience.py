"""Calls to HDFS end, also if a node answers no more. The real ones are stopped in tests/hadoop."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.store import hdfs_patience
from cerebro_spark.store.files import FileStatus
from cerebro_spark.store.hdfs_patience import PatientClient, within


class OneFile:
    """A client whose only file has these bytes. Once `frozen`, it answers only when it is `released`."""

    def __init__(self, data: bytes = b"", files: int = 0) -> None:
        self.data, self.files = data, files
        self.frozen, self.released = False, threading.Event()
        self.reads: list[int] = []

    def wait(self) -> None:
        if self.frozen:
            self.released.wait(60)

    def open(self, path: str) -> BinaryIO:
        del path
        return cast(BinaryIO, Opened(self))

    def status(self, path: str) -> FileStatus | None:
        self.wait()
        if path == "/forbidden":
            raise PermissionError(path)
        return FileStatus(path, False, len(self.data), 0.0)

    def list_folder(self, folder: str) -> Iterator[FileStatus]:
        for number in range(self.files):
            yield FileStatus(f"{folder}/{number}", False, 1, 0.0)

    create: Any = None
    make_folder: Any = None
    rename_new: Any = None
    delete: Any = None


class Opened(io.BytesIO):
    def __init__(self, client: OneFile) -> None:
        super().__init__(client.data)
        self._client = client

    def read(self, count: int | None = -1) -> bytes:
        assert count is not None
        assert count >= 0, "all at once may take longer than a call may"
        self._client.wait()
        self._client.reads.append(count)
        return super().read(count)


@given(st.binary(max_size=40), st.lists(st.tuples(st.integers(0, 45), st.none() | st.integers(-1, 45)), max_size=6))
def test_what_is_read_is_that_of_a_plain_file(data: bytes, reads: list[tuple[int, int | None]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdfs_patience, "PIECE", 7)
        client = OneFile(data)
        file, plain = PatientClient(client).open("/a"), io.BytesIO(data)
        for place, count in reads:
            assert file.seek(place) == plain.seek(place)
            assert file.read(count) == plain.read(count)  # type: ignore[arg-type]
            assert file.tell() == plain.tell()
        assert all(count <= 7 for count in client.reads)


def test_data_nodes_that_send_nothing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_patience, "_TO_READ", 0.01)
    client = OneFile(b"abc")
    file = PatientClient(client).open("/a")
    client.frozen = True
    try:
        with pytest.raises(TimeoutError, match=r"the data nodes sent no bytes within 0\.01 s"):
            file.read()
    finally:
        client.released.set()


def test_a_name_node_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_patience, "_FOR_NAMES", 0.01)
    client = OneFile()
    client.frozen = True
    try:
        with pytest.raises(TimeoutError, match=r"the name node did not answer within 0\.01 s"):
            PatientClient(client).status("/a")
    finally:
        client.released.set()


def test_errors_pass_as_they_are() -> None:
    with pytest.raises(PermissionError, match="/forbidden"):
        PatientClient(OneFile()).status("/forbidden")


def test_long_lists_are_whole() -> None:
    files = list(PatientClient(OneFile(files=2_500)).list_folder("/f"))
    assert [status.path for status in files] == [f"/f/{number}" for number in range(2_500)]


def test_ctrl_c_ends_a_wait() -> None:
    release = threading.Event()
    try:
        with pytest.raises(KeyboardInterrupt):
            within(60, _interrupting(release), "it was released")
    finally:
        release.set()


def _interrupting(release: threading.Event) -> Any:
    import _thread

    def act() -> None:
        _thread.interrupt_main()
        release.wait(60)

    return act
