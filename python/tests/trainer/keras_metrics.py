"""All metrics of Keras in models of its own. It runs in a process with one backend, and asserts nothing."""

from __future__ import annotations

import inspect
from typing import Any

import keras
from trainer_data import columns, feed

from cerebro_spark.trainer import Hooks
from cerebro_spark.trainer.keras.trainer import KerasTrainer
from cerebro_spark.types import Unit

# What has no value of labels and outputs, or is for others to subclass.
APART = {"Metric", "Mean", "Sum", "MeanMetricWrapper"}
NEEDED: dict[str, dict[str, Any]] = {
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "IoU": {"num_classes": 3, "target_class_ids": [0]},
    "MeanIoU": {"num_classes": 3},
    "OneHotIoU": {"num_classes": 3, "target_class_ids": [0]},
    "OneHotMeanIoU": {"num_classes": 3},
    "TopKCategoricalAccuracy": {"k": 2},
    "SparseTopKCategoricalAccuracy": {"k": 2},
}
OF_CLASSES = {"SparseCategoricalAccuracy", "SparseTopKCategoricalAccuracy", "SparseCategoricalCrossentropy"}


def names() -> list[str]:
    """The classes of metrics, without those that are the same under another name."""
    classes = {kind: name for name, kind in vars(keras.metrics).items() if inspect.isclass(kind)}
    return sorted(set(classes.values()) - APART)


def measure(sparse: bool) -> list[str]:
    """The names of what a model with all metrics of one kind of labels measured, after a trained unit."""
    chosen = [name for name in names() if (name in OF_CLASSES) == sparse]

    def model_fn(params: Any) -> Any:
        model = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
        metrics = [getattr(keras.metrics, name)(name=name, **NEEDED.get(name, {})) for name in chosen]
        loss = "sparse_categorical_crossentropy" if sparse else "categorical_crossentropy"
        model.compile(optimizer="sgd", loss=loss, metrics=metrics)
        return model

    data = "classes" if sparse else "onehot"
    trainer = KerasTrainer(Hooks(model_fn), columns(data), seed=7)
    trainer.build("t1", {})
    trainer.train(Unit("t1", 1, "0"), feed(data, 0))
    found = trainer.finish(trainer.evaluate(Unit("t1", 1, "1", "eval"), feed(data, 1)))
    return [name for name in chosen if any(key.startswith(name) for key in found)]
