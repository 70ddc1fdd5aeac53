"""Model Hopper Parallelism on Spark: find a good deep-learning model where the data lives.

The public names are loaded when they are first used, so that `import cerebro_spark` loads neither Spark nor TensorFlow,
PyTorch or Petastorm, and works where they are not installed.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cerebro_spark._version import __version__

# Nothing is logged unless the program asks for it; `logging.basicConfig()` is enough.
logging.getLogger(__name__).addHandler(logging.NullHandler())

_NAMES = {
    "backend.local": ("LocalBackend",),
    "backend.simulated": ("SimulatedBackend",),
    "backend.spark": ("SparkBackend",),
    "data.dataset": ("Dataset",),
    "data.foreign": ("open_dataset",),
    "data.prepare": ("prepare",),
    "result": ("Result", "load_result"),
    "store.opening": ("open_store",),
    "trainer.resources": ("Resources",),
    "trainer.torch.model": ("TorchModel",),
    "tune.past_runs": ("attach", "replay", "resume"),
    "tune.searches": ("ASHA", "GridSearch", "Hyperband", "PBT", "RandomSearch", "TPESearch"),
    "tune.trackers": ("CSVTracker", "MLflowTracker", "TensorBoardTracker"),
}
_HOMES = {name: f"cerebro_spark.{home}" for home, names in _NAMES.items() for name in names}
_MODULES = {"hp": "cerebro_spark.tune.hp"}

__all__ = ["__version__", *_HOMES, *_MODULES]

if TYPE_CHECKING:
    from cerebro_spark.backend.local import LocalBackend as LocalBackend
    from cerebro_spark.backend.simulated import SimulatedBackend as SimulatedBackend
    from cerebro_spark.backend.spark import SparkBackend as SparkBackend
    from cerebro_spark.data.dataset import Dataset as Dataset
    from cerebro_spark.data.foreign import open_dataset as open_dataset
    from cerebro_spark.data.prepare import prepare as prepare
    from cerebro_spark.result import Result as Result
    from cerebro_spark.result import load_result as load_result
    from cerebro_spark.store.opening import open_store as open_store
    from cerebro_spark.trainer.resources import Resources as Resources
    from cerebro_spark.trainer.torch.model import TorchModel as TorchModel
    from cerebro_spark.tune import hp as hp
    from cerebro_spark.tune.past_runs import attach as attach
    from cerebro_spark.tune.past_runs import replay as replay
    from cerebro_spark.tune.past_runs import resume as resume
    from cerebro_spark.tune.searches import ASHA as ASHA
    from cerebro_spark.tune.searches import PBT as PBT
    from cerebro_spark.tune.searches import GridSearch as GridSearch
    from cerebro_spark.tune.searches import Hyperband as Hyperband
    from cerebro_spark.tune.searches import RandomSearch as RandomSearch
    from cerebro_spark.tune.searches import TPESearch as TPESearch
    from cerebro_spark.tune.trackers import CSVTracker as CSVTracker
    from cerebro_spark.tune.trackers import MLflowTracker as MLflowTracker
    from cerebro_spark.tune.trackers import TensorBoardTracker as TensorBoardTracker


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = import_module(_MODULES[name])
    elif name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'cerebro_spark' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
