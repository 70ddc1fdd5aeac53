"""Seeds, and the generators of Python and NumPy that a checkpoint carries. It chooses no seed by itself."""

from __future__ import annotations

import hashlib
import json
import random

import numpy as np

from cerebro_spark.trainer.checkpoints.tree import Tree

_NUMPY_FIELDS = ("kind", "keys", "position", "has_gauss", "cached")


def derive_seed(*parts: object) -> int:
    """Return a 32-bit seed, the same on every machine for the same parts.

    >>> derive_seed(7, "t3") == derive_seed(7, "t3") != derive_seed(7, "t4")
    True
    """
    text = json.dumps([str(part) for part in parts])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def seed_host(seed: int) -> None:
    """Seed Python's and NumPy's global generators."""
    random.seed(seed)
    np.random.seed(seed)


def capture_host() -> Tree:
    """Return the states of Python's and NumPy's global generators, as plain values and arrays."""
    version, words, gauss = random.getstate()
    python = {"version": version, "words": np.array(words, dtype=np.uint32), "gauss": gauss}
    return {"python": python, "numpy": dict(zip(_NUMPY_FIELDS, np.random.get_state(legacy=True), strict=True))}


def restore_host(tree: Tree) -> None:
    """Put both generators into the states that `capture_host` returned.

    >>> state = capture_host()
    >>> first = random.random()
    >>> restore_host(state)
    >>> random.random() == first
    True
    """
    python, numpy_ = tree["python"], tree["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(tuple(numpy_[field] for field in _NUMPY_FIELDS))
