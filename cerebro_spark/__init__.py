"""Model Hopper Parallelism on Spark: find a good deep-learning model where the data lives.

The public names are loaded when they are first used, so that `import cerebro_spark` loads neither Spark nor TensorFlow,
PyTorch or Petastorm, and works where they are not installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cerebro_spark._version import __version__

_HOMES = {
    "SimulatedBackend": "cerebro_spark.backend.simulated",
}

__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:
    from cerebro_spark.backend.simulated import SimulatedBackend as SimulatedBackend


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cerebro_spark' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
