"""A store on HDFS that writes down how many bytes go in and out of it, whichever process calls it.

It never changes what is stored. Executors must be able to import it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cerebro_spark.store.hdfs import HdfsStore


class Entry(NamedTuple):
    """One blob that one process wrote or read whole."""

    pid: int
    kind: str
    name: str
    bytes: int


class CountingStore(HdfsStore):
    """Appends a line to the local file `ledger` for every blob written or read."""

    def __init__(self, url: str, options: Mapping[str, str], ledger: str) -> None:
        super().__init__(url, options=options)
        self._ledger = ledger

    def __reduce__(self) -> Any:
        return CountingStore, (self.url, self._options, self._ledger)

    def write(self, name: str, data: bytes | memoryview) -> None:
        super().write(name, data)
        self._note("write", name, len(data))

    def read(self, name: str) -> bytes:
        data = super().read(name)
        self._note("read", name, len(data))
        return data

    def _note(self, kind: str, name: str, count: int) -> None:
        line = f"{os.getpid()} {kind} {name} {count}\n".encode()
        # One short write at the end of a file is not mixed with those of other processes.
        file = os.open(self._ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)


def entries(ledger: Path) -> list[Entry]:
    """All that was written down."""
    split = [line.split() for line in ledger.read_text().splitlines()]
    return [Entry(int(pid), kind, name, int(count)) for pid, kind, name, count in split]
