"""What a Keras model makes of a batch, and of its parts, before a group trains it. It takes no step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras.src import backend as keras_backend

from cerebro_spark.trainer.feed import Array, Batch
from cerebro_spark.trainer.group import GroupRefused
from cerebro_spark.trainer.group_checks import Probe
from cerebro_spark.trainer.keras.backend import KerasBackend
from cerebro_spark.trainer.keras.built_model import BuiltKerasModel
from cerebro_spark.trainer.keras.group_rules import is_of_keras
from cerebro_spark.trainer.keras.metrics import read_metrics
from cerebro_spark.types import Metrics


def probe_model(
    model: BuiltKerasModel,
    backend: KerasBackend,
    batch: Batch,
    training: bool,
    describe_generators: Callable[[], str],
) -> Probe:
    """Return what a model makes of a batch; its statistics and the generators may be others afterwards.

    Args:
        model: The built model.
        backend: Makes tensors, and computes gradients.
        batch: The batch.
        training: Whether it is in training. Metrics are not computed then, and gradients only if nothing is drawn at
            random: dropout makes them others.
        describe_generators: Returns a text that is another one once random numbers were drawn.

    Raises:
        GroupRefused: Something about the model that shows when it runs, and that no comparison would find.
    """
    before = describe_generators()
    forward = _Forward(model, backend.load(batch), training)
    backend.set_mode(model, training)
    gradients = backend.differentiate(forward.compute_scaled_loss, model.model.trainable_variables)
    backend.set_mode(model, False)
    drawn = describe_generators() != before
    _refuse_what_shows(forward, drawn)
    loss = keras.ops.convert_to_numpy(forward.loss)
    return Probe(
        [np.array(keras.ops.convert_to_numpy(part)) for part in keras.tree.flatten(forward.output)],
        float(loss),
        _join(gradients) if gradients and not (training and drawn) else None,
        {variable.path: np.array(variable.numpy()) for variable in model.list_statistics()},
        Metrics() if training else forward.measure(),
        [float(np.sum(keras.ops.convert_to_numpy(term))) for term in model.model.losses],
    )


class _Forward:
    """One pass of a model over a batch.

    Args:
        model: The model.
        tensors: The batch.
        training: Whether in training.

    Attributes:
        output: What the model gives, once the loss was computed.
        loss: The loss.
    """

    def __init__(self, model: BuiltKerasModel, tensors: dict[str, Any], training: bool) -> None:
        self.output: Any = None
        self.loss: Any = None
        self.model = model
        self.training = training
        self._x, self._y, self._weight = (*model.pack(tensors), None)[:3]
        self._rows = len(next(iter(tensors.values())))

    def compute_scaled_loss(self) -> Any:
        """Return what is differentiated. It does what Keras' `train_step` and `test_step` do, up to there."""
        own = self.model.model
        own.reset_metrics()
        self.model.rows = self._rows
        self.output = own(self._x, training=self.training) if own._call_has_training_arg else own(self._x)
        given = {"x": self._x, "y": self._y, "y_pred": self.output, "sample_weight": self._weight}
        self.loss = own._compute_loss(**given, training=self.training)
        self.model.rows = None
        if len(keras.ops.shape(self.loss)):
            raise GroupRefused("its loss is more than one number for a batch")
        return own.optimizer.scale_loss(self.loss)

    def measure(self) -> Metrics:
        """Return the metrics of the batch."""
        own = self.model.model
        own._loss_tracker.update_state(self.loss, sample_weight=self._rows)
        own.compute_metrics(self._x, self._y, self.output, sample_weight=self._weight)
        measured = read_metrics(self.model.metrics)
        own.reset_metrics()
        return measured


def _refuse_what_shows(forward: _Forward, drawn: bool) -> None:
    """Raise GroupRefused for what no comparison of a batch with its parts would find.

    Args:
        forward: A pass of the model.
        drawn: Whether random numbers were drawn in it.
    """
    own = forward.model.model
    if any(_mask_of(part) is not None for part in keras.tree.flatten(forward.output)):
        raise GroupRefused("its outputs have a mask, by which the loss of a batch is divided: it is no mean over rows")
    if not (forward.training and drawn):
        return
    # Only the loss outside of training was tried by parts then.
    adding = [layer for layer in own._flatten_layers() if layer._losses and not is_of_keras(type(layer))]
    if adding:
        raise GroupRefused(
            f"its {type(adding[0]).__name__} {adding[0].name!r} adds a loss (add_loss), which cannot be tried on parts"
            " of a batch since random numbers are drawn while training"
        )
    if own._compute_loss_has_training_arg and not is_of_keras(own.compute_loss):
        raise GroupRefused(
            "its compute_loss has an argument `training`, and cannot be tried on parts of a batch since random numbers"
            " are drawn while training: leave that argument out if the loss is always the same"
        )


def _mask_of(tensor: Any) -> Any:
    find = getattr(keras_backend, "get_keras_mask", None)
    return getattr(tensor, "_keras_mask", None) if find is None else find(tensor)


def _join(gradients: list[Array | None]) -> Array | None:
    """Return the gradients by all variables in one piece; None if there are none."""
    there = [gradient.reshape(-1) for gradient in gradients if gradient is not None]
    return np.concatenate(there).astype(np.float64) if there else None
