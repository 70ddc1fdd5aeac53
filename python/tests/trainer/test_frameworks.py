"""The framework is seen from the code of `model_fn`, without calling it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.spec import choose_trainer, detect_framework
from cerebro_spark.trainer.torch.model import TorchModel


def with_torch(params: dict[str, Any]) -> Any:
    import torch

    return TorchModel(torch.nn.Linear(1, 1), None, torch.nn.MSELoss())


def with_keras(params: dict[str, Any]) -> Any:
    import keras

    return keras.Sequential()


def with_tensorflow(params: dict[str, Any]) -> Any:
    from tensorflow import keras

    return keras.Sequential()


def through_another(params: dict[str, Any]) -> Any:
    return with_keras(params)


def keras_on_torch(params: dict[str, Any]) -> Any:
    import keras
    import torch

    return keras.Sequential([torch.nn.Linear(1, 1)])


def neither(params: dict[str, Any]) -> Any:
    return params["model"]


class Builder:
    def __call__(self, params: dict[str, Any]) -> Any:
        return with_torch(params)

    def build(self, params: dict[str, Any]) -> Any:
        return with_keras(params)


def closing_over(make: Any) -> Any:
    return lambda params: make(params)


@pytest.mark.parametrize(
    ("model_fn", "framework"),
    [
        (with_torch, "torch"),
        (with_keras, "keras"),
        (with_tensorflow, "keras"),
        (through_another, "keras"),
        (keras_on_torch, "keras"),
        (partial(with_torch), "torch"),
        (Builder(), "torch"),
        (Builder().build, "keras"),
        (closing_over(with_keras), "keras"),
    ],
)
def test_the_code_tells(model_fn: Any, framework: str) -> None:
    assert detect_framework(model_fn) == framework


def test_what_is_not_clear_must_be_said() -> None:
    with pytest.raises(ConfigurationError, match="framework='keras' or framework='torch'"):
        detect_framework(neither)
    with pytest.raises(ConfigurationError, match="'jax', but must be"):
        choose_trainer(neither, "jax")
