"""Refuses Keras models that share with an earlier one what training changes. It changes nothing itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from cerebro_spark.trainer.checkpoints.arrays import view_bytes
from cerebro_spark.trainer.earlier_builds import BuiltArray, EarlierBuilds

_REMEDY = (
    "Build that part in model_fn, or copy it there: keras.models.clone_model(base), then"
    " set_weights(base.get_weights()) on the copy. A part that nothing changes (trainable=False) may be shared"
)


def compute_fingerprint(variable: Any) -> str:
    """Return a text that is another one for other values."""
    return xxhash.xxh3_128(view_bytes(np.asarray(variable.numpy()))).hexdigest()


_BUILDS = EarlierBuilds(compute_fingerprint, _REMEDY)


def refuse_shared(model: Any) -> None:
    """Raise ConfigurationError if a model shares with an earlier one what is trained, or what has changed."""
    _BUILDS.refuse_shared(_list_variables(model))


def note_built(model: Any) -> None:
    """Remember the variables of a model that was built."""
    _BUILDS.note(_list_variables(model))


def _list_variables(model: Any) -> Iterator[BuiltArray]:
    """Yield the variables of a model and of its optimizer, except for those of metrics, which begin anew each time."""
    measuring = {id(variable) for variable in model.metrics_variables}
    trained = {id(variable) for variable in model.trainable_variables}
    for variable in model.variables:
        if id(variable) not in measuring:
            yield BuiltArray(variable.path, variable, id(variable) in trained)
    for variable in model.optimizer.variables:
        yield BuiltArray(variable.path, variable, True)
