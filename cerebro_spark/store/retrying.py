"""A store that repeats failed calls of another one. It logs a warning for each attempt that failed.

Only errors that may pass by themselves are tried again. A final answer (not found, taken, forbidden, full) is raised at
once.
"""

from __future__ import annotations

import io
import logging
import os
import random
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from cerebro_spark.errors import (
    AlreadyInStore,
    ConfigurationError,
    NotFoundInStore,
    StoreError,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
)
from cerebro_spark.store.base import Store, check_name
from cerebro_spark.store.connection import PerProcess
from cerebro_spark.store.failures import one_line
from cerebro_spark.store.idempotence import accept_own_bytes
from cerebro_spark.store.spooling import spool
from cerebro_spark.store.streams import RawReader, StagedBlob

T = TypeVar("T")

_log = logging.getLogger(__name__)
_FINAL = (NotFoundInStore, AlreadyInStore, StoreForbidden, StoreFull, StoreUnavailable)
_TRIES_TO_DELETE = 3
_CHUNK = 1 << 20


class RetryingStore(Store):
    """A store whose failed calls are tried again, with growing pauses, until a time limit.

    When the time is over, the call raises StoreUnavailable. Deleting is tried three times only: what is not deleted
    takes space but does no harm, and the caller should not have to wait for it.

    A write whose answer was lost finds its own bytes when it is tried again, and has then succeeded. Other bytes under
    the name belong to another writer and raise AlreadyInStore.

    Args:
        store: The store to call.
        seconds: How long to try. Defaults to 120.0.
        first: The first pause in seconds; each pause is twice as long as the one before. Defaults to 0.2.
        longest: The longest pause in seconds. Defaults to 10.0.
        seed: The seed of the jitter, which keeps many workers from coming back at the same moment. None, the default,
            takes a seed from host and process.
        clock: Returns the time in seconds. Defaults to `time.monotonic`.
        sleep: Waits for some seconds. Defaults to `time.sleep`.

    Raises:
        ConfigurationError: If a number of seconds is not above 0.

    Examples:
        >>> import tempfile
        >>> from cerebro_spark.store.local import LocalStore
        >>> store = RetryingStore(LocalStore(tempfile.mkdtemp()), seconds=60)
        >>> store.write("a", b"hello")
        >>> store.read("a")
        b'hello'
    """

    def __init__(
        self,
        store: Store,
        *,
        seconds: float = 120.0,
        first: float = 0.2,
        longest: float = 10.0,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        for name, value in (("seconds", seconds), ("first", first), ("longest", longest)):
            if not value > 0:
                raise ConfigurationError(f"`{name}` is {value}, but must be above 0 seconds")
        self.store = store
        self.seconds = seconds
        self.first = first
        self.longest = longest
        self.seed = seed
        self.clock = clock
        self.sleep = sleep
        self._random = PerProcess(self._new_random)

    @property
    def url(self) -> str:
        return self.store.url

    def __repr__(self) -> str:
        return f"RetryingStore({self.store!r}, seconds={self.seconds:g})"

    def __reduce__(self) -> tuple[Callable[..., RetryingStore], tuple[object, ...]]:
        return _rebuild, (self.store, self.seconds, self.first, self.longest, self.seed, self.clock, self.sleep)

    # -- the methods of a store

    def write(self, name: str, data: bytes | memoryview) -> None:
        self._put(name, lambda: self.store.write(name, data), lambda: io.BytesIO(data))

    def read(self, name: str) -> bytes:
        return self._retry("reading", name, lambda: self.store.read(name))

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        """Open a blob for reading. After a failed read it is opened again at the same position."""
        check_name(name)
        raw = _RetryingReader(self, name)
        with raw, io.BufferedReader(raw, buffer_size=_CHUNK) as file:
            yield cast(BinaryIO, file)

    def size(self, name: str) -> int:
        return self._retry("looking at", name, lambda: self.store.size(name))

    def exists(self, name: str) -> bool:
        return self._retry("looking for", name, lambda: self.store.exists(name))

    def list(self, folder: str = "") -> list[str]:
        return self._retry("listing", folder, lambda: self.store.list(folder))

    def delete(self, name: str) -> None:
        self._retry("deleting", name, lambda: self.store.delete(name), tries=_TRIES_TO_DELETE)

    def sweep(self, older_than: float = 86_400.0) -> int:
        return self.store.sweep(older_than)

    def beside(self, url: str) -> Store:
        return self.store.beside(url)

    def unfinished(self, older_than: float = 86_400.0) -> dict[str, int]:
        return self.store.unfinished(older_than)

    def local_path(self, name: str) -> Path | None:
        return self.store.local_path(name)

    def _is_blob(self, name: str) -> bool:
        return self._retry("looking for", name, lambda: self.store._is_blob(name))

    def _make_durable(self, name: str) -> None:
        with self.store._errors(name):
            self.store._make_durable(name)

    def _stage(self, name: str) -> StagedBlob:
        """Keep the bytes on local disk until they are in the store, so that they can be sent again."""

        def put(path: Path) -> None:
            def copy() -> None:
                with open(path, "rb") as source, self.store.writer(name) as target:
                    shutil.copyfileobj(source, target, _CHUNK)

            self._put(name, copy, lambda: open(path, "rb"))  # noqa: SIM115 (`_put` closes it)

        return spool(put)

    def _fetch_blob(self, name: str, path: Path) -> None:
        self._retry("fetching", name, lambda: self.store._fetch_blob(name, path))

    # -- attempts

    def _put(self, name: str, put: Callable[[], None], source: Callable[[], BinaryIO]) -> None:
        def attempt() -> None:
            with accept_own_bytes(self.store, name, source):
                put()

        self._retry("writing", name, attempt)

    def _retry(self, doing: str, name: str, act: Callable[[], T], tries: int | None = None) -> T:
        began, pause, tried = self.clock(), self.first, 0
        while True:
            try:
                with self.store._errors(name):
                    return act()
            except _FINAL:
                raise
            except OSError as error:
                tried += 1
                waited = self.clock() - began
                if waited >= self.seconds or tried == tries:
                    raise self._given_up(doing, name, waited, tried, error) from error
                wait = min(pause * self._random.get().uniform(0.5, 1.5), self.seconds - waited)
                _log.warning("%s; trying again in %.1f s", one_line(error), wait)
                self.sleep(wait)
                pause = min(2 * pause, self.longest)

    def _given_up(self, doing: str, name: str, waited: float, tried: int, error: OSError) -> StoreError:
        return StoreUnavailable(
            f"{doing} {name!r} failed {tried} times in {waited:.0f} s, and {self.url} is given up; the last time:"
            f" {one_line(error)}. Once the store works again, what was under way can be resumed"
        )

    def _new_random(self) -> random.Random:
        return random.Random(f"{socket.gethostname()} {os.getpid()}" if self.seed is None else self.seed)


def _rebuild(
    store: Store,
    seconds: float,
    first: float,
    longest: float,
    seed: int | None,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> RetryingStore:
    return RetryingStore(store, seconds=seconds, first=first, longest=longest, seed=seed, clock=clock, sleep=sleep)


class _RetryingReader(RawReader):
    """A blob that is open for reading, and is opened again after a failed read."""

    def __init__(self, patient: RetryingStore, name: str) -> None:
        self._patient = patient
        self._name = name
        self._place = 0
        self._open = ExitStack()
        self._file: BinaryIO | None = None
        self._do("opening", lambda file: 0)

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = self._do("reading", lambda file: file.seek(offset, whence))
        return self._place

    def close(self) -> None:
        if not self.closed:
            self._open.close()
        super().close()

    def _read(self, count: int) -> bytes:
        data = self._do("reading", lambda file: file.read(count))
        self._place += len(data)
        return data

    def _do(self, doing: str, act: Callable[[BinaryIO], T]) -> T:
        def attempt() -> T:
            try:
                if self._file is None:
                    self._file = self._open.enter_context(self._patient.store.reader(self._name))
                    self._file.seek(self._place)
                return act(self._file)
            except OSError:
                self._forget()
                raise

        return self._patient._retry(doing, self._name, attempt)

    def _forget(self) -> None:
        broken, self._open, self._file = self._open, ExitStack(), None
        try:
            broken.close()
        except OSError as error:
            _log.debug("a broken file did not close: %s", error)
