"""The checkpoint file: safetensors with JSON metadata, streamed both ways. It never pickles or shows half a file."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

from cerebro_spark.errors import CheckpointError, CheckpointUnreadable

FORMAT = "cerebro-spark checkpoint"
VERSION = 1

ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "C64": 8,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
_MAX_HEADER = 100_000_000
_CHUNK = 4 << 20
_IN_THREAD = 1 << 20
_UNCOUNTED = ("rng", "trial", "versions")


class Entry(NamedTuple):
    """One named array: safetensors' name of its dtype, its shape, and a function that gives its bytes.

    `data` is called once, when the array's turn to be written has come, so that only one array at a time need be
    copied off a GPU.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Callable[[], memoryview]

    @property
    def nbytes(self) -> int:
        return ITEM_BYTES[self.dtype] * math.prod(self.shape)


class Written(NamedTuple):
    """How long the file is, and the digest of the training state in it: arrays and JSON.

    Left out are the generators (`rng`), the trial's name and the versions: they do not say what was learnt.
    """

    bytes: int
    digest: str


class Source(Protocol):
    """Where arrays come from: a checkpoint file, or another built model in this process."""

    meta: Any
    label: str

    def names(self) -> Sequence[str]: ...
    def spec(self, name: str) -> tuple[str, tuple[int, ...]]: ...
    def read(self, name: str) -> bytearray: ...
    def read_into(self, name: str, buffer: memoryview) -> None: ...


class Digest:
    """One digest over named arrays, in any order; large ones are hashed in a thread while the caller goes on."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._parts: dict[str, bytes | Future[bytes]] = {}

    def add(self, name: str, dtype: str, shape: tuple[int, ...], data: memoryview) -> None:
        """Count an array in, unless it is the state of a generator; it must not change before `wait`."""
        if name.startswith("rng/"):
            return
        label = f"{name}|{dtype}|{list(shape)}|"
        if len(data) < _IN_THREAD:
            self._parts[name] = _hash_array(label, data)
            return
        self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="digest")
        self._parts[name] = self._pool.submit(_hash_array, label, data)

    def add_meta(self, meta: Any) -> None:
        """Count the JSON part in: learning rates, schedules, counters."""
        kept = {k: v for k, v in meta.items() if k not in _UNCOUNTED} if isinstance(meta, dict) else meta
        self._parts["\0meta"] = _hash_array("meta|", memoryview(json.dumps(kept, sort_keys=True).encode()))

    def has(self, name: str) -> bool:
        return name in self._parts

    def wait(self) -> None:
        """Until every array given so far is hashed, so that it may be let go."""
        for name, part in self._parts.items():
            if isinstance(part, Future):
                self._parts[name] = part.result()

    def hexdigest(self) -> str:
        self.wait()
        if self._pool is not None:
            self._pool.shutdown()
        total = hashlib.sha256()
        for _, part in sorted(self._parts.items()):
            total.update(part if isinstance(part, bytes) else part.result())
        return total.hexdigest()[:32]


def _hash_array(label: str, data: memoryview) -> bytes:
    # SHA-256, because processors have instructions for it: three times as fast here as blake2b.
    part = hashlib.sha256(label.encode())
    part.update(data)
    return part.digest()


def _digest_beside(arrays: Mapping[str, memoryview | bytearray], meta: Any) -> str:
    """A digest of what that of the training state leaves out, so that damage to it does not go unnoticed either."""
    left_out = {key: meta.get(key) for key in _UNCOUNTED} if isinstance(meta, dict) else None
    total = hashlib.sha256(json.dumps(left_out, sort_keys=True).encode())
    for name, data in sorted(arrays.items()):
        total.update(f"|{name}|".encode())
        total.update(data)
    return total.hexdigest()[:32]


def write_checkpoint(target: Path | BinaryIO, entries: Sequence[Entry], meta: Any) -> Written:
    """Write the arrays and the JSON-able `meta`; a path appears whole or not at all.

    >>> import io
    >>> file = io.BytesIO()
    >>> data = memoryview(bytes(8))
    >>> written = write_checkpoint(file, [Entry("model/w", "F32", (2,), lambda: data)], {"epoch": 1})
    >>> with open_checkpoint(file.getvalue()) as reader:
    ...     reader.meta, reader.spec("model/w")
    ({'epoch': 1}, ('F32', (2,)))
    """
    if not isinstance(target, Path):
        return _write(target, entries, meta)
    staged = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with open(staged, "xb", buffering=0) as file:
            written = _write(file, entries, meta)
            os.fsync(file.fileno())
        os.replace(staged, target)
    finally:
        staged.unlink(missing_ok=True)
    return written


def digest_of(entries: Sequence[Entry], meta: Any) -> str:
    """The digest that a checkpoint of these would have, without writing one.

    >>> import io
    >>> entries = [Entry("model/w", "U8", (2,), lambda: memoryview(bytes(2)))]
    >>> digest_of(entries, {"epoch": 1}) == write_checkpoint(io.BytesIO(), entries, {"epoch": 1}).digest
    True
    """
    digest = Digest()
    digest.add_meta(meta)
    for entry in entries:
        data = entry.data()
        if data.nbytes:
            digest.add(entry.name, entry.dtype, entry.shape, _as_bytes(data))
            digest.wait()
    return digest.hexdigest()


def _as_bytes(data: memoryview) -> memoryview:
    return data.cast("B") if data.format != "B" or data.ndim != 1 else data


def _write(file: BinaryIO, entries: Sequence[Entry], meta: Any) -> Written:
    header = _header(entries, meta)
    _write_all(file, memoryview(header))
    total = len(header)
    digest = Digest()
    digest.add_meta(meta)
    for entry in entries:
        data = entry.data()
        if data.nbytes != entry.nbytes:
            raise CheckpointError(f"{entry.name!r} has {data.nbytes} bytes, but its dtype and shape say {entry.nbytes}")
        if data.nbytes:
            data = _as_bytes(data)
            # One array at a time: what was copied off a device is let go before the next one is fetched.
            digest.add(entry.name, entry.dtype, entry.shape, data)
            _write_all(file, data)
            digest.wait()
        total += entry.nbytes
    return Written(total, digest.hexdigest())


def _write_all(file: BinaryIO, data: memoryview) -> None:
    for start in range(0, len(data), _CHUNK):
        chunk = data[start : start + _CHUNK]
        while len(chunk):
            chunk = chunk[file.write(chunk) or 0 :]


def _header(entries: Sequence[Entry], meta: Any) -> bytes:
    state = json.dumps(meta, separators=(",", ":"))
    generators = [entry for entry in entries if entry.name.startswith("rng/") and entry.nbytes]
    beside = _digest_beside({entry.name: _as_bytes(entry.data()) for entry in generators}, meta)
    said = {"format": FORMAT, "version": str(VERSION), "state": state, "beside": beside}
    header: dict[str, Any] = {"__metadata__": said}
    offset = 0
    for entry in entries:
        if entry.name in header:
            raise CheckpointError(f"two arrays of one checkpoint are named {entry.name!r}: names must differ")
        offsets = [offset, offset + entry.nbytes]
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": offsets}
        offset += entry.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


@contextmanager
def open_checkpoint(source: Path | BinaryIO | bytes, *, digest: str = "") -> Iterator[Reader]:
    """Open a checkpoint: a path, a seekable binary file, or its bytes.

    With a `digest`, leaving the block checks that what was read is what was written: of a file that is not, it does not
    count that it fits no model. Raises CheckpointUnreadable with the file's name for anything that is not a whole
    checkpoint of this format version.
    """
    if isinstance(source, Path):
        try:
            with open(source, "rb", buffering=0) as file, _checked(Reader(file, str(source), digest)) as reader:
                yield reader
        except OSError as error:
            raise CheckpointUnreadable(f"the checkpoint {source} cannot be read: {error}") from error
        return
    stream: BinaryIO = io.BytesIO(source) if isinstance(source, bytes) else source
    with _checked(Reader(stream, str(getattr(source, "name", "the checkpoint in memory")), digest)) as reader:
        yield reader


@contextmanager
def _checked(reader: Reader) -> Iterator[Reader]:
    try:
        yield reader
    except CheckpointError:
        reader.check_digest()
        raise
    reader.check_digest()


class Reader:
    """An open checkpoint: `meta`, and its arrays by name, read one at a time straight into their place."""

    def __init__(self, file: BinaryIO, label: str, digest: str = "") -> None:
        self._file = file
        self.label = label
        self._expected = digest
        self._digest = Digest() if digest else None
        header, self._start = self._read_header()
        metadata = header.pop("__metadata__", None)
        self.meta = self._check_format(metadata)
        self._beside = metadata.get("beside")
        if self._digest is not None:
            self._digest.add_meta(self.meta)
        self._entries = {name: self._check_entry(name, spec) for name, spec in header.items()}
        self._check_size()

    def names(self) -> Sequence[str]:
        """The names of all arrays, in the order of the file."""
        return list(self._entries)

    def spec(self, name: str) -> tuple[str, tuple[int, ...]]:
        """The dtype, as safetensors names it, and the shape of an array."""
        dtype, shape, _, _ = self._entry(name)
        return dtype, shape

    def read(self, name: str) -> bytearray:
        """The bytes of an array."""
        _, _, begin, end = self._entry(name)
        data = bytearray(end - begin)
        self.read_into(name, memoryview(data))
        return data

    def read_into(self, name: str, buffer: memoryview) -> None:
        """Fill `buffer`, which has just the array's size; it must stay unchanged until the block ends."""
        dtype, shape, begin, end = self._entry(name)
        if not end - begin:
            return
        view = buffer.cast("B")
        if len(view) != end - begin:
            raise CheckpointError(f"{self.label}: {name!r} has {end - begin} bytes, but {len(view)} were expected")
        self._file.seek(self._start + begin)
        filled = 0
        while filled < len(view):
            count = self._file.readinto(view[filled:])  # type: ignore[attr-defined]
            if not count:
                raise CheckpointUnreadable(f"{self.label} ends inside {name!r}: the file is truncated")
            filled += count
        if self._digest is not None:
            self._digest.add(name, dtype, shape, view)

    def check_digest(self) -> None:
        """Compare with the digest that was given; arrays that nobody read are read now."""
        if self._digest is None:
            return
        for name in self._entries:
            if not self._digest.has(name) and not name.startswith("rng/"):
                self.read(name)
        found = self._digest.hexdigest()
        if found != self._expected:
            raise CheckpointUnreadable(
                f"{self.label} has digest {found}, but {self._expected} was written: the file is damaged or another's"
            )
        self._check_beside()

    def _check_beside(self) -> None:
        """Files of older releases say nothing of their generators."""
        names = [name for name, (_, _, begin, end) in self._entries.items() if name.startswith("rng/") and end > begin]
        if self._beside is not None and _digest_beside({n: self.read(n) for n in names}, self.meta) != self._beside:
            raise CheckpointUnreadable(f"the generators in {self.label} are not those that were written: it is damaged")

    def _entry(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        if name not in self._entries:
            raise CheckpointError(f"{self.label} has no array {name!r}: it was written by a model of another structure")
        return self._entries[name]

    def _read_header(self) -> tuple[dict[str, Any], int]:
        self._file.seek(0)
        prefix = self._file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= _MAX_HEADER:
            raise self._foreign("it does not begin as a safetensors file does")
        text = self._file.read(length)
        if len(text) < length:
            raise CheckpointUnreadable(f"{self.label} ends inside its header: the file is truncated")
        try:
            header = json.loads(text)
        except ValueError:
            raise self._foreign("its header is not JSON") from None
        if not isinstance(header, dict):
            raise self._foreign("its header is not a JSON object")
        return header, 8 + length

    def _check_format(self, metadata: object) -> Any:
        if not isinstance(metadata, Mapping) or metadata.get("format") != FORMAT:
            raise self._foreign("it is a safetensors file that something else wrote")
        if metadata.get("version") != str(VERSION):
            raise CheckpointUnreadable(
                f"{self.label} has checkpoint format version {metadata.get('version')}, but this release reads version"
                f" {VERSION}: use the release that wrote it"
            )
        try:
            return json.loads(metadata["state"])
        except (KeyError, ValueError):
            raise self._foreign("its metadata has no readable state") from None

    def _check_entry(self, name: str, spec: Any) -> tuple[str, tuple[int, ...], int, int]:
        try:
            dtype, shape, (begin, end) = spec["dtype"], tuple(spec["shape"]), spec["data_offsets"]
            sound = 0 <= begin <= end and end - begin == ITEM_BYTES[dtype] * math.prod(shape)
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound:
            raise CheckpointUnreadable(
                f"{self.label} describes {name!r} as {spec!r}, which makes no sense: it is damaged"
            )
        return dtype, shape, begin, end

    def _check_size(self) -> None:
        expected = self._start + max((end for _, _, _, end in self._entries.values()), default=0)
        found = self._file.seek(0, os.SEEK_END)
        if found != expected:
            kind = "truncated" if found < expected else "damaged"
            raise CheckpointUnreadable(
                f"{self.label} has {found} bytes, but its header says {expected}: the file is {kind}"
            )

    def _foreign(self, why: str) -> CheckpointUnreadable:
        return CheckpointUnreadable(f"{self.label} is not a checkpoint of cerebro-spark: {why}")


class MemorySource:
    """Entries of a live model as a source, so that one built model can take over another's state."""

    def __init__(self, entries: Sequence[Entry], meta: Any) -> None:
        self._entries = {entry.name: entry for entry in entries}
        self.meta = meta
        self.label = "the built model"

    def names(self) -> Sequence[str]:
        return list(self._entries)

    def spec(self, name: str) -> tuple[str, tuple[int, ...]]:
        if name not in self._entries:
            raise CheckpointError(f"the model has no array {name!r}: it has another structure")
        return self._entries[name].dtype, self._entries[name].shape

    def read(self, name: str) -> bytearray:
        return bytearray(self._entries[name].data())

    def read_into(self, name: str, buffer: memoryview) -> None:
        if self._entries[name].nbytes:
            buffer.cast("B")[:] = self._entries[name].data().cast("B")
