"""Reads checkpoint files, streamed array by array, and checks their digest. It never unpickles."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from cerebro_spark.errors import CheckpointError, CheckpointUnreadable
from cerebro_spark.trainer.checkpoints.digest import GENERATORS, StateDigest, compute_rest_digest, digest_name
from cerebro_spark.trainer.checkpoints.header import ArraySpan, read_header


@contextmanager
def open_checkpoint(source: Path | BinaryIO | bytes, *, digest: str = "") -> Iterator[CheckpointReader]:
    """Open a checkpoint for the length of a block.

    Args:
        source: A path, a seekable binary file, or the bytes of the file.
        digest: The digest that was reported when the file was written. If it is given, leaving the block checks it;
            a damaged file is then reported as damaged, and not as one that does not fit the model.

    Yields:
        The reader.

    Raises:
        CheckpointUnreadable: The file is not a whole checkpoint of this format version, or has another digest.
    """
    if isinstance(source, Path):
        try:
            with open(source, "rb", buffering=0) as file, open_checkpoint(file, digest=digest) as opened:
                yield opened
        except OSError as error:
            raise CheckpointUnreadable(f"the checkpoint {source} cannot be read: {error}") from error
        return
    label = str(getattr(source, "name", "the checkpoint"))
    reader = CheckpointReader(io.BytesIO(source) if isinstance(source, bytes) else source, label, digest)
    try:
        yield reader
    except CheckpointError:
        reader.check_digest()
        raise
    reader.check_digest()


class CheckpointReader:
    """An open checkpoint, a StateSource: its arrays are read one at a time straight into their place."""

    def __init__(self, file: BinaryIO, label: str, digest: str = "") -> None:
        self._file = file
        self.label = label
        self._header = read_header(file, label)
        self.meta = self._header.meta
        self._expected = digest
        self._digest = StateDigest(self.meta, digest_name(digest)) if digest else None

    def names(self) -> Sequence[str]:
        """Return the names of all arrays, in the order of the file."""
        return list(self._header.spans)

    def spec(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return the dtype tag and the shape of an array."""
        span = self._span(name)
        return span.dtype, span.shape

    def read(self, name: str) -> bytearray:
        """Return the bytes of an array."""
        span = self._span(name)
        data = bytearray(span.end - span.begin)
        self.read_into(name, memoryview(data))
        return data

    def read_into(self, name: str, buffer: memoryview) -> None:
        """Fill `buffer`, which must have the array's size and stay unchanged until the block of the reader ends."""
        span = self._span(name)
        size = span.end - span.begin
        if not size:
            return
        view = buffer.cast("B")
        if len(view) != size:
            raise CheckpointError(f"{self.label}: {name!r} has {size} bytes, but {len(view)} were expected")
        self._file.seek(self._header.size + span.begin)
        filled = 0
        while filled < len(view):
            count = self._file.readinto(view[filled:])  # type: ignore[attr-defined]
            if not count:
                raise CheckpointUnreadable(f"{self.label} ends inside {name!r}: the file is truncated")
            filled += count
        if self._digest is not None:
            self._digest.add(name, span.dtype, span.shape, view)

    def check_digest(self) -> None:
        """Compare with the digest that was given, if any; arrays that were not read yet are read now."""
        if self._digest is None:
            return
        for name in self.names():
            if not self._digest.has(name) and not name.startswith(GENERATORS):
                self.read(name)
        found = self._digest.hexdigest()
        if found != self._expected:
            raise CheckpointUnreadable(
                f"{self.label} has digest {found}, but {self._expected} was written: the file is damaged or another's"
            )
        self._check_rest()

    def _check_rest(self) -> None:
        # Files of older releases have no digest of their generators.
        if self._header.rest_digest is None:
            return
        spans = self._header.spans.items()
        names = [name for name, span in spans if name.startswith(GENERATORS) and span.end > span.begin]
        if compute_rest_digest({name: self.read(name) for name in names}, self.meta) != self._header.rest_digest:
            raise CheckpointUnreadable(f"the generators in {self.label} are not those that were written: it is damaged")

    def _span(self, name: str) -> ArraySpan:
        if name not in self._header.spans:
            raise CheckpointError(f"{self.label} has no array {name!r}: it was written by a model of another structure")
        return self._header.spans[name]
