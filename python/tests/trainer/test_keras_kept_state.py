"""With Keras too, what users' functions keep steers nothing, or their trial is refused by name."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest
from trainer_data import feed

from cerebro_spark.errors import ConfigurationError, TrialFailed
from cerebro_spark.types import Unit

# Importing TensorFlow alone takes seconds.
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models() -> Any:
    import keras_kept_state

    return keras_kept_state


def train(trainer: Any, count: int) -> None:
    trainer.build("t", {})
    for number in range(count):
        trainer.train(Unit("t", 1 + number, "0"), feed("tabular", 0))
        trainer.save(io.BytesIO())


def test_a_list_that_steers_training_is_refused(models: Any) -> None:
    with pytest.raises(TrialFailed, match=r"`train_fn.seen` changed from 0 items to 1.*the state of the trial"):
        train(models.trainer_of(models.plain, models.looping(steers=True)), 1)


def test_a_log_may_grow(models: Any) -> None:
    train(models.trainer_of(models.plain, models.looping(steers=False)), 3)


def test_a_structure_that_depends_on_how_many_were_built_is_refused(models: Any) -> None:
    with pytest.raises(TrialFailed, match=r"`counting.<global>.BUILT` changed from 0 to 1 .*Take it from params"):
        models.trainer_of(models.counting).build("t", {"wider": True})
    assert models.BUILT == 0


def test_weights_that_depend_on_how_many_were_built_are_refused(models: Any) -> None:
    with pytest.raises(TrialFailed, match=r"`model_fn.built\[0\]` changed .*the first weights"):
        models.trainer_of(models.scaling()).build("t", {})


def test_a_count_that_no_model_depends_on_may_stay(models: Any) -> None:
    trainer = models.trainer_of(models.counting)
    for number in range(3):
        trainer.build(f"t{number}", {"wider": False})
    assert models.BUILT == 3
    models.BUILT = 0


def test_a_metric_that_steers_training_is_refused(models: Any) -> None:
    with pytest.raises(TrialFailed, match=r"`.*tracker` changed from a Mean of .* to a Mean of "):
        train(models.trainer_of(models.plain, models.tracking(resets=False)), 1)
    with pytest.raises(TrialFailed, match=r"`.*SEEN` changed from a Sum of .* to a Sum of "):
        train(models.trainer_of(models.summing), 1)


def test_a_metric_that_is_reset_steers_nothing(models: Any) -> None:
    train(models.trainer_of(models.plain, models.tracking(resets=True)), 3)


@pytest.mark.skipif(os.environ.get("KERAS_BACKEND") == "torch", reason="tf.data is TensorFlow's")
def test_an_iterator_over_data_is_refused(models: Any) -> None:
    with pytest.raises((ConfigurationError, TrialFailed), match=r"iterator over a tf\.data\.Dataset.*make it where"):
        train(models.trainer_of(models.plain, models.drawing()), 1)
