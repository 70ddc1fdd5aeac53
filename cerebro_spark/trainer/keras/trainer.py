"""Units of Keras models, on TensorFlow as one graph a unit, on PyTorch step by step. It never traces a model twice."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.base import Hooks, Params, Resources, Trainer
from cerebro_spark.trainer.checkpoints.file import Entry
from cerebro_spark.trainer.checkpoints.randomness import Tree, capture_host, restore_host
from cerebro_spark.trainer.checkpoints.state import numpy_entry
from cerebro_spark.trainer.feed import Array, Batch, Columns, Feed
from cerebro_spark.trainer.keras.footprint import KerasLook, keras_footprint
from cerebro_spark.trainer.keras.metrics import finish_metrics, read_metrics, start_metrics
from cerebro_spark.trainer.keras.resident import (
    KerasResident,
    check_model,
    default_generator,
    fresh_build,
    keras_entry,
)
from cerebro_spark.trainer.keras.structure import model_signature
from cerebro_spark.trainer.sharing.footprint import Footprint, Look
from cerebro_spark.trainer.sharing.resident import Resident
from cerebro_spark.types import Metrics

BACKEND = keras.backend.backend()
if BACKEND == "tensorflow":
    import tensorflow as tf
elif BACKEND == "torch":
    import torch

    from cerebro_spark.trainer.torch.device import claim_torch
else:
    raise ConfigurationError(
        f"Keras runs on {BACKEND!r} here, but units run on 'tensorflow' or 'torch': set KERAS_BACKEND to one of them"
    )

_GPU_DATA = 8 << 30
# Of devices that were claimed, kept for as long as the process lives: one that is let go gives its device back.
_SCOPES: list[Any] = []


class KerasTrainer(Trainer):
    """Trains what `model_fn` returns as a compiled Keras model.

    >>> from cerebro_spark.trainer import ColumnSpec, Columns, Hooks
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

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        self._kept: dict[str, tuple[Mapping[str, Array], dict[str, Any]]] = {}
        super().__init__(hooks, columns, seed=seed, resources=resources)

    def _claim_resources(self) -> None:
        if BACKEND == "tensorflow":
            claim_tensorflow(self.resources)
            return
        device = claim_torch(self.resources)
        if self.resources.device != "auto":
            # Without it Keras takes the first GPU there is.
            _SCOPES.append(keras.device(str(device)))
            _SCOPES[-1].__enter__()

    def _build(self, params: Params, seed: int) -> tuple[Resident, Tree]:
        outer = self._capture()
        policy = None if self.resources.precision is None else f"mixed_{self.resources.precision}"
        try:
            with fresh_build(policy):
                keras.utils.set_random_seed(seed)
                model = check_model(self.hooks.model_fn(params))
                resident = KerasResident(model, self.columns, self._sample(params))
                resident.default_seed.assign(np.array([0, seed], dtype="uint32"))
                return resident, self._capture()
        finally:
            self._restore(outer)

    def _signature(self, resident: Resident) -> str:
        return model_signature(_own(resident).model)

    def _footprint(self, resident: Resident) -> Footprint:
        own = _own(resident)
        return keras_footprint(own.model, own.default_seed)

    def _look(self) -> Look:
        return KerasLook()

    @property
    def _remedy(self) -> str:
        return (
            "is no variable of the model: use `self.add_weight(..., trainable=False)`, so that it hops with the"
            " checkpoint, set it in model_fn, or undo it before the unit ends"
        )

    def _users(self, resident: Resident) -> Any:
        return _own(resident).model

    def _train(self, resident: Resident, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics:
        own = _own(resident)
        own.model.reset_metrics()
        start_metrics(own.metrics, carried)
        self._run(own, "train", feed)
        return read_metrics(own.metrics)

    def _evaluate(self, resident: Resident, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics:
        own = _own(resident)
        own.model.reset_metrics()
        start_metrics(own.metrics, carried)
        self._run(own, "test", feed)
        return read_metrics(own.metrics)

    def _predict(self, resident: Resident, batches: Iterable[Batch]) -> Iterator[dict[str, Array]]:
        own = _own(resident)
        for batch in batches:
            output = own.model.predict_on_batch(own.inputs(batch))
            if isinstance(output, list | tuple):
                yield dict(zip(own.model.output_names, output, strict=True))
            else:
                yield output if isinstance(output, dict) else {"prediction": output}

    def _finish(self, resident: Resident, metrics: Metrics) -> dict[str, float]:
        return finish_metrics(_own(resident).metrics, metrics)

    def _run(self, own: KerasResident, kind: str, feed: Feed | Iterable[Batch]) -> None:
        """One pass of `train_step` or `test_step` over the feed."""
        default_generator()
        if BACKEND == "torch":
            self._run_torch(own, kind, feed)
        elif isinstance(feed, Feed) and not own.model.run_eagerly:
            arrays = self._tensors(feed)
            cut = tf.constant([feed.batch_size, min(feed.smallest, feed.batch_size)], tf.int64)
            self._graph(own, f"{kind} unit", arrays)(arrays, tf.constant(feed.order), cut)
        else:
            for batch in feed:
                tensors = {name: tf.convert_to_tensor(batch[name]) for name in self.columns.names}
                self._graph(own, f"{kind} batch", tensors)(tensors)

    def _tensors(self, feed: Feed) -> dict[str, Any]:
        """The feed's arrays as tensors, kept between units while all that are kept fit into the budget."""
        arrays, kept = self._kept.get(feed.key, (None, {}))
        if feed.key and arrays is feed.arrays:
            return kept
        self._kept.pop(feed.key, None)
        tensors = {name: tf.convert_to_tensor(feed.arrays[name]) for name in self.columns.names}
        held = sum(sum(a.nbytes for a in arrays.values()) for arrays, _ in self._kept.values())
        if feed.key and held + feed.nbytes <= self._budget():
            self._kept[feed.key] = (feed.arrays, tensors)
        return tensors

    def _budget(self) -> int:
        if self.resources.data_memory is not None:
            return self.resources.data_memory
        return _GPU_DATA if tf.config.list_logical_devices("GPU") else 0

    def forget(self, key: str) -> None:
        self._kept.pop(key, None)

    def _graph(self, own: KerasResident, kind: str, arrays: dict[str, Any]) -> Any:
        """The traced function for arrays of these dtypes and row shapes, whatever their number of rows."""
        specs = {name: tf.TensorSpec([None, *array.shape[1:]], array.dtype) for name, array in arrays.items()}
        key = f"{kind} {specs}"
        if key not in own.graphs:
            own.graphs[key] = (
                self._unit_graph(own, kind, specs) if "unit" in kind else self._batch_graph(own, kind, specs)
            )
        return own.graphs[key]

    def _unit_graph(self, own: KerasResident, kind: str, specs: dict[str, Any]) -> Any:
        """Gather and step, batch after batch, without coming back to Python: a third of the time of `fit`."""
        step = self._step(own, kind)

        def unit(arrays: dict[str, Any], order: Any, cut: Any) -> None:
            self.traces += 1
            rows = tf.shape(order, out_type=tf.int64)[0]

            def body(start: Any) -> Any:
                stop = start + cut[0]
                stop = tf.where(rows - stop < cut[1], rows, stop)  # as `batch_sizes` has it
                chosen = order[start:stop]
                own.rows = tf.shape(chosen)[0]
                step(own.pack({name: tf.gather(array, chosen) for name, array in arrays.items()}))
                return stop

            tf.while_loop(lambda start: start < rows, body, [tf.constant(0, tf.int64)], parallel_iterations=1)
            own.rows = None

        signature = [specs, tf.TensorSpec([None], tf.int64), tf.TensorSpec([2], tf.int64)]
        return tf.function(unit, input_signature=signature, autograph=False)

    def _batch_graph(self, own: KerasResident, kind: str, specs: dict[str, Any]) -> Any:
        step = self._step(own, kind)

        def batch(arrays: dict[str, Any]) -> None:
            self.traces += 1
            own.rows = tf.shape(next(iter(arrays.values())))[0]
            step(own.pack(arrays))
            own.rows = None

        if own.model.run_eagerly:
            return batch
        return tf.function(batch, input_signature=[specs], autograph=False)

    def _step(self, own: KerasResident, kind: str) -> Any:
        step = own.model.train_step if kind.startswith("train") else own.model.test_step
        return tf.function(step, jit_compile=True, reduce_retracing=True) if own.model.jit_compile else step

    def _run_torch(self, own: KerasResident, kind: str, feed: Feed | Iterable[Batch]) -> None:
        model = own.model
        model.train(kind == "train")
        make = model.make_train_function if kind == "train" else model.make_test_function
        make()
        function = model.train_function if kind == "train" else model.test_function
        for batch in feed:
            tensors = {name: keras.ops.convert_to_tensor(batch[name]) for name in self.columns.names}
            function([own.pack(tensors)])
        model.eval()

    def _entry(self, name: str, leaf: Any) -> Entry | None:
        return keras_entry(name, leaf) or numpy_entry(name, leaf)

    def _capture(self) -> Tree:
        tree = capture_host()
        if BACKEND == "torch":
            tree["torch"] = torch.get_rng_state().numpy()
        return tree

    def _restore(self, tree: Tree) -> None:
        restore_host(tree)
        if BACKEND == "torch":
            torch.set_rng_state(torch.from_numpy(np.array(tree["torch"])))

    def _versions(self) -> dict[str, str]:
        own = tf if BACKEND == "tensorflow" else torch
        threads = str(self.resources.threads or os.cpu_count())
        return {"keras": keras.__version__, BACKEND: own.__version__, "numpy": np.__version__, "threads": threads}


def claim_tensorflow(resources: Resources) -> None:
    """Set TensorFlow's threads and devices; it takes them only before its first use in a process."""
    threads = resources.threads
    wanted = [] if threads is None else [("intra", threads), ("inter", threads)]
    for name, count in wanted:
        module = tf.config.threading
        if getattr(module, f"get_{name}_op_parallelism_threads")() == count:
            continue
        try:
            getattr(module, f"set_{name}_op_parallelism_threads")(count)
        except RuntimeError as error:
            raise ConfigurationError(
                f"threads={count} comes too late: TensorFlow was used in this process before the trainer was made"
            ) from error
    gpus = tf.config.list_physical_devices("GPU")
    if resources.device == "cpu":
        gpus = []
        tf.config.set_visible_devices([], "GPU")
    elif resources.device not in ("auto", "cpu"):
        index = int(resources.device.rpartition(":")[2]) if ":" in resources.device else 0
        gpus = gpus[index : index + 1]
        if not gpus:
            raise ConfigurationError(
                f"device is {resources.device!r}, but TensorFlow sees no such GPU: use device='cpu'"
            )
        tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)


def _own(resident: Resident) -> KerasResident:
    assert isinstance(resident, KerasResident)
    return resident
