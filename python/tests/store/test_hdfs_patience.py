"""Calls to HDFS end, also if a node answers no more. The real ones are stopped in tests/hadoop."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.store import hdfs_patience
from cerebro_spark.store.files import FileStatus
from cerebro_spark.store.hdfs_patience import PatientClient, soonest, within


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
        self.frozen = False

    def read(self, count: int | None = -1) -> bytes:
        assert count is not None
        assert count >= 0, "all at once may take longer than a call may"
        self._client.wait()
        if self.frozen:
            self._client.released.wait(60)
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
    monkeypatch.setattr(hdfs_patience, "SILENT", 0.001)
    client = OneFile(b"abc")
    file = PatientClient(client).open("/a")
    client.frozen = True
    try:
        with pytest.raises(TimeoutError, match=r"the data nodes sent no bytes within 0\.01 s"):
            file.read()
    finally:
        client.released.set()


@given(
    st.binary(max_size=40),
    st.lists(st.tuples(st.integers(0, 45), st.integers(0, 45)), max_size=6),
    st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_what_is_read_beside_silent_data_nodes_is_the_same(
    data: bytes, reads: list[tuple[int, int]], silent: list[bool]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hdfs_patience, "PIECE", 20)
        patch.setattr(hdfs_patience, "SILENT", 0.001)
        patch.setattr(hdfs_patience, "_TO_READ", 0.05)
        client = OneFile(data)
        opened = client.open
        fates = iter(silent)

        def open_one(path: str) -> BinaryIO:
            file = opened(path)
            cast(Any, file).frozen = next(fates, False)
            return file

        patch.setattr(client, "open", open_one)
        try:
            file, plain = PatientClient(client).open("/a"), io.BytesIO(data)
            for place, count in reads:
                assert file.seek(place) == plain.seek(place)
                try:
                    found = file.read(count)
                except TimeoutError:
                    return  # three in a row are silent
                assert found == plain.read(count)
                assert file.tell() == plain.tell()
        finally:
            client.released.set()


def test_other_data_nodes_are_asked_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    client = OneFile(b"abc" * 1000)
    opened: list[Opened] = []

    def open_one(path: str) -> BinaryIO:
        del path
        opened.append(Opened(client))
        opened[-1].frozen = len(opened) < 3
        return cast(BinaryIO, opened[-1])

    monkeypatch.setattr(client, "open", open_one)
    began = time.monotonic()
    try:
        assert PatientClient(client).open("/a").read() == client.data
        assert 1.9 < time.monotonic() - began < 4
        assert len(opened) == 3, "what was found to answer is read on from"
    finally:
        client.released.set()


def test_an_error_of_one_is_not_raised_while_another_may_answer() -> None:
    release = threading.Event()

    def fail() -> str:
        raise OSError("refused")

    try:
        assert soonest(60, [lambda: str(release.wait(0.2)), fail], 0.01, "nothing came") == "False"
        with pytest.raises(OSError, match="refused"):
            soonest(60, [fail], 0.01, "nothing came")
    finally:
        release.set()


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
