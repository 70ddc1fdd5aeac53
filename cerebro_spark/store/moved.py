"""Unpickling of recipes, saved searches and saved trials, of this and of earlier versions.

They name classes by module: modules that have moved since are found at their new place. The table has the modules whose
classes such pickles hold; it only grows. Classes that travel by value, such as those of a notebook, are made anew.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

from cloudpickle import cloudpickle

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


_MAKERS = ("_make_skeleton_class", "_make_skeleton_enum")


class Unpickler(pickle.Unpickler):
    """A pickle.Unpickler that knows where the modules of this package have moved to, and changes no class.

    cloudpickle takes a class that was pickled by value in this process for the one to unpickle, and overwrites its
    methods. A notebook's class would then use the notebook's functions as they were, even once they are defined anew.
    """

    def find_class(self, module: str, name: str) -> Any:
        """Return the class or function `name` of `module`, as both are called now."""
        if module == cloudpickle.__name__ and name in _MAKERS:
            return partial(_make_class, getattr(cloudpickle, name))
        current = current_module(module)
        return super().find_class(current, _RENAMED.get((current.removeprefix(_PACKAGE), name), name))


def _make_class(make: Callable[..., type], *arguments: Any) -> type:
    """Make a class by cloudpickle's function, without the number under which it knows one of this process."""
    *definition, _, extra = arguments
    return make(*definition, None, extra)


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
