"""Gives objects of Keras other methods for a while. It knows none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, methods: Mapping[str, Any]) -> Iterator[None]:
    """Give an object other methods for a block."""
    own = vars(owner)  # not by setattr: Keras tracks what is set
    before = {name: own[name] for name in methods if name in own}
    own.update(methods)
    try:
        yield
    finally:
        for name in methods:
            own.pop(name)
        own.update(before)
