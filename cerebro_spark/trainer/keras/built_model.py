"""A built Keras model that takes on the state of any trial of its architecture. It never calls the user's functions."""

from __future__ import annotations

import functools
import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.random import seed_generator

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.checkpoints.arrays import (
    ITEM_BYTES,
    NUMPY_TAGS,
    StateArray,
    StateSource,
    read_arrays,
    view_bytes,
)
from cerebro_spark.trainer.checkpoints.fit import check_names, check_spec
from cerebro_spark.trainer.checkpoints.randomness import derive_seed
from cerebro_spark.trainer.feed import Batch, Columns
from cerebro_spark.trainer.keras.label_rules import find_label_rules
from cerebro_spark.trainer.keras.metrics import named_metrics
from cerebro_spark.trainer.keras.own_steps import OwnSteps
from cerebro_spark.trainer.keras.shapes import fit_labels
from cerebro_spark.trainer.sharing.built_model import BuiltModel

RETURNS = (
    "model_fn must return a compiled Keras model, for example\n"
    "    model = keras.Sequential([keras.layers.Dense(1, activation='sigmoid')])\n"
    "    model.compile(optimizer=keras.optimizers.Adam(params['lr']), loss='binary_crossentropy')\n"
    "    return model"
)

# About what a traced graph costs.
_GRAPH_BYTES = 32 << 20


class BuiltKerasModel(BuiltModel):
    """A compiled Keras model whose variables all exist, with the graphs that were traced for it."""

    def __init__(self, model: Any, columns: Columns, sample: Batch) -> None:
        self.model = model
        self.columns = columns
        self.sample = sample
        self._dict_inputs = len(columns.inputs) > 1 or isinstance(getattr(model, "input", None), dict)
        self._dict_labels = len(columns.labels) > 1 or isinstance(getattr(model, "output", None), dict)
        inner = getattr(model.optimizer, "inner_optimizer", None)
        optimizers = [model.optimizer] if inner is None else [model.optimizer, inner]
        self._rates = [_make_variables(optimizer) for optimizer in optimizers]
        for optimizer in optimizers:
            _save_as_plain(optimizer, [rates["weight_decay"] for rates in self._rates if "weight_decay" in rates])
        _note_built_layers(model)
        model._symbolic_build(data_batch=self.pack(sample))
        # Users' metrics may have kept symbols.
        model.reset_metrics()
        check_layers(model)
        self.metrics = named_metrics(model)
        self.label_rules = find_label_rules(model, columns.labels)
        fit_labels(model, self.metrics)
        self.steps = OwnSteps(model, self.metrics)
        self.rows: Any = None
        for tracker in getattr(model._compile_loss, "metrics", []):
            self._weigh_by_rows(tracker)
        self.graphs: dict[str, Any] = {}
        self.default_seed = default_generator().state
        self.settings: dict[str, Any] = {}
        """What `model_fn` set otherwise than the process, for its trial."""

    @property
    def nbytes(self) -> int:
        variables = [*self.model.variables, *self.model.optimizer.variables]
        return _GRAPH_BYTES + sum(int(np.prod(v.shape)) * ITEM_BYTES[NUMPY_TAGS[v.dtype]] for v in variables)

    def pack(self, batch: Any) -> Any:
        """Return (x, y) or (x, y, sample_weight), by name if there are several."""
        x, y = self.inputs(batch), _pick(batch, self.columns.labels, self._dict_labels)
        return (x, y, batch[self.columns.weight]) if self.columns.weight else (x, y)

    def inputs(self, batch: Any) -> Any:
        """Return x alone, for predictions."""
        return _pick(batch, self.columns.inputs, self._dict_inputs)

    def _weigh_by_rows(self, tracker: Any) -> None:
        """Let Keras weigh the loss of an output by the rows of the batch, which a graph does not know by itself."""
        update_state = tracker.update_state

        def weighed(value: Any, sample_weight: Any = None) -> Any:
            return update_state(value, sample_weight=self.rows if sample_weight is None else sample_weight)

        tracker.update_state = weighed

    def state(self) -> dict[str, Any]:
        # The numbers in the names keep variables apart and in order.
        groups = {"model": self.model.variables, "optimizer": self.model.optimizer.variables}
        named = {
            f"{group}/{index:04d}-{variable.path.replace('/', '.')}": variable
            for group, variables in groups.items()
            for index, variable in enumerate(variables)
        }
        return {**named, "default_seed": self.default_seed}

    def copy_statistics(self) -> Any:
        return [(variable, np.array(variable.numpy())) for variable in self._statistics()]

    def restore_statistics(self, copies: Any) -> None:
        for variable, value in copies:
            if variable.numpy().tobytes() != value.tobytes():
                variable.assign(value)

    def _statistics(self) -> list[Any]:
        """Statistics, counters and generators: all variables that are not trained and belong to no metric."""
        measuring = {id(variable) for variable in self.model.metrics_variables}
        return [*(v for v in self.model.non_trainable_variables if id(v) not in measuring), self.default_seed]

    def list_statistics(self) -> list[Any]:
        """Return what a step may change besides what is trained, but for generators."""
        return [variable for variable in self._statistics() if not is_generator(variable.path)]

    def seed_generators(self, seed: int) -> None:
        """Have all generators of the model, and the default one, draw from a seed."""
        for index, variable in enumerate(self._statistics()):
            if is_generator(variable.path):
                drawn = derive_seed(seed, index) & 0x7FFFFFFF  # PyTorch has them as int32
                variable.assign(np.array([drawn, 0], dtype=variable.dtype))

    def describe_generators(self) -> str:
        """Return a text that is another one once a generator of the model, or the default one, has drawn."""
        states = [variable.numpy() for variable in self._statistics() if is_generator(variable.path)]
        return repr([state.tolist() for state in states])

    def hyperparameters(self) -> Any:
        return [{name: float(variable.numpy()) for name, variable in rates.items()} for rates in self._rates]

    def restore(self, source: StateSource, hyperparameters: Any = None) -> None:
        own = self.state()
        check_names(source, "model/", own)
        for name, variable in own.items():
            check_spec(source, f"model/{name}", NUMPY_TAGS[variable.dtype], variable.shape)
        arrays = read_arrays(source, [f"model/{name}" for name in own])
        for variable, array in zip(own.values(), arrays, strict=True):
            variable.assign(array)
        if hyperparameters is not None:
            for rates, fresh in zip(self._rates, hyperparameters, strict=True):
                for name, variable in rates.items():
                    variable.assign(fresh[name])

    def close(self) -> None:
        traced = bool(self.graphs)
        self.graphs.clear()
        del self.model, self.metrics, self.steps, self._rates
        if traced:
            # Models and graphs refer to each other in cycles, and are too large to wait for the garbage collector.
            gc.collect()


def _note_built_layers(model: Any) -> None:
    """Let a model without a `call`, which only steps of its own use, count as built once its layers are.

    Raises ConfigurationError if they are not, or if a loss or metrics were compiled, which need a `call`.
    """
    if type(model).call is not keras.Model.call:
        return
    missing = [layer.name for layer in model._flatten_layers(include_self=False) if not layer.built]
    if missing or model._compile_loss is not None or model._compile_metrics is not None:
        why = f"its layer {missing[0]!r} is not built yet" if missing else "it was compiled with a loss or metrics"
        raise ConfigurationError(
            f"the Keras model {model.name!r} ({type(model).__name__}) has no `call`, but {why}: write one that returns"
            " what the model gives for its inputs"
        )
    model.built = True


def check_model(made: Any) -> Any:
    """Return what `model_fn` made if it can be trained, else raise ConfigurationError that shows what to return."""
    if not isinstance(made, keras.Model):
        raise ConfigurationError(f"model_fn returned {made!r} of type {type(made).__name__}. {RETURNS}")
    if not made.compiled or made.optimizer is None:
        raise ConfigurationError(f"model_fn returned the Keras model {made.name!r} without compiling it. {RETURNS}")
    check_layers(made)
    return made


def check_layers(model: Any) -> None:
    """Raise ConfigurationError for layers that carry state from one batch to the next."""
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False):
            raise ConfigurationError(
                f"layer {layer.name!r} ({type(layer).__name__}) has stateful=True: it continues with the state of"
                " the last batch, but batches here are drawn from shuffled rows, trial by trial. Use stateful=False,"
                " and sequences that are whole rows"
            )


def is_generator(path: str) -> bool:
    """Whether a variable with this path, or an array of a state with this name, is the state of a generator.

    >>> is_generator("dropout/seed_generator/seed_generator_state"), is_generator("model/default_seed")
    (True, True)
    """
    return path.endswith(("seed_generator_state", "default_seed"))


def default_generator() -> Any:
    """Return the generator of `keras.random.*(seed=None)`. It is put back if `clear_session`, say, removed it."""
    generator = _first_default_generator()
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, generator)
    return generator


@functools.cache
def _first_default_generator() -> Any:
    return seed_generator.global_seed_generator()


@contextmanager
def fresh_build(policy: str | None) -> Iterator[None]:
    """Build as in a new process: the second model's metric is named "auc" too, not "auc_1".

    The dtype policy is restored after the block, whatever the user's function set.
    """
    outer = keras.config.dtype_policy()
    # First of all: making it for the first time takes a name and draws a number.
    default_generator()
    global_state.set_global_attribute("object_name_uids", defaultdict(int))
    try:
        if policy is not None:
            keras.config.set_dtype_policy(policy)
        yield
    finally:
        keras.config.set_dtype_policy(outer)


def _make_variables(optimizer: Any) -> dict[str, Any]:
    """Turn numbers into variables where Keras allows it, so that trials that differ in them share a graph."""
    numbers: dict[str, Any] = {}
    if isinstance(optimizer._learning_rate, keras.Variable):
        numbers["learning_rate"] = optimizer._learning_rate
    decay = getattr(optimizer, "weight_decay", None)
    if isinstance(decay, int | float) and keras.backend.backend() == "tensorflow" and not optimizer.built:
        # In float64, so that the cast to a weight's dtype rounds just as Keras' constant would.
        optimizer.weight_decay = keras.Variable(float(decay), dtype="float64", trainable=False, name="weight_decay")
        numbers["weight_decay"] = optimizer.weight_decay
    return numbers


def _save_as_plain(optimizer: Any, freed: list[Any]) -> None:
    """Let the optimizer be saved and copied as if its weight decay were the plain number that the user gave."""
    if not freed:
        return
    get_config = optimizer.get_config

    def plain_config() -> Any:
        config = get_config()
        decay = config.get("weight_decay")
        return {**config, "weight_decay": float(decay.numpy())} if isinstance(decay, keras.Variable) else config

    def save_own_variables(store: Any) -> None:
        own = [v for v in optimizer.variables if not any(v is one for one in freed)]
        for index, variable in enumerate(own):
            store[str(index)] = variable.numpy()

    optimizer.get_config = plain_config
    optimizer.save_own_variables = save_own_variables


def wrap_variable(name: str, leaf: Any) -> StateArray | None:
    """Return a Keras variable as an array of the state; None for anything else. Its value is fetched when written."""
    if not isinstance(leaf, keras.Variable) or leaf.dtype not in NUMPY_TAGS:
        return None
    return StateArray(name, NUMPY_TAGS[leaf.dtype], tuple(leaf.shape), lambda: view_bytes(np.asarray(leaf.numpy())))


def _pick(batch: Any, names: Iterable[str], by_name: bool) -> Any:
    return {name: batch[name] for name in names} if by_name else batch[next(iter(names))]
