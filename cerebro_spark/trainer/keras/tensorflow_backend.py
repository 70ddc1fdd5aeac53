"""Keras on TensorFlow: a whole unit is one graph. It never traces a graph twice for one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.checkpoints.randomness import derive_seed
from cerebro_spark.trainer.feed import Array, Batch, Columns, Feed
from cerebro_spark.trainer.group import Group, GroupRefused, Meeting
from cerebro_spark.trainer.keras.backend import KerasBackend, Pass
from cerebro_spark.trainer.keras.built_model import BuiltKerasModel
from cerebro_spark.trainer.keras.hidden_randomness import refuse_hidden_randomness
from cerebro_spark.trainer.keras.settings import KERAS_SETTINGS
from cerebro_spark.trainer.keras.shared_tensors import share
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.sharing.patches import name_modules
from cerebro_spark.trainer.sharing.process_settings import SettingTable

if TYPE_CHECKING:
    from cerebro_spark.trainer.keras.tensorflow_shares import TensorFlowShares

# TensorFlow does not say how much GPU memory is free.
_GPU_DATA_BYTES = 8 << 30

_SETTINGS: SettingTable = {
    **KERAS_SETTINGS,
    "tf.config.run_functions_eagerly": (tf.config.functions_run_eagerly, tf.config.run_functions_eagerly),
    "tf.config.experimental.enable_tensor_float_32_execution": (
        tf.config.experimental.tensor_float_32_execution_enabled,
        tf.config.experimental.enable_tensor_float_32_execution,
    ),
}


class TensorFlowBackend(KerasBackend):
    """Runs a feed as one graph, and any other batches by a graph for each."""

    settings = _SETTINGS
    libraries = name_modules([tf, tf.nn, tf.math])

    def __init__(self, columns: Columns, resources: Resources) -> None:
        super().__init__(columns, resources)
        self._kept: dict[str, tuple[Mapping[str, Array], dict[str, Any]]] = {}

    def claim(self) -> None:
        claim_threads(self._resources.threads)
        claim_gpus(self._resources.device)

    def run(self, model: BuiltKerasModel, kind: Pass, feed: Feed | Iterable[Batch]) -> None:
        if isinstance(feed, Feed) and not model.model.run_eagerly:
            arrays = self._to_tensors(feed)
            cut = tf.constant([feed.batch_size, min(feed.smallest, feed.batch_size)], tf.int64)
            self._find_graph(model, f"{kind} unit", arrays)(arrays, tf.constant(feed.order), cut)
            return
        for batch in feed:
            tensors = self.load(batch)
            self._find_graph(model, f"{kind} batch", tensors)(tensors)

    def load(self, batch: Batch) -> dict[str, Any]:
        return {name: tf.convert_to_tensor(batch[name]) for name in self._columns.names}

    def seed_function(self, model: BuiltKerasModel) -> None:
        # `fit` shuffles by TensorFlow's own seed, which the last trial that was built has set.
        steps = int(model.model.optimizer.iterations.numpy())
        tf.random.set_seed(derive_seed(*model.default_seed.numpy().tolist(), steps))

    def forget(self, key: str) -> None:
        self._kept.pop(key, None)

    # Groups

    def differentiate(self, compute: Callable[[], Any], variables: Sequence[Any]) -> list[Array | None]:
        with tf.GradientTape() as tape:
            value = compute()
        gradients = tape.gradient(value, [variable.value for variable in variables])
        return [None if each is None else to_dense(each).numpy() for each in gradients]

    def join(self, meeting: Meeting) -> Group:
        # Not above: PyTorch is loaded with the first group, and not at all without one.
        try:
            import torch

            from cerebro_spark.trainer.torch.links import join_group
        except (ImportError, AttributeError) as error:
            raise GroupRefused(f"PyTorch has no links between processes here ({error})") from None
        if self._resources.threads is not None:
            torch.set_num_threads(self._resources.threads)
        return join_group(meeting, torch.device("cpu"))

    def make_grouped_steps(self, model: BuiltKerasModel, group: Group) -> TensorFlowShares:
        from cerebro_spark.trainer.keras.tensorflow_shares import TensorFlowShares

        return TensorFlowShares(model, group, self)

    # Data

    def _to_tensors(self, feed: Feed) -> dict[str, Any]:
        """Return the arrays of a feed as tensors, kept between units while all of them fit into the budget."""
        arrays, kept = self._kept.get(feed.key, (None, {}))
        if feed.key and arrays is feed.arrays:
            return kept
        self._kept.pop(feed.key, None)
        make = share if self.is_on_host else tf.convert_to_tensor
        tensors = {name: make(feed.arrays[name]) for name in self._columns.names}
        held = sum(sum(a.nbytes for a in arrays.values()) for arrays, _ in self._kept.values())
        if feed.key and held + feed.nbytes <= self._budget():
            self._kept[feed.key] = (feed.arrays, tensors)
        return tensors

    def _budget(self) -> int:
        if self._resources.data_memory is not None:
            return self._resources.data_memory
        return 0 if self.is_on_host else _GPU_DATA_BYTES

    @property
    def is_on_host(self) -> bool:
        return not tf.config.list_logical_devices("GPU")

    # Graphs

    def _find_graph(self, model: BuiltKerasModel, kind: str, arrays: dict[str, Any]) -> Any:
        """Return the traced function for arrays of these dtypes and row shapes, for any number of rows."""
        specs = {name: tf.TensorSpec([None, *array.shape[1:]], array.dtype) for name, array in arrays.items()}
        key = f"{kind} {specs}"
        if key not in model.graphs:
            make = self._make_unit_graph if "unit" in kind else self._make_batch_graph
            graph = make(model, kind, specs)
            if not model.model.run_eagerly:
                refuse_hidden_randomness(graph.get_concrete_function().graph)
            model.graphs[key] = graph
        return model.graphs[key]

    def _make_unit_graph(self, model: BuiltKerasModel, kind: str, specs: dict[str, Any]) -> Any:
        """Gather and step, batch after batch, without coming back to Python: a third of the time of `fit`."""
        step = _make_step(model, kind)

        def unit(arrays: dict[str, Any], order: Any, cut: Any) -> None:
            self.traces += 1
            rows = tf.shape(order, out_type=tf.int64)[0]

            def body(start: Any) -> Any:
                stop = start + cut[0]
                stop = tf.where(rows - stop < cut[1], rows, stop)  # as `batch_sizes` does
                chosen = order[start:stop]
                model.rows = tf.shape(chosen)[0]
                data = model.pack({name: tf.gather(array, chosen) for name, array in arrays.items()})
                model.steps.take(_pass_of(kind), step, data, model.rows)
                return stop

            tf.while_loop(lambda start: start < rows, body, [tf.constant(0, tf.int64)], parallel_iterations=1)
            model.rows = None

        signature = [specs, tf.TensorSpec([None], tf.int64), tf.TensorSpec([2], tf.int64)]
        return tf.function(unit, input_signature=signature, autograph=False)

    def _make_batch_graph(self, model: BuiltKerasModel, kind: str, specs: dict[str, Any]) -> Any:
        step = _make_step(model, kind)

        def batch(arrays: dict[str, Any]) -> None:
            self.traces += 1
            model.rows = tf.shape(next(iter(arrays.values())))[0]
            model.steps.take(_pass_of(kind), step, model.pack(arrays), model.rows)
            model.rows = None

        if model.model.run_eagerly:
            return batch
        return tf.function(batch, input_signature=[specs], autograph=False)


def to_dense(gradient: Any) -> Any:
    """Return a gradient in one piece; that of an embedding is rows of its table.

    >>> rows = tf.IndexedSlices(tf.ones((2, 1)), tf.constant([1, 1]), tf.constant([2, 1]))
    >>> to_dense(rows).numpy().tolist()
    [[0.0], [2.0]]
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])


def _pass_of(kind: str) -> Pass:
    return "train" if kind.startswith("train") else "test"


def _make_step(model: BuiltKerasModel, kind: str) -> Any:
    step = model.model.train_step if _pass_of(kind) == "train" else model.model.test_step
    return tf.function(step, jit_compile=True, reduce_retracing=True) if model.model.jit_compile else step


def claim_threads(threads: int | None) -> None:
    """Set the number of threads; None leaves it to TensorFlow, which takes another only before its first use."""
    if threads is None:
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise ConfigurationError(
            f"threads={threads} comes too late: TensorFlow was used in this process before the trainer was made"
        ) from error


def claim_gpus(device: str) -> None:
    """Make only the GPU of that name visible ("cpu": none, "auto": all), and let its memory grow as it is needed."""
    gpus = tf.config.list_physical_devices("GPU")
    if device != "auto":
        index = int(device.rpartition(":")[2]) if ":" in device else 0
        gpus = [] if device == "cpu" else gpus[index : index + 1]
        if not gpus and device != "cpu":
            raise ConfigurationError(f"device is {device!r}, but TensorFlow sees no such GPU: use device='cpu'")
        tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
