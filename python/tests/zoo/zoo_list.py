"""All models of the zoo by name, and the framework that trains them. Nothing here loads a framework."""

from __future__ import annotations

import keras_models
import language_models
import optimizer_models
import timm_models
import trap_models
import vision_models

TORCH = {
    **vision_models.SPECIMENS,
    **timm_models.SPECIMENS,
    **language_models.SPECIMENS,
    **optimizer_models.SPECIMENS,
    **trap_models.SPECIMENS,
}
KERAS = {"keras-tensorflow": keras_models.ON_TENSORFLOW, "keras-torch": keras_models.ON_TORCH}
BY_FRAMEWORK = {"torch": TORCH, **KERAS}
SPECIMENS = {name: one for table in BY_FRAMEWORK.values() for name, one in table.items()}
