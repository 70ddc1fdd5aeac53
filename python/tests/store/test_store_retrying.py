"""Patience: what fails for a while is tried again, what is final is not, and no write counts twice."""

from __future__ import annotations

import errno
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from hadoop.daemon import free_ports
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro_spark.errors import (
    AlreadyInStore,
    ConfigurationError,
    NotFoundInStore,
    StoreError,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
)
from cerebro_spark.store.base import Store
from cerebro_spark.store.fsspec import FsspecStore
from cerebro_spark.store.local import LocalStore
from cerebro_spark.store.retrying import RetryingStore

S3_SERVER = Path(__file__).with_name("s3_server.py")


class Flaky(FsspecStore):
    """A memory store whose client fails at the next calls, before or after the server has done what it was asked."""

    def __init__(self) -> None:
        super().__init__(f"memory://flaky/{uuid.uuid4().hex}")
        self.before: list[OSError] = []
        self.after: list[OSError] = []
        self.calls = 0

    def _call(self, act: Callable[[], Any], name: str) -> Any:
        self.calls += 1
        with self._errors(name):
            if self.before:
                raise self.before.pop(0)
        made = act()
        with self._errors(name):
            if self.after:
                raise self.after.pop(0)
        return made

    def write(self, name: str, data: bytes | memoryview) -> None:
        self._call(lambda: super(Flaky, self).write(name, data), name)

    def read(self, name: str) -> bytes:
        return bytes(self._call(lambda: super(Flaky, self).read(name), name))

    def size(self, name: str) -> int:
        return int(self._call(lambda: super(Flaky, self).size(name), name))

    def exists(self, name: str) -> bool:
        return bool(self._call(lambda: super(Flaky, self).exists(name), name))

    def list(self, folder: str = "") -> list[str]:
        return list(self._call(lambda: super(Flaky, self).list(folder), folder))

    def delete(self, name: str) -> None:
        self._call(lambda: super(Flaky, self).delete(name), name)

    def _put_new(self, name: str, source: bytes | memoryview | Path) -> None:
        self._call(lambda: super(Flaky, self)._put_new(name, source), name)

    def _fetch_blob(self, name: str, path: Path) -> None:
        path.write_bytes(b"half")
        self._call(lambda: super(Flaky, self)._fetch_blob(name, path), name)

    def _open(self, path: str) -> BinaryIO:
        inner: BinaryIO = self._call(lambda: super(Flaky, self)._open(path), path)
        flaky, read = self, inner.read
        return cast(BinaryIO, _Proxy(inner, lambda count: flaky._call(lambda: read(count), path)))


class SentTwice(LocalStore):
    """A store whose answers come from the second of two requests, and which cannot tell by itself who was first."""

    def write(self, name: str, data: bytes | memoryview) -> None:
        if not self.exists(name):
            super().write(name, data)
        raise AlreadyInStore(f"{name!r} is there")

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        with super().writer(name) as file:
            yield file
        raise AlreadyInStore(f"{name!r} is there")


class _Proxy:
    """A file whose reads go over the flaky wire."""

    def __init__(self, inner: BinaryIO, read: Callable[[int], bytes]) -> None:
        self._inner, self.read = inner, read

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def patient(store: Store, clock: Clock, **options: Any) -> RetryingStore:
    return RetryingStore(store, clock=clock, sleep=clock.sleep, seed=1, **options)


def resets(count: int) -> list[OSError]:
    return [ConnectionResetError(errno.ECONNRESET, "connection reset")] * count


CALLS: dict[str, Callable[[Store, Path], Any]] = {
    "write": lambda store, folder: store.write("new", b"x"),
    "read": lambda store, folder: store.read("a/b"),
    "size": lambda store, folder: store.size("a/b"),
    "exists": lambda store, folder: store.exists("a/b"),
    "list": lambda store, folder: store.list("a"),
    "fetch": lambda store, folder: store.fetch("a/b", folder / "target").read_bytes(),
}


@pytest.mark.parametrize("call", sorted(CALLS))
def test_what_fails_for_a_while_is_tried_again(call: str, tmp_path: Path) -> None:
    flaky, clock = Flaky(), Clock()
    flaky.write("a/b", b"hello")
    expected = CALLS[call](flaky, tmp_path / "plain")
    flaky.delete("new")
    flaky.before = resets(5)
    assert CALLS[call](patient(flaky, clock), tmp_path / "patient") == expected
    assert flaky.before == []
    assert len(clock.pauses) == 5


@pytest.mark.parametrize("call", sorted(CALLS))
def test_in_the_end_it_is_given_up_with_name_store_and_time(call: str, tmp_path: Path) -> None:
    flaky, clock = Flaky(), Clock()
    flaky.write("a/b", b"hello")
    flaky.before = resets(10_000)
    with pytest.raises(StoreUnavailable, match=r"failed \d+ times in 30 s.*memory://.*connection reset.*resumed"):
        CALLS[call](patient(flaky, clock, seconds=30.0), tmp_path)
    assert clock.now == pytest.approx(130.0), "it waits as long as it was told, and no longer"


def test_pauses_grow_up_to_a_limit_and_are_never_the_same_for_all() -> None:
    pauses = []
    for seed in (1, 2):
        flaky, clock = Flaky(), Clock()
        flaky.before = resets(8)
        store = RetryingStore(flaky, seconds=500, first=0.2, longest=4.0, seed=seed, clock=clock, sleep=clock.sleep)
        store.exists("a")
        expected = [0.2, 0.4, 0.8, 1.6, 3.2, 4.0, 4.0, 4.0]
        for pause, middle in zip(clock.pauses, expected, strict=True):
            assert 0.5 * middle <= pause <= 1.5 * middle
        pauses.append(clock.pauses)
    assert pauses[0] != pauses[1]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError(errno.ENOENT, "gone"), NotFoundInStore),
        (PermissionError(errno.EACCES, "no"), StoreForbidden),
        (OSError(errno.ENOSPC, "full"), StoreFull),
    ],
    ids=["absent", "forbidden", "full"],
)
def test_a_final_answer_comes_at_once(error: OSError, kind: type[StoreError]) -> None:
    flaky, clock = Flaky(), Clock()
    flaky.before = [error]
    with pytest.raises(kind):
        patient(flaky, clock).read("a")
    assert clock.pauses == []
    assert flaky.calls == 1


def test_a_write_whose_answer_was_lost_has_happened() -> None:
    flaky, clock = Flaky(), Clock()
    flaky.after = resets(1)
    patient(flaky, clock).write("a", b"hello")
    assert flaky.read("a") == b"hello"
    assert len(clock.pauses) == 1


def test_a_stream_whose_answer_was_lost_has_happened() -> None:
    flaky, clock = Flaky(), Clock()
    flaky.after = resets(1)
    with patient(flaky, clock).writer("a") as file:
        file.write(b"x" * 3_000_000)
    assert flaky.read("a") == b"x" * 3_000_000


@pytest.mark.parametrize("theirs", [b"hellO", b"hell", b"hello!", b""])
def test_a_name_that_somebody_else_took_meanwhile_is_taken(theirs: bytes) -> None:
    flaky, clock = Flaky(), Clock()
    flaky.before = resets(1)

    def somebody_writes(seconds: float) -> None:
        Store.write(flaky, "a", theirs)

    store = RetryingStore(flaky, clock=clock, sleep=somebody_writes)
    with pytest.raises(AlreadyInStore):
        store.write("a", b"hello")
    assert flaky.read("a") == theirs


@pytest.mark.parametrize("streaming", [False, True], ids=["write", "writer"])
def test_a_client_that_sends_a_write_again_by_itself_has_written(streaming: bool, tmp_path: Path) -> None:
    """Nobody here tried twice: the client did, out of sight, and its second request found what the first had done."""
    twice, clock = SentTwice(tmp_path), Clock()
    if streaming:
        with patient(twice, clock).writer("a") as file:
            file.write(b"hello")
    else:
        patient(twice, clock).write("a", b"hello")
    assert twice.read("a") == b"hello"
    assert clock.pauses == []
    with pytest.raises(AlreadyInStore):
        patient(twice, clock).write("a", b"hellO")


def test_deleting_is_given_up_soon() -> None:
    flaky, clock = Flaky(), Clock()
    flaky.write("a", b"hello")
    flaky.before = resets(2)
    patient(flaky, clock).delete("a")
    assert not flaky.exists("a")
    flaky.before = resets(99)
    with pytest.raises(StoreUnavailable, match="deleting 'a' failed 3 times"):
        patient(flaky, clock).delete("a")


@settings(deadline=None)  # a machine may be busy
@given(data=st.data())
def test_a_reader_goes_on_where_it_was_interrupted(data: st.DataObject) -> None:
    content = bytes(range(256)) * 6000
    flaky, clock = Flaky(), Clock()
    flaky.write("a", content)
    with patient(flaky, clock).reader("a") as file:
        for _ in range(data.draw(st.integers(1, 6))):
            flaky.before = resets(data.draw(st.integers(0, 3)))
            start = data.draw(st.integers(0, len(content)))
            count = data.draw(st.integers(0, len(content)))
            file.seek(start)
            assert file.read(count) == content[start : start + count]


@pytest.mark.slow
@settings(deadline=None)  # a machine may be busy
@given(data=st.data())
def test_whatever_fails_a_store_holds_what_was_written_once(data: st.DataObject) -> None:
    """Random failures before and after the server acted: as long as patience lasts nobody notices any of them."""
    flaky, clock = Flaky(), Clock()
    store = patient(flaky, clock, seconds=1e9)
    model: dict[str, bytes] = {}
    for number in range(data.draw(st.integers(1, 12))):
        flaky.before = resets(data.draw(st.integers(0, 3)))
        flaky.after = resets(data.draw(st.integers(0, 2)))
        name, fresh = data.draw(st.sampled_from("abc")), f"{number}".encode()
        if name in model:
            with pytest.raises(AlreadyInStore):
                store.write(name, fresh)
        else:
            store.write(name, fresh)
            model[name] = fresh
        assert store.read(name) == model[name]
        flaky.before, flaky.after = [], []
        assert {blob: flaky.read(blob) for blob in flaky.list()} == model


def test_it_travels(tmp_path: Path) -> None:
    store = RetryingStore(LocalStore(tmp_path), seconds=7.0, first=0.5, longest=2.0, seed=3)
    store.write("a", b"hello")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.read("a") == b"hello"
    assert (copy.seconds, copy.first, copy.longest, copy.seed) == (7.0, 0.5, 2.0, 3)
    assert copy.url == store.url


def test_no_patience_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="`seconds` is 0, but must be above 0"):
        RetryingStore(LocalStore(tmp_path), seconds=0)


@contextmanager
def moto(port: int) -> Iterator[subprocess.Popen[bytes]]:
    server = subprocess.Popen(
        [sys.executable, str(S3_SERVER), str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield server
    finally:
        server.kill()
        server.wait(30)


@pytest.mark.slow
def test_an_object_store_that_comes_late_and_then_stalls_is_waited_for() -> None:
    """A real client against a server that is not there at first, and later does not answer for a while."""
    import s3fs

    # Nobody is given such a port by chance until the server takes it.
    (port,) = free_ports("127.0.0.1", 1, set())
    where = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "eu-west-1"}
    impatient = {"connect_timeout": 1, "read_timeout": 1, "retries": {"max_attempts": 0}}
    patient = {"key": "test", "secret": "test", "client_kwargs": where}
    options = {**patient, "config_kwargs": impatient}
    failures: list[float] = []
    with ExitStack() as servers:

        def sleep(seconds: float) -> None:
            """Whoever waits has seen a failure: now the server comes up, or wakes."""
            failures.append(seconds)
            if len(failures) == 1:
                running.append(servers.enter_context(moto(port)))
            elif stalled:
                running[0].send_signal(signal.SIGCONT)
                stalled.clear()
            time.sleep(seconds)

        running: list[subprocess.Popen[bytes]] = []
        stalled: list[bool] = []
        store = RetryingStore(FsspecStore("s3://late/data", **options), seconds=300.0, longest=1.0, sleep=sleep)
        with pytest.raises(NotFoundInStore):  # there is a server now, and no bucket yet
            store.read("a")
        s3fs.S3FileSystem(**patient).mkdir("late")
        before = len(failures)
        assert before >= 1
        running[0].send_signal(signal.SIGSTOP)
        stalled.append(True)
        store.write("a", b"hello")
        assert len(failures) > before
        assert store.read("a") == b"hello"
