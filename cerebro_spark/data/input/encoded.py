"""Encoded cells: images and saved NumPy arrays, as Petastorm's codecs keep them. It decodes and never encodes."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.input.columns import Codec, SourceType
from cerebro_spark.errors import DataError, MissingDependency

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_NPY = b"\x93NUMPY"
_ZIP = b"PK\x03\x04"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3}
_MODES = {"uint8": {2: "L", 3: "RGB"}, "uint16": {2: "I;16"}}


def probe(data: bytes) -> SourceType:
    """What an encoded cell holds, from its header alone; DataError if it is none that we know.

    >>> probe(b"hello")
    Traceback (most recent call last):
    ...
    cerebro_spark.errors.DataError: not a PNG or JPEG image, nor a saved NumPy array
    """
    try:
        if data.startswith(_PNG):
            return _probe_png(data)
        if data.startswith(_JPEG):
            return _probe_jpeg(data)
        if data.startswith(_NPY):
            return _probe_npy(io.BytesIO(data), "ndarray")
        if data.startswith(_ZIP):
            with zipfile.ZipFile(io.BytesIO(data)) as archive, archive.open(archive.namelist()[0]) as member:
                return _probe_npy(io.BytesIO(member.read()), "compressed_ndarray")
    except (struct.error, IndexError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"a damaged header: {error}") from error
    raise DataError("not a PNG or JPEG image, nor a saved NumPy array")


def decode(data: bytes, codec: Codec, into: NDArray[Any]) -> None:
    """Decode one cell into its place; DataError if it does not fit there."""
    if codec == "image":
        found = _decode_image(data, into)
    else:
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
        found = loaded if codec == "ndarray" else loaded[loaded.files[0]]
    if found.shape != into.shape or not np.can_cast(found.dtype, into.dtype, "same_kind"):
        raise DataError(f"holds {found.dtype} of shape {found.shape} where {into.dtype} of {into.shape} is expected")
    into[...] = found


def _decode_image(data: bytes, like: NDArray[Any]) -> NDArray[Any]:
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise MissingDependency("images need Pillow: pip install 'cerebro-spark[images]'") from error
    mode = _MODES.get(like.dtype.name, {}).get(like.ndim)
    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image if mode is None or image.mode == mode else image.convert(mode))
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise DataError(f"cannot be decoded: {error}") from error


def _probe_png(data: bytes) -> SourceType:
    width, height, depth, kind = struct.unpack_from(">IIBB", data, 16)
    channels = _PNG_CHANNELS.get(kind)
    if channels is None:
        raise DataError("a PNG with an alpha channel: convert it to RGB or to grey")
    if depth == 16 and channels == 3:
        raise DataError("a PNG of 16 bits a channel: convert it to 8 bits")
    dtype = "uint16" if depth == 16 else "uint8"
    return SourceType(dtype, (height, width) if channels == 1 else (height, width, channels), "image")


def _probe_jpeg(data: bytes) -> SourceType:
    at = 2
    while True:
        marker, length = struct.unpack_from(">HH", data, at)
        # SOF0..SOF15 hold the size; C4, C8 and CC are tables that share their range.
        if 0xFFC0 <= marker <= 0xFFCF and marker not in (0xFFC4, 0xFFC8, 0xFFCC):
            height, width, channels = struct.unpack_from(">HHB", data, at + 5)
            if channels not in (1, 3):
                raise DataError(f"a JPEG of {channels} channels: convert it to RGB or to grey")
            return SourceType("uint8", (height, width) if channels == 1 else (height, width, 3), "image")
        at += 2 + length


def _probe_npy(file: io.BytesIO, codec: Codec) -> SourceType:
    npy: Any = np.lib.format
    read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    if dtype.kind not in "fiub":
        raise DataError(f"a NumPy array of {dtype}: use numbers or booleans")
    return SourceType(dtype.name, tuple(shape), codec)
