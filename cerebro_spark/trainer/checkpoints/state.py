"""A trial's state, a tree of plain values and arrays, as named arrays plus JSON. What is neither it refuses."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from cerebro_spark.errors import CheckpointError
from cerebro_spark.trainer.checkpoints.file import Entry, Source

Tree = Any

NUMPY_TAGS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
TAG_NAMES = {tag: name for name, tag in NUMPY_TAGS.items()}

_FITS = "a checkpoint fits only the architecture that wrote it"
_LARGE = 32 << 20
_PLAIN = (str, bool, int, float, type(None))


def flatten(tree: Tree, entry_of: Callable[[str, Any], Entry | None]) -> tuple[Any, list[Entry]]:
    """Cut `tree` into JSON and entries; `entry_of(name, leaf)` makes the entry of an array, or says None.

    >>> json, entries = flatten({"lr": 0.1, "m": np.zeros(2)}, numpy_entry)
    >>> json, [entry.name for entry in entries]
    ({'lr': 0.1, 'm': {'$array': 'm'}}, ['m'])
    """
    entries: list[Entry] = []
    return _flatten(tree, "", entry_of, entries), entries


def _flatten(tree: Tree, path: str, entry_of: Callable[[str, Any], Entry | None], out: list[Entry]) -> Any:
    if isinstance(tree, np.generic):
        tree = tree.item()
    if isinstance(tree, _PLAIN):
        return tree
    if isinstance(tree, Counter):
        return {"$counter": _flatten(dict(tree), path, entry_of, out)}
    if isinstance(tree, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in tree):
            return {key: _flatten(value, _join(path, key), entry_of, out) for key, value in tree.items()}
        keys = [_flatten(key, path, entry_of, out) for key in tree]
        return {
            "$items": [
                [k, _flatten(v, _join(path, k), entry_of, out)] for k, v in zip(keys, tree.values(), strict=True)
            ]
        }
    if isinstance(tree, list | tuple):
        items = [_flatten(value, _join(path, index), entry_of, out) for index, value in enumerate(tree)]
        return items if isinstance(tree, list) else {"$tuple": items}
    entry = entry_of(path, tree)
    if entry is None:
        raise CheckpointError(
            f"the state at {path!r} is {tree!r} of type {type(tree).__name__}, which a checkpoint cannot hold: keep"
            " only arrays, numbers, strings, None, and dicts, lists and tuples of them"
        )
    out.append(entry)
    return {"$array": entry.name}


def unflatten(json: Any, array_of: Callable[[str], Any]) -> Tree:
    """The tree again; `array_of(name)` gives the arrays."""
    if isinstance(json, list):
        return [unflatten(value, array_of) for value in json]
    if not isinstance(json, dict):
        return json
    if "$array" in json:
        return array_of(json["$array"])
    if "$tuple" in json:
        return tuple(unflatten(value, array_of) for value in json["$tuple"])
    if "$counter" in json:
        return Counter(unflatten(json["$counter"], array_of))
    if "$items" in json:
        return {unflatten(key, array_of): unflatten(value, array_of) for key, value in json["$items"]}
    return {key: unflatten(value, array_of) for key, value in json.items()}


def numpy_entry(name: str, leaf: Any) -> Entry | None:
    """The entry of a NumPy array, or None for anything else."""
    if not isinstance(leaf, np.ndarray) or str(leaf.dtype) not in NUMPY_TAGS:
        return None
    array: np.ndarray[Any, Any] = leaf
    return Entry(name, NUMPY_TAGS[str(array.dtype)], tuple(array.shape), lambda: numpy_bytes(array))


def numpy_bytes(array: np.ndarray[Any, Any]) -> memoryview:
    """The array's own memory as bytes (a copy only where it is not contiguous)."""
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


def numpy_array(source: Source, name: str) -> np.ndarray[Any, Any]:
    """Read an array as NumPy's; bfloat16 and float8 need the ml_dtypes package, which Keras brings."""
    tag, shape = source.spec(name)
    dtype = numpy_dtype(TAG_NAMES[tag])
    # NumPy's memory comes in huge pages and is not cleared first: half the time of a bytearray for large arrays.
    raw: Any = np.empty(math.prod(shape) * dtype.itemsize, np.uint8)
    source.read_into(name, memoryview(raw))
    array: np.ndarray[Any, Any] = raw.view(dtype).reshape(shape)
    return array


def numpy_arrays(source: Source, names: Sequence[str]) -> Iterator[np.ndarray[Any, Any]]:
    """These arrays one after another; of a large source the next is read while the one before is used.

    Nobody else may read from the source until the last one has come.
    """
    size = sum(math.prod(shape) * numpy_dtype(TAG_NAMES[tag]).itemsize for tag, shape in map(source.spec, names))
    if size < _LARGE:
        yield from (numpy_array(source, name) for name in names)
        return
    with ThreadPoolExecutor(1, "read-ahead") as reading:
        ahead = reading.submit(numpy_array, source, names[0])
        for name in names[1:]:
            array, ahead = ahead.result(), reading.submit(numpy_array, source, name)
            yield array
        yield ahead.result()


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of that name, ml_dtypes' for those that NumPy itself does not know."""
    if name.startswith(("bfloat16", "float8")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def check_same(source: Source, name: str, tag: str, shape: Sequence[int]) -> None:
    """Raise CheckpointError unless the source's array is of this dtype and shape."""
    found_tag, found_shape = source.spec(name)
    if (found_tag, found_shape) != (tag, tuple(shape)):
        raise CheckpointError(
            f"{name!r} is {found_tag} of shape {list(found_shape)} in {source.label}, but {tag} of shape {list(shape)}"
            f" in the model: {_FITS}"
        )


def check_names(source: Source, prefix: str, own: Iterable[str]) -> None:
    """Raise CheckpointError unless the source's arrays under `prefix` are just the model's."""
    found = {name.removeprefix(prefix) for name in source.names() if name.startswith(prefix)}
    wanted = set(own)
    for names, where in ((found - wanted, "in the file only"), (wanted - found, "in the model only")):
        if names:
            few = ", ".join(repr(name) for name in sorted(names)[:5])
            raise CheckpointError(
                f"{source.label} was written by a model of another structure: {few} (of {len(names)}) under {prefix!r}"
                f" is {where}; {_FITS}"
            )


def check_fact(source: Source, what: str, found: Any, own: Any) -> None:
    """Raise CheckpointError unless what the source says of its writer is true of this model."""
    if found != own:
        raise CheckpointError(f"the {what} is {found} in {source.label}, but {own} in the model: {_FITS}")


def _join(path: str, key: object) -> str:
    return f"{path}/{key}" if path else str(key)
