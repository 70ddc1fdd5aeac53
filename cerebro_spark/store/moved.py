"""Unpickling of what earlier versions wrote: modules that have moved since are found at their new place.

Recipes, saved searches and saved trials name classes by module. This table only grows: an old name is never used again.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

_PACKAGE = "cerebro_spark."
_MOVED = {
    "data.arrow": "data.formats.arrow",
    "data.batches": "data.shuffling",
    "data.cache": "data.loading.cache",
    "data.cache_root": "data.loading.cache_root",
    "data.cells": "data.input.cells",
    "data.columns": "data.input.columns",
    "data.deal": "data.partitioning.planning",
    "data.findings": "data.loading.arrays",
    "data.frames": "data.input.local",
    "data.images": "data.input.encoded",
    "data.leftovers": "data.partitioning.dataset_writer",
    "data.load": "data.loading.arrays",
    "data.order": "data.partitioning.spec",
    "data.petastorm": "data.formats.petastorm",
    "data.planning": "data.partitioning.planning",
    "data.private": "data.loading.private_folder",
    "data.rows": "data.partitioning.records",
    "data.shipping": "data.cluster",
    "data.staging": "data.partitioning.staging",
    "data.unischema": "data.formats.unischema",
    "data.validity": "data.manifest",
    "replay": "replays",
    "trainer.batch_keys": "trainer.hook_results",
    "trainer.blame": "trainer.unit_errors",
    "trainer.checkpoint": "trainer.checkpoints.reading",
    "trainer.choice": "trainer.frameworks",
    "trainer.footprint": "trainer.sharing.snapshot",
    "trainer.hooks": "trainer.sharing.hooks",
    "trainer.keras": "trainer.keras.trainer",
    "trainer.keras_footprint": "trainer.keras.inspection",
    "trainer.keras_metrics": "trainer.keras.metrics",
    "trainer.keras_resident": "trainer.keras.built_model",
    "trainer.keras_shapes": "trainer.keras.shapes",
    "trainer.keras_structure": "trainer.keras.signature",
    "trainer.outcomes": "trainer.hook_results",
    "trainer.randomness": "trainer.checkpoints.randomness",
    "trainer.resident": "trainer.sharing.built_model",
    "trainer.state": "trainer.checkpoints.arrays",
    "trainer.structure": "trainer.sharing.signature",
    "trainer.torch": "trainer.torch.trainer",
    "trainer.torch_device": "trainer.torch.device",
    "trainer.torch_footprint": "trainer.torch.inspection",
    "trainer.torch_losses": "trainer.torch.losses",
    "trainer.torch_metric_states": "trainer.torch.metric_states",
    "trainer.torch_metrics": "trainer.torch.metrics",
    "trainer.torch_model": "trainer.torch.model",
    "trainer.torch_resident": "trainer.torch.built_model",
    "trainer.torch_returns": "trainer.torch.model_checks",
    "trainer.torch_shapes": "trainer.torch.shapes",
    "trainer.torch_structure": "trainer.torch.signature",
    "trainer.users_code": "trainer.sharing.user_code",
    "tune.algorithm": "tune.algorithms.base",
    "tune.bare": "tune.spaces.bare",
    "tune.dimensions": "tune.spaces.dimensions",
    "tune.grid": "tune.algorithms.grid",
    "tune.halving": "tune.algorithms.halving",
    "tune.hyperopt_search": "tune.plugins.hyperopt_search",
    "tune.led": "tune.plugins.led",
    "tune.pbt": "tune.algorithms.pbt",
    "tune.random": "tune.algorithms.random",
    "tune.space": "tune.spaces.space",
    "tune.stopping": "tune.algorithms.stopping",
    "tune.tpe": "tune.algorithms.tpe",
}


class Unpickler(pickle.Unpickler):
    """A pickle.Unpickler that knows where the modules of this package have moved to."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the class or function `name` of `module`, as that module is called now."""
        return super().find_class(current_module(module), name)


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
