"""A file on local disk that becomes a remote blob when it is whole. It never outlives the block that writes it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO


class Spool:
    """The staged form of a blob for stores whose upload may have to be tried again: `put` gets the whole file.

    What is only on its way over the network cannot be sent twice; what is on disk can.
    """

    def __init__(self, put: Callable[[Path], None]) -> None:
        self._put = put
        handle, self._path = tempfile.mkstemp(prefix="cerebro-upload-")
        self.file: BinaryIO = open(handle, "wb")  # noqa: SIM115 (it outlives this call)

    def commit(self) -> None:
        """Put the file in its place."""
        self.file.close()
        self._put(Path(self._path))

    def staged(self) -> BinaryIO:
        """The whole file again."""
        return open(self._path, "rb")

    def discard(self) -> None:
        """Remove the file."""
        Path(self._path).unlink(missing_ok=True)
        self.file.close()
