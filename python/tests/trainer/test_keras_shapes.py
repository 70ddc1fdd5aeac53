"""Metrics and losses of users' own in Keras see no row beside the label of another: they are right, or refused."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks
from cerebro_spark.trainer.keras.trainer import KerasTrainer
from cerebro_spark.types import Unit

X = np.random.default_rng(0).normal(size=(11, 1)).astype("float32")
Y = (X[:, 0] + np.random.default_rng(1).normal(size=11) > 0).astype("float32")
RIGHT = float(((X[:, 0] > 0) == (Y > 0)).mean())
MSE = float(((X[:, 0] - Y) ** 2).mean())


def measured(loss: Any, metric: Any, y: Any = Y, shape: tuple[int, ...] = (1,)) -> dict[str, float]:
    """What is measured of a model that gives `X` as it is, in a shape of its own."""

    def model_fn(params: Any) -> Any:
        layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"), keras.layers.Reshape(shape)]
        model = keras.Sequential(layers)
        parts = [part() if isinstance(part, type) else part for part in (loss, metric)]
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss=parts[0], metrics=[parts[1]])
        return model

    columns = Columns({"x": ColumnSpec("float32", (1,))}, {"y": ColumnSpec("float32", y.shape[1:])})
    trainer = KerasTrainer(Hooks(model_fn), columns)
    trainer.build("t", {})
    return trainer.finish(trainer.evaluate(Unit("t", 1, "v", "eval"), Feed({"x": X, "y": y}, batch_size=4)))


def compared(label: Any, output: Any) -> Any:
    return ops.cast((output > 0) == (label > 0), "float32")


def averaged(label: Any, output: Any) -> Any:
    return ops.mean(compared(label, output), -1)


def squeezed(label: Any, output: Any) -> Any:
    return compared(ops.reshape(label, (-1,)), ops.reshape(output, (-1,)))


def squeezing_outputs(label: Any, output: Any) -> Any:
    return compared(label, ops.squeeze(output, -1))


class Hits(keras.metrics.Metric):
    """A metric of somebody's own."""

    def __init__(self, name: str = "hits") -> None:
        super().__init__(name=name)
        self.hits = self.add_weight(shape=(), initializer="zeros", name="hits")
        self.rows = self.add_weight(shape=(), initializer="zeros", name="rows")

    def update_state(self, label: Any, output: Any, sample_weight: Any = None) -> None:
        found = compared(label, output)
        self.hits.assign_add(ops.sum(found))
        self.rows.assign_add(ops.cast(ops.size(found), "float32"))

    def result(self) -> Any:
        return self.hits / self.rows


COLUMN = Y[:, None]
SHAPES = {"row, column": (Y, (1,)), "columns": (COLUMN, (1,)), "column, row": (COLUMN, ()), "rows": (Y, ())}
CASES = [(metric, shapes) for metric in (compared, squeezed, Hits) for shapes in SHAPES]
# Of one dimension its mean is one over rows, which Keras averages by batches.
CASES += [(averaged, "row, column"), (averaged, "columns")]


@pytest.mark.parametrize(("metric", "shapes"), CASES)
def test_a_metric_is_right_in_every_shape(metric: Any, shapes: str) -> None:
    y, output = SHAPES[shapes]
    found = measured("mse", metric, y, output)
    assert found[metric.__name__.lower()] == pytest.approx(RIGHT, rel=1e-5)
    assert found["loss"] == pytest.approx(MSE, rel=1e-5)


def test_a_metric_that_squeezes_for_itself_gets_the_label_as_it_is() -> None:
    assert measured("mse", squeezing_outputs)["squeezing_outputs"] == pytest.approx(RIGHT, rel=1e-5)


def root(label: Any, output: Any) -> Any:
    return ops.sqrt(ops.mean(ops.square(label - output)))


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"metric 'root' gets labels.*'rows'.*'rows', 1.*Reshape"):
        measured("mse", root)
    assert measured("mse", root, Y[:, None])["root"] > 0


class Squares(keras.losses.Loss):
    """A loss of somebody's own."""

    def call(self, label: Any, output: Any) -> Any:
        return ops.mean(ops.square(label - output), -1) if len(output.shape) > 1 else ops.square(label - output)


def squares(label: Any, output: Any) -> Any:
    return ops.mean(ops.square(label - output))


@pytest.mark.parametrize("loss", [Squares, squares])
def test_a_loss_of_ones_own_is_right(loss: Any) -> None:
    for y, output in SHAPES.values():
        assert measured(loss, squeezed, y, output)["loss"] == pytest.approx(MSE, rel=1e-5)
