"""Labels that a loss of Keras is not made for are refused by name, and random numbers that no checkpoint carries."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.types import Unit

# Importing TensorFlow alone takes seconds.
pytestmark = pytest.mark.slow

UNIT, MEASURING = Unit("t", 1, "p"), Unit("t", 1, "p", "eval")
ROWS = 96
TWO = np.resize(np.array([0, 1], "float32"), ROWS)
NUMBERS = np.resize(np.array([0, 1, 2], "int64"), ROWS)


@pytest.fixture(scope="module")
def models() -> Any:
    import keras_labels

    return keras_labels


def with_last(labels: Any, value: float) -> Any:
    changed = labels.copy()
    changed[-1] = value
    return changed


@pytest.mark.parametrize(
    ("loss", "outputs", "labels", "wrong", "wanted"),
    [
        ("binary_crossentropy", 1, TWO, 2, "labels from 0 to 1"),
        ("binary_focal_crossentropy", 1, TWO, -1, "labels from 0 to 1"),
        ("poisson", 1, TWO, -3, "labels of at least 0"),
        ("msle", 1, TWO, -3, "labels of at least 0"),
        ("hinge", 1, TWO, 2, "labels that are -1 or 0 or 1"),
        ("sparse_categorical_crossentropy", 3, NUMBERS, 3, "class numbers from 0 to 2"),
        ("sparse_categorical_crossentropy", 3, NUMBERS.astype("float32"), 0.5, "class numbers from 0 to 2"),
    ],
)
def test_wrong_labels_are_refused_in_training_and_evaluating(
    models: Any, loss: str, outputs: int, labels: Any, wrong: float, wanted: str
) -> None:
    trainer = models.predicting(loss, outputs, labels)
    trainer.train(UNIT, models.feed_of(labels))
    trainer.evaluate(MEASURING, models.feed_of(labels))
    bad = models.feed_of(with_last(labels, wrong))
    with pytest.raises(ConfigurationError, match=f"label 'y' is {wrong:g} in some rows .* {wanted}"):
        trainer.evaluate(MEASURING, bad)
    trainer.build("t", {})
    with pytest.raises(ConfigurationError, match=f"label 'y' is {wrong:g} in some rows .* {wanted}"):
        trainer.train(UNIT, bad)


def test_a_class_that_the_loss_ignores_is_right(models: Any) -> None:
    import keras

    labels = with_last(NUMBERS, -1)
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
    models.predicting(loss, 3, labels).train(UNIT, models.feed_of(labels))


def test_each_output_has_the_rule_of_its_own_loss(models: Any) -> None:
    labels = with_last(TWO, 2)
    with pytest.raises(ConfigurationError, match="label 'sold' is 2"):
        models.with_two_outputs(labels).train(UNIT, models.feed_of(labels, ("size", "sold")))
    feed = models.feed_of(labels, ("size", "sold"))
    feed.arrays["sold"][-1] = 1
    models.with_two_outputs(labels).train(UNIT, feed)


@pytest.mark.parametrize("kind", ["normal", "dropout", "shuffle", "global generator", "branch", "function"])
def test_random_numbers_of_tensorflow_itself_are_refused(models: Any, kind: str) -> None:
    with pytest.raises(ConfigurationError, match=r"random numbers by TensorFlow's own .*use keras.random.normal"):
        models.drawing(kind).train(UNIT, models.feed_of(np.zeros(ROWS, "float32")))


@pytest.mark.parametrize("kind", ["keras", "stateless"])
def test_random_numbers_with_a_state_that_hops_are_right(models: Any, kind: str) -> None:
    models.drawing(kind).train(UNIT, models.feed_of(np.zeros(ROWS, "float32")))


def test_random_numbers_of_an_eager_model_go_on_alike_on_another_worker(models: Any) -> None:
    feed = models.feed_of(np.zeros(ROWS, "float32"))
    trainer = models.drawing("normal", eagerly=True)
    trainer.train(UNIT, feed)
    file = io.BytesIO()
    trainer.save(file)
    stayed = trainer.train(Unit("t", 2, "p"), feed).values()["loss"]
    other = models.drawing("normal", eagerly=True)
    other.load("t", {}, file.getvalue())
    assert other.train(Unit("t", 2, "p"), feed).values()["loss"] == stayed
