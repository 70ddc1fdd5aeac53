"""Which trials can be expected to have models of one structure: those that differ in real numbers only. PURE.

It never looks at a model. Whether the models can be computed together is found out by the worker that builds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def kin_of(params: Mapping[str, Any]) -> str:
    """Return a text that is equal for trials which differ in real numbers only.

    Whole numbers, truth values and strings mostly choose a structure: a number of layers, an activation. A batch size
    does so too, whichever kind of number it is.

    Args:
        params: The params of a trial.

    >>> kin_of({"lr": 0.1, "units": 64}) == kin_of({"units": 64, "lr": 0.2})
    True
    >>> kin_of({"lr": 0.1, "units": 64}) == kin_of({"lr": 0.1, "units": 32})
    False
    """
    return _shape({name: repr(value) if name == "batch_size" else value for name, value in params.items()})


def _shape(value: Any) -> str:
    if isinstance(value, float):
        return "#"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name!r}:{_shape(item)}" for name, item in sorted(value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[{','.join(map(_shape, value))}]"
    return repr(value)
