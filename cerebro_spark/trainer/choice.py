"""Which trainer a search needs, seen from what `model_fn` returns. It loads the one framework that is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.base import Hooks, Trainer
from cerebro_spark.trainer.torch_model import TorchModel


def choose_trainer(hooks: Hooks, params: Mapping[str, Any], framework: str = "auto") -> type[Trainer]:
    """The class of trainer for `framework`, or for what `model_fn(params)` returns if that is "auto"."""
    if framework == "auto":
        framework = "torch" if isinstance(hooks.model_fn(params), TorchModel) else "keras"
    if framework == "torch":
        from cerebro_spark.trainer.torch import TorchTrainer

        return TorchTrainer
    if framework == "keras":
        from cerebro_spark.trainer.keras import KerasTrainer

        return KerasTrainer
    raise ConfigurationError(f"`framework` is {framework!r}, but must be 'auto', 'keras' or 'torch'")
