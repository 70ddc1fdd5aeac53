"""Unpickling of what earlier versions wrote: modules that have moved since are found at their new place.

Recipes, saved searches and saved trials name classes by module. The table has the modules
whose classes such pickles hold; it only grows.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

_PACKAGE = "cerebro_spark."
_MOVED = {
    "data.columns": "data.input.columns",
    "replay": "replays",
    "trainer.hooks": "trainer.sharing.hooks",
    "trainer.keras": "trainer.keras.trainer",
    "trainer.torch": "trainer.torch.trainer",
    "trainer.torch_model": "trainer.torch.model",
    "tune.algorithm": "tune.algorithms.base",
    "tune.algorithms.grid": "tune.algorithms.fixed",
    "tune.algorithms.random": "tune.algorithms.fixed",
    "tune.bare": "tune.spaces.bare",
    "tune.dimensions": "tune.spaces.dimensions",
    "tune.grid": "tune.algorithms.fixed",
    "tune.halving": "tune.algorithms.halving",
    "tune.hyperopt_search": "tune.plugins.hyperopt_search",
    "tune.led": "tune.plugins.led",
    "tune.pbt": "tune.algorithms.pbt",
    "tune.random": "tune.algorithms.fixed",
    "tune.space": "tune.spaces.space",
    "tune.stopping": "tune.algorithms.stopping",
    "tune.tpe": "tune.algorithms.tpe",
}


# By the module as it is called now and the old name: the name in that module now.
_RENAMED = {
    ("events", "Course"): "TrialScript",
    ("events", "Measured"): "EvaluatedEpoch",
    ("replays", "Asked"): "RequestedWork",
    ("replays", "Script"): "RunScript",
}


class Unpickler(pickle.Unpickler):
    """A pickle.Unpickler that knows where the modules of this package have moved to."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class or function `name` of `module`, as both are called now."""
        current = current_module(module)
        return super().find_class(current, _RENAMED.get((current.removeprefix(_PACKAGE), name), name))


def loads(data: bytes) -> Any:
    """Unpickle `data`, written by this or an earlier version.

    Args:
        data: The bytes of the pickle. They run code as they are unpickled: trust their source.

    Returns:
        The value.
    """
    return Unpickler(io.BytesIO(data)).load()


def current_module(module: str) -> str:
    """Return the present name of a module that may have moved.

    Args:
        module: A full module name, of this package or of any other.

    Returns:
        The name under which the module can be imported now.
    """
    if not module.startswith(_PACKAGE):
        return module
    inside = module.removeprefix(_PACKAGE)
    return _PACKAGE + _MOVED.get(inside, inside)
