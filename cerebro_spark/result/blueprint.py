"""All it takes to have a trial's model again, in any process, without the run's store. It trains nothing."""

from __future__ import annotations

import hashlib
import math
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from cerebro_spark.backend.job import Framework
from cerebro_spark.data.input.columns import Column
from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.recipe import Recipe
from cerebro_spark.result.reading import Reading, reading_of
from cerebro_spark.result.rows import source_columns
from cerebro_spark.trainer.base import Hooks, Trainer
from cerebro_spark.trainer.feed import Batch, Columns, Feed
from cerebro_spark.trainer.frameworks import choose_trainer
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.types import Metrics, TrialId, Unit
from cerebro_spark.user_modules import import_sent_modules_first

# Rows that go through the model at once: many, but of large ones (images) only as many as fit beside each other.
_MOST_ROWS, _FEWEST_ROWS, _MOST_VALUES = 8192, 16, 1 << 24


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A model as a value: the functions that build it, what its data looks like, and its state after its best epoch."""

    trial: TrialId
    epoch: int
    params: Mapping[str, Any]
    checkpoint: bytes
    digest: str
    hooks: Hooks
    framework: Framework
    columns: Columns
    sources: tuple[Column, ...]
    seed: int
    precision: Literal["bfloat16", "float16"] | None
    output_kind: str | None = None

    @property
    def features(self) -> list[Column]:
        return [column for column in self.sources if column.role == "feature"]

    @property
    def kind(self) -> type[Trainer]:
        """The class of trainer; asking for it loads the framework."""
        return choose_trainer(self.hooks.model_fn, self.framework)

    def pack(self) -> Packed:
        """The blueprint as bytes, to send to where the rows are."""
        data = cloudpickle.dumps(self)
        return Packed(hashlib.sha256(data).hexdigest(), data)

    def trainer(self, threads: int | None = None, device: str = "auto") -> Trainer:
        """A trainer of its own in which the trial is current, in the state of its best epoch."""
        used = "tensorflow" in sys.modules
        kind = self.kind
        if used and kind.framework == "keras-tensorflow":
            # TensorFlow takes its threads only before its first use: here they are settled.
            threads = None
        resources = Resources(threads=threads, device=device, precision=self.precision)
        trainer = kind(self.hooks, self.columns, seed=self.seed, resources=resources)
        trainer.load(self.trial, self.params, self.checkpoint, digest=self.digest)
        _use_averaged_weights(trainer)
        return trainer


@dataclass(frozen=True, slots=True)
class Packed:
    """A pickled blueprint and its digest, by which a process knows that it has that model already."""

    digest: str
    data: bytes

    def unpack(self) -> Blueprint:
        blueprint = pickle.loads(self.data)
        assert isinstance(blueprint, Blueprint)
        return blueprint


def blueprint(
    recipe: Recipe, trial: TrialId, epoch: int, params: Mapping[str, Any], state: tuple[bytes, str]
) -> Blueprint:
    """The blueprint of a trial of that run; `state` are a checkpoint's bytes and digest."""
    columns = recipe.job("", recipe.dataset.store).columns
    return Blueprint(
        trial,
        epoch,
        dict(params),
        *state,
        recipe.hooks,
        recipe.framework,
        columns,
        source_columns(recipe.dataset),
        recipe.seed,
        recipe.resources.precision,
        recipe.kind,
    )


class Scorer:
    """A live model that predicts and measures rows.

    Who calls it: one thread at a time. The model is in the state of its best epoch and stays there.
    """

    def __init__(self, blueprint: Blueprint, threads: int | None = None) -> None:
        self.blueprint = blueprint
        self.trainer = blueprint.trainer(threads)
        self._unit = Unit(blueprint.trial, blueprint.epoch, "test", "eval")
        values = sum(math.prod(spec.shape) for spec in blueprint.columns.inputs.values())
        self._rows = max(_FEWEST_ROWS, min(_MOST_ROWS, _MOST_VALUES // max(1, values)))

    def predict(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Outputs by name for rows that have the model's inputs. What `input_fn` sees as labels are zeros."""
        rows = len(next(iter(batch.values())))
        if not rows:
            return {name: output[:0] for name, output in self.like().items()}
        if self.blueprint.hooks.input_fn is not None:
            batch = {**self.blueprint.columns.zeros(rows), **batch}
        outputs = self.trainer.predict(Feed(batch, batch_size=self._rows))
        for name, output in outputs.items():
            if len(output) != rows:
                raise DataError(
                    f"the model gave {len(output)} values of {name!r} for {rows} rows: input_fn must keep every row"
                    " when rows are scored"
                )
        return {name: tidy(output) for name, output in outputs.items()}

    def like(self) -> dict[str, NDArray[Any]]:
        """Outputs for two rows of zeros: the names, types and shapes of all that are to come."""
        return self.predict(self.blueprint.columns.zeros(2))

    def reading(self, outputs: Mapping[str, NDArray[Any]], kind: str | None = None) -> Reading | None:
        """How outputs such as these are read: as `kind` says, or the search did, or the model's loss tells."""
        told = self.blueprint.output_kind if kind is None else kind
        if len(outputs) == 1:
            (output,) = outputs.values()
            return reading_of(told, getattr(self.trainer.model(), "loss", None), output.shape[1:])
        if kind not in (None, "regression"):
            raise ConfigurationError(
                f"`kind` is {kind!r}, but the model has {len(outputs)} outputs ({', '.join(outputs)}), each of which"
                " stays as it is: leave `kind` out"
            )
        return None

    def measure(self, chunks: Iterable[Batch]) -> Iterator[Metrics]:
        """The metrics of each chunk of rows; those that can only be updated go on from one to the next."""
        size = int(self.blueprint.params.get("batch_size", 32))
        carried: Metrics | None = None
        for chunk in chunks:
            if len(next(iter(chunk.values()))):
                carried = self.trainer.evaluate(self._unit, Feed(chunk, batch_size=size), carried)
                yield carried


_scorers: dict[str, Scorer] = {}
_MOST_SCORERS = 4


def resident_scorer(digest: str, packed: Callable[[], Packed], threads: int | None) -> Scorer:
    """Return the scorer of that blueprint in this executor, built when first asked for; `packed()` gives the bytes."""
    if digest not in _scorers:
        import_sent_modules_first()
        while len(_scorers) >= _MOST_SCORERS:
            _scorers.pop(next(iter(_scorers)))
        _scorers[digest] = Scorer(packed().unpack(), threads)
    return _scorers[digest]


def tidy(output: NDArray[Any]) -> NDArray[Any]:
    """One value a row as a plain number, and types that tables know.

    >>> tidy(np.ones((2, 1), "float16"))
    array([1., 1.], dtype=float32)
    """
    output = np.asarray(output)
    if output.ndim == 2 and output.shape[1] == 1:
        output = output[:, 0]
    known = output.dtype.kind in "iub" or output.dtype in (np.float32, np.float64)
    return output if known else output.astype(np.float32)


def _use_averaged_weights(trainer: Trainer) -> None:
    """An optimizer that averages weights (Keras' use_ema) puts them into the model when training ends: here it has."""
    if not trainer.framework.startswith("keras"):
        return
    model = trainer.model()
    inner = getattr(model.optimizer, "inner_optimizer", None) or model.optimizer
    if getattr(inner, "use_ema", False):
        inner.finalize_variable_values(model.trainable_variables)
