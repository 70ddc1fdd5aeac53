"""A store that waits for another one: what fails for a while is tried again. It never hides that it had to wait.

Only what may pass by itself is tried again: an answer that is final (not there, taken, forbidden, full) comes at once.
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
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

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
from cerebro_spark.store.failures import gist
from cerebro_spark.store.sameness import own_bytes_pass
from cerebro_spark.store.spool import Spool

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

T = TypeVar("T")

_log = logging.getLogger(__name__)
_FINAL = (NotFoundInStore, AlreadyInStore, StoreForbidden, StoreFull, StoreUnavailable)
_TRIES_TO_DELETE = 3
_CHUNK = 1 << 20


class Patient(Store):
    """The store `store`, tried again for `seconds` where it fails.

    The first pause is about `first` seconds, each next one twice as long, up to `longest`; `seed` draws the jitter that
    keeps many workers from coming back at the same moment (the process' own, if not given). When the time is over, the
    call raises StoreUnavailable. Deleting is given up after three tries: what stays takes room and does no harm, and
    whoever tidies up shall not be kept waiting.

    A write whose answer was lost finds its own bytes there when it is tried again: that is success. Other bytes under
    the name are somebody else's, and AlreadyInStore as ever.

    >>> import tempfile
    >>> from cerebro_spark.store.local import LocalStore
    >>> store = Patient(LocalStore(tempfile.mkdtemp()), seconds=60)
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
        self._chance = PerProcess(self._new_chance)

    @property
    def url(self) -> str:
        return self.store.url

    def __repr__(self) -> str:
        return f"Patient({self.store!r}, seconds={self.seconds:g})"

    def __reduce__(self) -> tuple[Callable[..., Patient], tuple[object, ...]]:
        return _again, (self.store, self.seconds, self.first, self.longest, self.seed, self.clock, self.sleep)

    # -- the calls of a store

    def write(self, name: str, data: bytes | memoryview) -> None:
        self._put(name, lambda: self.store.write(name, data), lambda: io.BytesIO(data))

    def read(self, name: str) -> bytes:
        return self._patiently("reading", name, lambda: self.store.read(name))

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        """A failed read opens the blob again, where it left off: a blob never changes."""
        check_name(name)
        raw = _PatientReader(self, name)
        with raw, io.BufferedReader(raw, buffer_size=_CHUNK) as file:
            yield cast(BinaryIO, file)

    def size(self, name: str) -> int:
        return self._patiently("looking at", name, lambda: self.store.size(name))

    def exists(self, name: str) -> bool:
        return self._patiently("looking for", name, lambda: self.store.exists(name))

    def list(self, folder: str = "") -> list[str]:
        return self._patiently("listing", folder, lambda: self.store.list(folder))

    def delete(self, name: str) -> None:
        self._patiently("deleting", name, lambda: self.store.delete(name), tries=_TRIES_TO_DELETE)

    def sweep(self, older_than: float = 86_400.0) -> int:
        return self.store.sweep(older_than)

    def beside(self, url: str) -> Store:
        return self.store.beside(url)

    def unfinished(self, older_than: float = 86_400.0) -> dict[str, int]:
        return self.store.unfinished(older_than)

    def local_path(self, name: str) -> Path | None:
        return self.store.local_path(name)

    def _is_blob(self, name: str) -> bool:
        def look() -> bool:
            with self.store._errors(name):
                return self.store._is_blob(name)

        return self._patiently("looking for", name, look)

    def _settle(self, name: str) -> None:
        with self.store._errors(name):
            self.store._settle(name)

    def _stage(self, name: str) -> Spool:
        """What was streamed is kept on local disk until it is in the store: only then can it be sent again."""

        def put(path: Path) -> None:
            def copy() -> None:
                with open(path, "rb") as source, self.store.writer(name) as target:
                    shutil.copyfileobj(source, target, _CHUNK)

            self._put(name, copy, lambda: open(path, "rb"))  # noqa: SIM115 (`_put` closes it)

        return Spool(put)

    def _fetch_blob(self, name: str, path: Path) -> None:
        def fetch() -> None:
            path.unlink(missing_ok=True)  # what an earlier try left
            with self.store._errors(name):
                self.store._fetch_blob(name, path)

        self._patiently("fetching", name, fetch)

    # -- patience

    def _put(self, name: str, put: Callable[[], None], source: Callable[[], BinaryIO]) -> None:
        def attempt() -> None:
            with own_bytes_pass(self.store, name, source):
                put()

        self._patiently("writing", name, attempt)

    def _patiently(self, doing: str, name: str, act: Callable[[], T], tries: int | None = None) -> T:
        began, pause, tried = self.clock(), self.first, 0
        while True:
            try:
                return act()
            except _FINAL:
                raise
            except OSError as error:
                tried += 1
                waited = self.clock() - began
                if waited >= self.seconds or tried == tries:
                    raise self._given_up(doing, name, waited, tried, error) from error
                wait = min(pause * self._chance.get().uniform(0.5, 1.5), self.seconds - waited)
                _log.warning("%s; trying again in %.1f s", gist(error), wait)
                self.sleep(wait)
                pause = min(2 * pause, self.longest)

    def _given_up(self, doing: str, name: str, waited: float, tried: int, error: OSError) -> StoreError:
        return StoreUnavailable(
            f"{doing} {name!r} failed {tried} times in {waited:.0f} s, and {self.url} is given up; the last time:"
            f" {gist(error)}. Once the store works again, what was under way can be resumed"
        )

    def _new_chance(self) -> random.Random:
        return random.Random(f"{socket.gethostname()} {os.getpid()}" if self.seed is None else self.seed)


def _again(
    store: Store,
    seconds: float,
    first: float,
    longest: float,
    seed: int | None,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Patient:
    return Patient(store, seconds=seconds, first=first, longest=longest, seed=seed, clock=clock, sleep=sleep)


class _PatientReader(io.RawIOBase):
    """A blob open for reading, which is opened anew where reading failed."""

    def __init__(self, patient: Patient, name: str) -> None:
        self._patient = patient
        self._name = name
        self._place = 0
        self._open = ExitStack()
        self._file: BinaryIO | None = None
        self._do("opening", lambda file: 0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._place = self._do("reading", lambda file: file.seek(offset, whence))
        return self._place

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        data = self._do("reading", lambda file: file.read(len(view)))
        view[: len(data)] = data
        self._place += len(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._open.close()
        super().close()

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

        return self._patient._patiently(doing, self._name, attempt)

    def _forget(self) -> None:
        broken, self._open, self._file = self._open, ExitStack(), None
        try:
            broken.close()
        except OSError as error:
            _log.debug("a broken file did not close: %s", error)
