"""Units of Keras models, on TensorFlow or PyTorch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.base import Hooks, Params, Resources
from cerebro_spark.trainer.checkpoints.arrays import StateArray, wrap_numpy
from cerebro_spark.trainer.checkpoints.randomness import capture_host, restore_host
from cerebro_spark.trainer.checkpoints.tree import Tree
from cerebro_spark.trainer.feed import Array, Batch, Columns, Feed
from cerebro_spark.trainer.group import Group, Meeting
from cerebro_spark.trainer.group_checks import FINE_ROUNDING, Probe
from cerebro_spark.trainer.keras.backend import BACKEND, Pass, make_backend
from cerebro_spark.trainer.keras.built_model import (
    BuiltKerasModel,
    check_model,
    default_generator,
    fresh_build,
    is_generator,
    wrap_variable,
)
from cerebro_spark.trainer.keras.group_probe import probe_model
from cerebro_spark.trainer.keras.group_rules import refuse_in_group
from cerebro_spark.trainer.keras.inspection import KerasInspector, take_keras_snapshot
from cerebro_spark.trainer.keras.libraries import KERAS_LIBRARIES
from cerebro_spark.trainer.keras.metrics import finish_metrics, read_metrics, start_metrics
from cerebro_spark.trainer.keras.ownership import note_built, refuse_shared
from cerebro_spark.trainer.keras.signature import compute_model_signature
from cerebro_spark.trainer.label_rules import LabelRule
from cerebro_spark.trainer.shares import Step
from cerebro_spark.trainer.sharing.hooks import own_params
from cerebro_spark.trainer.sharing.inspection import Inspector
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot
from cerebro_spark.types import Metrics

if TYPE_CHECKING or BACKEND == "torch":
    from cerebro_spark.trainer.keras.stacked.training import KerasBundling
else:
    # On TensorFlow the trials of a bundle are trained one by one.
    from cerebro_spark.trainer.group_training import GroupTraining as KerasBundling


class KerasTrainer(KerasBundling):
    """Trains what `model_fn` returns as a compiled Keras model.

    >>> from cerebro_spark.trainer import ColumnSpec
    >>> from cerebro_spark.types import Unit
    >>> def model_fn(params):
    ...     model = keras.Sequential([keras.layers.Dense(1)])
    ...     model.compile(optimizer=keras.optimizers.SGD(params["lr"]), loss="mse")
    ...     return model
    >>> columns = Columns({"x": ColumnSpec("float32", (4,))}, {"y": ColumnSpec("float32")})
    >>> trainer = KerasTrainer(Hooks(model_fn), columns)
    >>> trainer.build("t1", {"lr": 0.1})
    >>> feed = Feed({"x": np.ones((8, 4), "float32"), "y": np.ones(8, "float32")}, batch_size=4)
    >>> sorted(trainer.train(Unit("t1", 1, "train-00000"), feed).values())
    ['loss']
    """

    framework = f"keras-{BACKEND}"
    _remedy = (
        "is no variable of the model: use `self.add_weight(..., trainable=False)`, so that it hops with the checkpoint"
        " (of optimizers only the compiled one does), set it in model_fn, or undo it before the unit ends"
    )

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        strategy = (resources or Resources()).strategy
        if strategy not in ("auto", "plain"):
            raise ConfigurationError(
                f"strategy is {strategy!r}, but Keras models train by 'plain' alone: leave it out, or build the"
                " model with PyTorch"
            )
        self._backend = make_backend(columns, resources or Resources())
        super().__init__(hooks, columns, seed=seed, resources=resources)

    @property
    def traces(self) -> int:
        """How many graphs were traced."""
        return self._backend.traces

    def forget(self, key: str) -> None:
        self._backend.forget(key)

    # Building

    def _claim_resources(self) -> None:
        self._backend.claim()
        self.on_gpu = not self._backend.is_on_host

    def _libraries(self) -> Mapping[str, Any]:
        return {**KERAS_LIBRARIES, **self._backend.libraries}

    def _build(self, params: Params, seed: int) -> BuiltKerasModel:
        policy = None if self.resources.precision is None else f"mixed_{self.resources.precision}"
        with fresh_build(policy):
            keras.utils.set_random_seed(seed)
            model = check_model(self.hooks.model_fn(own_params(params)))
            refuse_shared(model)
            built = BuiltKerasModel(model, self.columns, self._sample(params))
            built.default_seed.assign(np.array([0, seed], dtype="uint32"))
            built.settings = self._backend.capture_settings()
            note_built(model)
            return built

    def _sign(self, model: BuiltKerasModel) -> str:
        signature = compute_model_signature(model.model)
        return f"{signature} with {model.settings}" if model.settings else signature

    def _take_snapshot(self, model: BuiltKerasModel) -> ObjectSnapshot:
        return take_keras_snapshot(model.model, model.default_seed)

    def _make_inspector(self) -> Inspector:
        return KerasInspector()

    # The steps of a unit

    def _label_rules(self, model: BuiltKerasModel) -> Mapping[str, LabelRule]:
        return model.label_rules

    def _begin_unit(self, model: BuiltKerasModel, training: bool) -> None:
        self._backend.begin_unit()
        function = self.hooks.train_fn if training else self.hooks.eval_fn
        if function is not None or model.model.run_eagerly:
            self._backend.seed_function(model)

    def _train(self, model: BuiltKerasModel, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics:
        return self._run(model, "train", feed, carried)

    def _evaluate(self, model: BuiltKerasModel, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics:
        return self._run(model, "test", feed, carried)

    def _run(
        self, model: BuiltKerasModel, kind: Pass, feed: Feed | Iterable[Batch], carried: Metrics | None
    ) -> Metrics:
        model.model.reset_metrics()
        start_metrics(model.metrics, carried)
        default_generator()
        self._backend.run(model, kind, feed)
        return read_metrics(model.steps.list_measured(kind))

    # Groups

    def _refuse_in_group(self, model: BuiltKerasModel) -> str | None:
        return refuse_in_group(model)

    def _computes_narrow(self, model: BuiltKerasModel) -> bool:
        layers = model.model._flatten_layers()
        return any(str(layer.compute_dtype) in ("float16", "bfloat16") for layer in layers)

    def _probe(self, model: BuiltKerasModel, batch: Batch, training: bool) -> Probe:
        def describe() -> str:
            return self._describe_generators() + model.describe_generators()

        default_generator()
        return probe_model(model, self._backend, batch, training, describe)

    def _join(self, meeting: Meeting) -> Group:
        return self._backend.join(meeting)

    def _seed_member(self, model: BuiltKerasModel, seed: int) -> None:
        keras.utils.set_random_seed(seed)
        model.seed_generators(seed)

    def _is_drawn(self, name: str) -> bool:
        return is_generator(name)

    def _train_share(
        self, model: BuiltKerasModel, feed: Feed | Iterable[Batch], steps: Sequence[Step], group: Group
    ) -> Metrics:
        model.model.reset_metrics()
        default_generator()
        taken, batches = self._backend.make_grouped_steps(model, group), iter(feed)
        for step in steps:
            taken.take_share(next(batches) if step.rows else None, step)
        self._loss_parts = taken.loss_parts
        return read_metrics(model.metrics)

    def _find_inexact(self, model: BuiltKerasModel) -> str:
        return self._loss_parts.find_difference(self._rounding(model))

    def _rounding(self, model: BuiltKerasModel) -> float:
        exact = self._backend.is_on_host and not self._computes_narrow(model)
        return FINE_ROUNDING if exact else super()._rounding(model)

    def _predict(self, model: BuiltKerasModel, batches: Iterable[Batch]) -> Iterator[dict[str, Array]]:
        for batch in batches:
            output = model.model.predict_on_batch(model.inputs(batch))
            if isinstance(output, list | tuple):
                yield dict(zip(model.model.output_names, output, strict=True))
            else:
                yield output if isinstance(output, dict) else {"prediction": output}

    def _finish(self, model: BuiltKerasModel, metrics: Metrics) -> dict[str, float]:
        return finish_metrics(model.metrics, metrics)

    # The state

    def _wrap_array(self, name: str, leaf: Any) -> StateArray | None:
        return wrap_variable(name, leaf) or wrap_numpy(name, leaf)

    def _capture_generators(self) -> Tree:
        return {**capture_host(), **self._backend.capture_generators()}

    def _restore_generators(self, tree: Tree) -> None:
        restore_host(tree)
        self._backend.restore_generators(tree)

    def _versions(self) -> dict[str, str]:
        versions = {name: str(sys.modules[name].__version__) for name in ("keras", BACKEND, "numpy")}
        return {**versions, "threads": str(self.resources.threads or os.cpu_count())}
