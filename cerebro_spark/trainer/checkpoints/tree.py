"""Converts a training state, a tree of plain values and arrays, to JSON plus named arrays, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from cerebro_spark.errors import CheckpointError
from cerebro_spark.trainer.checkpoints.arrays import StateArray

Tree = Any
Wrap = Callable[[str, Any], StateArray | None]
"""Returns the array of the state for a leaf of the tree, or None if the leaf is no array."""

_PLAIN = (str, bool, int, float, type(None))


def flatten(tree: Tree, wrap: Wrap) -> tuple[Any, list[StateArray]]:
    """Split `tree` into JSON and arrays.

    Raises CheckpointError for a leaf that is neither a plain value nor an array.

    >>> from cerebro_spark.trainer.checkpoints.arrays import wrap_numpy
    >>> json, arrays = flatten({"lr": 0.1, "m": np.zeros(2)}, wrap_numpy)
    >>> json, [array.name for array in arrays]
    ({'lr': 0.1, 'm': {'$array': 'm'}}, ['m'])
    """
    arrays: list[StateArray] = []
    return _flatten(tree, "", wrap, arrays), arrays


def _flatten(tree: Tree, path: str, wrap: Wrap, out: list[StateArray]) -> Any:
    if isinstance(tree, np.generic):
        tree = tree.item()
    if isinstance(tree, _PLAIN):
        return tree
    if isinstance(tree, Counter):
        return {"$counter": _flatten(dict(tree), path, wrap, out)}
    if isinstance(tree, dict):
        return _flatten_dict(tree, path, wrap, out)
    if isinstance(tree, list | tuple):
        items = [_flatten(value, _join(path, index), wrap, out) for index, value in enumerate(tree)]
        return items if isinstance(tree, list) else {"$tuple": items}
    array = wrap(path, tree)
    if array is None:
        raise CheckpointError(
            f"the state at {path!r} is {tree!r} of type {type(tree).__name__}, which a checkpoint cannot hold: keep"
            " only arrays, numbers, strings, None, and dicts, lists and tuples of them"
        )
    out.append(array)
    return {"$array": array.name}


def _flatten_dict(tree: dict[Any, Any], path: str, wrap: Wrap, out: list[StateArray]) -> Any:
    """JSON has string keys only, and "$" marks our own: a dict with other keys becomes a list of pairs."""
    if all(isinstance(key, str) and not key.startswith("$") for key in tree):
        return {key: _flatten(value, _join(path, key), wrap, out) for key, value in tree.items()}
    keys = [_flatten(key, path, wrap, out) for key in tree]
    return {"$items": [[k, _flatten(v, _join(path, k), wrap, out)] for k, v in zip(keys, tree.values(), strict=True)]}


def unflatten(json: Any, array_of: Callable[[str], Any]) -> Tree:
    """Return the tree of this JSON; `array_of(name)` returns its arrays."""
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


def _join(path: str, key: object) -> str:
    return f"{path}/{key}" if path else str(key)
