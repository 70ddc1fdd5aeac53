"""Model Hopper Parallelism on Spark: find a good deep-learning model where the data lives.

The public names are loaded when they are first used, so that `import cerebro_spark` loads neither Spark nor TensorFlow,
PyTorch or Petastorm, and works where they are not installed.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cerebro_spark._version import __version__

# Nothing is said unless a program asks for it: `logging.basicConfig()` is enough.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_HOMES = {
    "Dataset": "cerebro_spark.data.dataset",
    "LocalBackend": "cerebro_spark.backend.local",
    "SimulatedBackend": "cerebro_spark.backend.simulated",
    "SparkBackend": "cerebro_spark.backend.spark",
    "TorchModel": "cerebro_spark.trainer.torch_model",
    "open_dataset": "cerebro_spark.data.foreign",
    "open_store": "cerebro_spark.store.opening",
    "prepare": "cerebro_spark.data.prepare",
}

__all__ = ["__version__", *_HOMES]

if TYPE_CHECKING:
    from cerebro_spark.backend.local import LocalBackend as LocalBackend
    from cerebro_spark.backend.simulated import SimulatedBackend as SimulatedBackend
    from cerebro_spark.backend.spark import SparkBackend as SparkBackend
    from cerebro_spark.data.dataset import Dataset as Dataset
    from cerebro_spark.data.foreign import open_dataset as open_dataset
    from cerebro_spark.data.prepare import prepare as prepare
    from cerebro_spark.store.opening import open_store as open_store
    from cerebro_spark.trainer.torch_model import TorchModel as TorchModel


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cerebro_spark' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
