"""A last batch that is too small joins the one before it, in training, with every framework; rows are never lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_data import columns, feed

from cerebro_spark.data.shuffling import row_order
from cerebro_spark.trainer import Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.feed import SMALLEST_BATCH, batch_sizes
from cerebro_spark.types import Unit

UNIT = Unit("t", 1, "0")


@given(st.integers(0, 200), st.integers(1, 50), st.integers(1, 60))
def test_every_row_is_in_one_batch_and_none_is_too_small(rows: int, size: int, smallest: int) -> None:
    sizes = batch_sizes(rows, size, smallest)
    assert sum(sizes) == rows
    assert all(found == size for found in sizes[:-1])
    if rows <= size:
        assert sizes == ([rows] if rows else [])
    elif rows:
        assert min(size, smallest) <= sizes[-1] < size + smallest
    if smallest == 1:
        assert len(sizes) == -(-rows // size), "the rule of old"


@given(st.integers(1, 40), st.integers(1, 12), st.sampled_from([1, 2, 3]), st.booleans())
def test_a_feed_cuts_its_order_by_these_sizes(rows: int, size: int, smallest: int, shuffle: bool) -> None:
    order = row_order(rows, 1, "t", 1, "p") if shuffle else None
    fed = Feed({"x": np.arange(rows)}, order, batch_size=size, smallest=smallest)
    batches = [batch["x"].tolist() for batch in fed]
    assert [len(batch) for batch in batches] == fed.sizes == batch_sizes(rows, size, smallest)
    assert [row for batch in batches for row in batch] == (list(range(rows)) if order is None else order.tolist())


def torch_trainer(**hooks: Any) -> Any:
    torch = pytest.importorskip("torch")
    from cerebro_spark.trainer.torch.trainer import TorchTrainer

    def model_fn(params: Any) -> TorchModel:
        module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), torch.nn.BCEWithLogitsLoss())

    made = TorchTrainer(Hooks(model_fn, **hooks), columns("tabular"), resources=Resources(device="cpu"))
    made.build("t", {})
    return made


def keras_trainer(eager: bool = False, **hooks: Any) -> Any:
    keras = pytest.importorskip("keras")
    from cerebro_spark.trainer.keras.trainer import KerasTrainer

    class Rows(keras.layers.Layer):
        """Notes the largest and the smallest batch that it is trained on."""

        def build(self, shape: Any) -> None:
            self.largest = self.add_weight(shape=(), initializer="zeros", trainable=False, name="largest")
            many = keras.initializers.Constant(1e6)
            self.smallest = self.add_weight(shape=(), initializer=many, trainable=False, name="smallest")

        def call(self, x: Any, training: bool = False) -> Any:
            if training:
                rows = keras.ops.cast(keras.ops.shape(x)[0], "float32")
                self.largest.assign(keras.ops.maximum(self.largest, rows))
                self.smallest.assign(keras.ops.minimum(self.smallest, rows))
            return x

    def model_fn(params: Any) -> Any:
        layers = [keras.layers.Dense(4), Rows(), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
        model = keras.Sequential(layers)
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse", run_eagerly=eager)
        return model

    made = KerasTrainer(Hooks(model_fn, **hooks), columns("tabular"))
    made.build("t", {})
    return made


def ending_in_one(smallest: int) -> Feed:
    whole = feed("tabular", 0, rows=33)
    return Feed(whole.arrays, whole.order, batch_size=16, smallest=smallest)


def test_pytorch_trains_batch_norm_whatever_is_left_over() -> None:
    trainer = torch_trainer()
    metrics = trainer.train(UNIT, ending_in_one(SMALLEST_BATCH))
    assert metrics.weights == {"loss": 33.0}
    with pytest.raises(Exception, match="more than 1 value per channel"):
        torch_trainer().train(UNIT, ending_in_one(1))


@pytest.mark.slow
@pytest.mark.parametrize("eager", [False, True])
def test_keras_folds_as_pytorch_does(eager: bool) -> None:
    for smallest, seen in ((SMALLEST_BATCH, (16.0, 17.0)), (1, (1.0, 16.0))):
        trainer = keras_trainer(eager)
        metrics = trainer.train(UNIT, ending_in_one(smallest))
        rows = trainer.model().layers[1]
        assert (float(rows.smallest.numpy()), float(rows.largest.numpy())) == seen
        assert metrics.weights["loss"] == 33.0


@pytest.mark.slow
def test_keras_leaves_single_rows_alone_where_they_are_asked_for() -> None:
    trainer = keras_trainer()
    whole = feed("tabular", 0, rows=5)
    trainer.train(UNIT, Feed(whole.arrays, whole.order, batch_size=1, smallest=SMALLEST_BATCH))
    assert float(trainer.model().layers[1].largest.numpy()) == 1.0


def test_train_fn_gets_the_same_batches() -> None:
    seen: list[int] = []

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        seen.extend(len(batch["label"]) for batch in batches)
        return {"loss": 0.0, "rows": 33}

    torch_trainer(train_fn=train_fn).train(UNIT, ending_in_one(SMALLEST_BATCH))
    assert seen == [16, 17]
