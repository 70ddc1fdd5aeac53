"""Models of keras.applications, without weights, on both of Keras' backends. Nothing here loads a framework."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from specimen import CLASSES, Specimen

# One or two of each family; behind the name the side of the image where the architecture does not allow 32. The others
# only repeat the same blocks more often.
APPLICATIONS = (
    "ConvNeXtTiny", "DenseNet121", "EfficientNetB0", "EfficientNetB1", "EfficientNetV2B0", "EfficientNetV2B1",
    "InceptionResNetV2-75", "InceptionV3-75", "MobileNet", "MobileNetV2", "MobileNetV3Large", "MobileNetV3Small",
    "NASNetMobile", "ResNet50", "ResNet50V2", "VGG16", "Xception-71",
)  # fmt: skip
# The functions behind them, each with the fewest blocks it can have.
SHORT: dict[str, dict[str, Any]] = {
    "convnext.ConvNeXt": {"depths": [1] * 4, "projection_dims": [8, 8, 16, 16], "drop_path_rate": 0.2},
    "densenet.DenseNet": {"blocks": [1, 1, 1, 1]},
    "efficientnet.EfficientNet": {"width_coefficient": 0.25, "depth_coefficient": 0.1, "default_size": 32},
    "efficientnet_v2.EfficientNetV2": {
        "width_coefficient": 0.25,
        "depth_coefficient": 0.1,
        "default_size": 32,
        "name": "efficientnetv2-b0",
    },
    "mobilenet.MobileNet": {"alpha": 0.25, "dropout": 0.2},
    "mobilenet_v2.MobileNetV2": {"alpha": 0.35},
    "nasnet.NASNet": {"penultimate_filters": 96, "num_blocks": 1, "stem_block_filters": 8},
}
# Compiled once more by XLA, as Keras does by default; for all of them that takes too long.
COMPILED = {"densenet.DenseNet"}


def application(name: str, side: int, options: dict[str, Any]) -> Callable[[Any], Any]:
    """The whole model with its own head for a few classes, and the layers that prepare pixels where it has some."""

    def model_fn(params: Any) -> Any:
        import keras

        file, _, short = name.rpartition(".")
        place = importlib.import_module(f"keras.src.applications.{file}") if file else keras.applications
        model = getattr(place, short)(weights=None, classes=CLASSES, input_shape=(side, side, 3), **options)
        optimizer = keras.optimizers.SGD(params["lr"], momentum=0.9)
        loss = "sparse_categorical_crossentropy"
        jit = "auto" if name in COMPILED else False
        model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"], jit_compile=jit)
        return model

    return model_fn


def _specimen(label: str, backend: str, options: dict[str, Any]) -> tuple[str, Specimen]:
    name, _, side = label.partition("-")
    make = application(name, int(side or 32), options)
    return f"keras.{name} on {backend}", Specimen(make, f"pixels-{side or 32}")


def _table(backend: str) -> dict[str, Specimen]:
    every: dict[str, dict[str, Any]] = {**{label: {} for label in APPLICATIONS}, **SHORT}
    return dict(_specimen(label, backend, options) for label, options in every.items())


ON_TENSORFLOW = _table("tensorflow")
# Keras itself does not build these on PyTorch.
ON_TORCH = {name: one for name, one in _table("torch").items() if "NASNet" not in name}
