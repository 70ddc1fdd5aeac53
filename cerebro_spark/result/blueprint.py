"""The model of a trial as a value, to be built again in any process without the run's store. It trains nothing."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.data.input.columns import Column
from cerebro_spark.errors import CheckpointUnreadable, ConfigurationError, DataError
from cerebro_spark.recipe import Recipe
from cerebro_spark.result.decoding import OutputDecoder, choose_decoder
from cerebro_spark.result.rows import source_columns
from cerebro_spark.trainer.base import Trainer
from cerebro_spark.trainer.feed import Batch, Columns, Feed
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Metrics, TrialId, Unit

# Rows that go through the model at once: many, but fewer large ones (images), to bound the memory.
_MOST_ROWS, _FEWEST_ROWS, _MOST_VALUES = 8192, 16, 1 << 24


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A model as a value: the functions that build it, what its data looks like, and its state after its best epoch."""

    trial: TrialId
    epoch: int
    params: Mapping[str, Any]
    checkpoint: bytes
    digest: str
    spec: TrainerSpec
    columns: Columns
    sources: tuple[Column, ...]
    output_kind: str | None = None

    @property
    def features(self) -> list[Column]:
        return [column for column in self.sources if column.role == "feature"]

    def trainer(self, threads: int | None = None, device: str = "auto") -> Trainer:
        """Return a new trainer in which the trial is current, in the state of its best epoch."""
        if "tensorflow" in sys.modules and self.spec.trainer_class.framework == "keras-tensorflow":
            # TensorFlow accepts a thread count only before its first use.
            threads = None
        resources = Resources(threads=threads, device=device, precision=self.spec.resources.precision)
        trainer = replace(self.spec, resources=resources).make_trainer(self.columns)
        try:
            trainer.load(self.trial, self.params, self.checkpoint, digest=self.digest)
        except CheckpointUnreadable as error:
            raise CheckpointUnreadable(
                f"the checkpoint of trial {self.trial} after epoch {self.epoch} is damaged in its store: {error}. Take"
                " the model of another trial, a copy of the store, or train these params again"
            ) from error
        _use_averaged_weights(trainer)
        return trainer


def make_blueprint(
    recipe: Recipe, trial: TrialId, epoch: int, params: Mapping[str, Any], state: tuple[bytes, str]
) -> Blueprint:
    """Return the blueprint of a trial of that run; `state` is a checkpoint's bytes and digest."""
    columns, sources = recipe.job("", recipe.dataset.store).columns, source_columns(recipe.dataset)
    return Blueprint(trial, epoch, dict(params), *state, recipe.trainer, columns, sources, recipe.kind)


class Scorer:
    """A live model that predicts and measures rows, for one thread at a time.

    The model is in the state of its best epoch, and stays in it.
    """

    def __init__(self, blueprint: Blueprint, threads: int | None = None) -> None:
        self.blueprint = blueprint
        self.trainer = blueprint.trainer(threads)
        self._unit = Unit(blueprint.trial, blueprint.epoch, "test", "eval")
        values = sum(math.prod(spec.shape) for spec in blueprint.columns.inputs.values())
        self._rows = max(_FEWEST_ROWS, min(_MOST_ROWS, _MOST_VALUES // max(1, values)))

    def predict(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Return outputs by name for rows with the model's inputs. `input_fn` gets zeros as labels."""
        rows = len(next(iter(batch.values())))
        if not rows:
            return {name: output[:0] for name, output in self.sample_outputs().items()}
        if self.blueprint.spec.hooks.input_fn is not None:
            batch = {**self.blueprint.columns.zeros(rows), **batch}
        outputs = self.trainer.predict(Feed(batch, batch_size=self._rows))
        for name, output in outputs.items():
            if len(output) != rows:
                raise DataError(
                    f"the model gave {len(output)} values of {name!r} for {rows} rows: input_fn must keep every row"
                    " when rows are scored"
                )
        return {name: squeeze_output(output) for name, output in outputs.items()}

    def sample_outputs(self) -> dict[str, NDArray[Any]]:
        """Return outputs for two rows of zeros: they have the names, types and shapes of all outputs."""
        return self.predict(self.blueprint.columns.zeros(2))

    def choose_decoder(self, outputs: Mapping[str, NDArray[Any]], kind: str | None = None) -> OutputDecoder | None:
        """Return the decoder of outputs such as these: by `kind`, or the search's kind, or the model's loss."""
        told = self.blueprint.output_kind if kind is None else kind
        if len(outputs) == 1:
            (output,) = outputs.values()
            return choose_decoder(told, getattr(self.trainer.model(), "loss", None), output.shape[1:])
        if kind not in (None, "regression"):
            raise ConfigurationError(
                f"`kind` is {kind!r}, but the model has {len(outputs)} outputs ({', '.join(outputs)}), each of which"
                " stays as it is: leave `kind` out"
            )
        return None

    def measure(self, chunks: Iterable[Batch]) -> Iterator[Metrics]:
        """Yield the metrics of each chunk of rows. Metrics that cannot be merged are carried from one to the next."""
        size = int(self.blueprint.params.get("batch_size", 32))
        carried: Metrics | None = None
        for chunk in chunks:
            if len(next(iter(chunk.values()))):
                carried = self.trainer.evaluate(self._unit, Feed(chunk, batch_size=size), carried)
                yield carried


def predict_chunks(scorer: Scorer, chunks: Iterable[Batch]) -> dict[str, NDArray[Any]]:
    """Return the outputs for the rows of all chunks, of which there must be at least one."""
    parts = [scorer.predict(chunk) for chunk in chunks]
    return parts[0] if len(parts) == 1 else {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def squeeze_output(output: NDArray[Any]) -> NDArray[Any]:
    """Return one value a row as a plain number, in a type that tables know.

    >>> squeeze_output(np.ones((2, 1), "float16"))
    array([1., 1.], dtype=float32)
    """
    output = np.asarray(output)
    if output.ndim == 2 and output.shape[1] == 1:
        output = output[:, 0]
    known = output.dtype.kind in "iub" or output.dtype in (np.float32, np.float64)
    return output if known else output.astype(np.float32)


def _use_averaged_weights(trainer: Trainer) -> None:
    """Put averaged weights (Keras' use_ema) into the model, as the optimizer does when training ends."""
    if not trainer.framework.startswith("keras"):
        return
    model = trainer.model()
    inner = getattr(model.optimizer, "inner_optimizer", None) or model.optimizer
    if getattr(inner, "use_ema", False):
        inner.finalize_variable_values(model.trainable_variables)
