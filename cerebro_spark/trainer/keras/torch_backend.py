"""Keras on PyTorch: units step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import keras
import torch
from keras.src.backend.torch.core import get_device

from cerebro_spark.trainer.feed import Array, Batch, Feed
from cerebro_spark.trainer.group import Group, GroupRefused, Meeting
from cerebro_spark.trainer.keras.backend import KerasBackend, Pass
from cerebro_spark.trainer.keras.built_model import BuiltKerasModel
from cerebro_spark.trainer.torch.device import capture_torch, claim_torch_device, restore_torch
from cerebro_spark.trainer.torch.libraries import TORCH_LIBRARIES
from cerebro_spark.trainer.torch.settings import Settings, capture_settings, restore_settings

if TYPE_CHECKING:
    from cerebro_spark.trainer.keras.torch_shares import TorchShares

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
        self.set_mode(model, kind == "train")
        # The function of a pass exists once its maker was called.
        getattr(own, f"make_{kind}_function")()
        function = getattr(own, f"{kind}_function")
        for batch in feed:
            tensors = self.load(batch)
            rows = len(next(iter(tensors.values())))
            model.steps.take(kind, lambda data: function([data]), model.pack(tensors), rows)
        self.set_mode(model, False)

    def load(self, batch: Batch) -> dict[str, Any]:
        return {name: keras.ops.convert_to_tensor(batch[name]) for name in self._columns.names}

    def differentiate(self, compute: Callable[[], Any], variables: Sequence[Any]) -> list[Array | None]:
        weights = [variable.value for variable in variables]
        # cuDNN computes no gradients of recurrent layers outside of training.
        with torch.backends.cudnn.flags(enabled=False):
            value = compute()
            if not weights or not value.requires_grad:
                return []
            gradients = torch.autograd.grad(value, weights, allow_unused=True)
        if any(gradient is not None and gradient.layout != torch.strided for gradient in gradients):
            raise GroupRefused("it has sparse gradients")
        return [None if gradient is None else keras.ops.convert_to_numpy(gradient) for gradient in gradients]

    def set_mode(self, model: BuiltKerasModel, training: bool) -> None:
        model.model.train(training)

    @property
    def is_on_host(self) -> bool:
        return torch.device(get_device()).type == "cpu"

    def join(self, meeting: Meeting) -> Group:
        try:
            from cerebro_spark.trainer.torch.links import join_group
        except (ImportError, AttributeError) as error:
            raise GroupRefused(f"PyTorch has no links between processes here ({error})") from None
        return join_group(meeting, torch.device(get_device()))

    def make_grouped_steps(self, model: BuiltKerasModel, group: Group) -> TorchShares:
        from cerebro_spark.trainer.keras.torch_shares import TorchShares

        return TorchShares(model, group, self)

    def capture_generators(self) -> dict[str, Any]:
        return {**capture_torch(), **capture_settings()}

    def restore_generators(self, tree: Any) -> None:
        super().restore_generators(tree)
        restore_settings(tree)
        restore_torch(tree)

    def capture_settings(self) -> Settings:
        return capture_settings()
