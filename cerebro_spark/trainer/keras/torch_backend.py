"""Keras on PyTorch: units step by step."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import keras
import torch

from cerebro_spark.trainer.feed import Batch, Feed
from cerebro_spark.trainer.keras.backend import KerasBackend, Pass
from cerebro_spark.trainer.keras.built_model import BuiltKerasModel
from cerebro_spark.trainer.torch.device import capture_torch, claim_torch_device, restore_torch
from cerebro_spark.trainer.torch.libraries import TORCH_LIBRARIES
from cerebro_spark.trainer.torch.settings import Settings, capture_settings, restore_settings

# The scopes of claimed devices, open as long as the process lives: a scope that is freed gives its device back.
_SCOPES = ExitStack()


class TorchBackend(KerasBackend):
    """Runs the steps of a model batch by batch."""

    libraries = TORCH_LIBRARIES

    def claim(self) -> None:
        device = claim_torch_device(self._resources)
        if self._resources.device != "auto":
            # Without a scope Keras uses the first GPU.
            _SCOPES.enter_context(keras.device(str(device)))

    def begin_unit(self) -> None:
        torch.set_grad_enabled(True)

    def run(self, model: BuiltKerasModel, kind: Pass, feed: Feed | Iterable[Batch]) -> None:
        own = model.model
        own.train(kind == "train")
        # The function of a pass exists once its maker was called.
        getattr(own, f"make_{kind}_function")()
        function = getattr(own, f"{kind}_function")
        for batch in feed:
            tensors = {name: keras.ops.convert_to_tensor(batch[name]) for name in self._columns.names}
            rows = len(next(iter(tensors.values())))
            model.steps.take(kind, lambda data: function([data]), model.pack(tensors), rows)
        own.eval()

    def capture_generators(self) -> dict[str, Any]:
        return {**capture_torch(), **capture_settings()}

    def restore_generators(self, tree: Any) -> None:
        super().restore_generators(tree)
        restore_settings(tree)
        restore_torch(tree)

    def capture_settings(self) -> Settings:
        return capture_settings()
