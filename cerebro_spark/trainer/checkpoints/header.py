"""The header of a checkpoint file: that of safetensors, with our metadata. It reads and writes no array."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from cerebro_spark.errors import CheckpointError, CheckpointUnreadable
from cerebro_spark.trainer.checkpoints.arrays import ITEM_BYTES, StateArray

FORMAT = "cerebro-spark checkpoint"
VERSION = 1
_MAX_HEADER_BYTES = 100_000_000


class ArraySpan(NamedTuple):
    """An array in a file: its dtype tag and shape, and its first and end byte, counted from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """What the header of a checkpoint says.

    Attributes:
        meta: The JSON part of the training state.
        rest_digest: The digest of what the state's digest does not count; None in files of older releases.
        spans: The arrays, in the order of the file.
        size: The length of the header in bytes, after which the arrays begin.
    """

    meta: Any
    rest_digest: str | None
    spans: Mapping[str, ArraySpan]
    size: int


def encode_header(arrays: Sequence[StateArray], meta: Any, rest_digest: str) -> bytes:
    """Return the header of a file that has these arrays. Raises CheckpointError if two have the same name."""
    state = json.dumps(meta, separators=(",", ":"))
    metadata = {"format": FORMAT, "version": str(VERSION), "state": state, "beside": rest_digest}
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for array in arrays:
        if array.name in header:
            raise CheckpointError(f"two arrays of one checkpoint are named {array.name!r}: names must differ")
        offsets = [offset, offset + array.nbytes]
        header[array.name] = {"dtype": array.dtype, "shape": list(array.shape), "data_offsets": offsets}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def read_header(file: BinaryIO, label: str) -> Header:
    """Read the header and check that the file has the size it says.

    Raises CheckpointUnreadable, with `label` as the name of the file, for anything that is not a whole checkpoint of
    this format version.
    """
    fields, size = _read_fields(file, label)
    metadata = fields.pop("__metadata__", None)
    meta = _read_state(metadata, label)
    spans = {name: _read_span(name, spec, label) for name, spec in fields.items()}
    _check_size(file, size + max((span.end for span in spans.values()), default=0), label)
    return Header(meta, metadata.get("beside"), spans, size)


def _read_fields(file: BinaryIO, label: str) -> tuple[dict[str, Any], int]:
    file.seek(0)
    prefix = file.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if not 2 <= length <= _MAX_HEADER_BYTES:
        raise _foreign(label, "it does not begin as a safetensors file does")
    text = file.read(length)
    if len(text) < length:
        raise CheckpointUnreadable(f"{label} ends inside its header: the file is truncated")
    try:
        fields = json.loads(text)
    except ValueError:
        raise _foreign(label, "its header is not JSON") from None
    if not isinstance(fields, dict):
        raise _foreign(label, "its header is not a JSON object")
    return fields, 8 + length


def _read_state(metadata: Any, label: str) -> Any:
    if not isinstance(metadata, Mapping) or metadata.get("format") != FORMAT:
        raise _foreign(label, "it is a safetensors file that something else wrote")
    if metadata.get("version") != str(VERSION):
        raise CheckpointUnreadable(
            f"{label} has checkpoint format version {metadata.get('version')}, but this release reads version"
            f" {VERSION}: use the release that wrote it"
        )
    try:
        return json.loads(metadata["state"])
    except (KeyError, ValueError):
        raise _foreign(label, "its metadata has no readable state") from None


def _read_span(name: str, spec: Any, label: str) -> ArraySpan:
    try:
        dtype, shape, (begin, end) = spec["dtype"], tuple(spec["shape"]), spec["data_offsets"]
        sound = 0 <= begin <= end and end - begin == ITEM_BYTES[dtype] * math.prod(shape)
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise CheckpointUnreadable(f"{label} describes {name!r} as {spec!r}, which makes no sense: it is damaged")
    return ArraySpan(dtype, shape, begin, end)


def _check_size(file: BinaryIO, expected: int, label: str) -> None:
    found = file.seek(0, os.SEEK_END)
    if found != expected:
        kind = "truncated" if found < expected else "damaged"
        raise CheckpointUnreadable(f"{label} has {found} bytes, but its header says {expected}: the file is {kind}")


def _foreign(label: str, why: str) -> CheckpointUnreadable:
    return CheckpointUnreadable(f"{label} is not a checkpoint of cerebro-spark: {why}")
