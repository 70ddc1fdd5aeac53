"""The functions and classes of Keras that all models of a process share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from cerebro_spark.trainer.sharing.patches import list_classes, name_modules

KERAS_LIBRARIES: Mapping[str, Any] = {
    **name_modules([keras, keras.activations, keras.initializers, keras.layers, keras.losses, keras.ops]),
    **list_classes(keras.layers, keras.layers.Layer),
    **list_classes(keras.losses, keras.losses.Loss),
    **list_classes(keras.optimizers, keras.optimizers.Optimizer),
    "keras.Model": keras.Model,
}
"""By name."""
