"""Spaces and searches, as users call them. Importing it loads neither Spark nor Hyperopt.

The searches are loaded when they are first used.

>>> from cerebro_spark.tune import GridSearch, hp
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["ASHA", "PBT", "GridSearch", "Hyperband", "RandomSearch", "TPESearch"]

if TYPE_CHECKING:
    from cerebro_spark.tune.searches import ASHA as ASHA
    from cerebro_spark.tune.searches import PBT as PBT
    from cerebro_spark.tune.searches import GridSearch as GridSearch
    from cerebro_spark.tune.searches import Hyperband as Hyperband
    from cerebro_spark.tune.searches import RandomSearch as RandomSearch
    from cerebro_spark.tune.searches import TPESearch as TPESearch


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'cerebro_spark.tune' has no attribute {name!r}")
    return getattr(import_module("cerebro_spark.tune.searches"), name)
