"""Settings of Keras that one trial's functions change do not reach another trial."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from trainer_data import feed

from cerebro_spark.types import Unit

# Importing TensorFlow alone takes seconds.
pytestmark = pytest.mark.slow


def test_settings_of_a_trial_are_put_back_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    import keras
    import keras_kept_state

    def model_fn(params: Any) -> Any:
        assert keras.config.epsilon() == 1e-7
        if params["sets"]:
            keras.config.set_epsilon(1e-3)
            keras.config.set_floatx("float64")
        return keras_kept_state.sized(4)

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        assert keras.config.image_data_format() == "channels_last"
        keras.config.set_image_data_format("channels_first")
        return {"loss": 1.0, "rows": 1.0}

    trainer = keras_kept_state.trainer_of(model_fn, train_fn)
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        for sets in (True, False):
            trainer.build("t", {"sets": sets})
            trainer.train(Unit("t", 1, "0"), feed("tabular", 0))

    assert (keras.config.epsilon(), keras.config.floatx()) == (1e-7, "float32")
    assert keras.config.image_data_format() == "channels_last"
    assert (
        "`keras.config.epsilon` was set to 0.001 by a function for one trial, and is put back to 1e-07" in caplog.text
    )


def test_settings_of_tensorflow_are_put_back(caplog: pytest.LogCaptureFixture) -> None:
    import keras_kept_state
    import tensorflow as tf

    def model_fn(params: Any) -> Any:
        assert not tf.config.functions_run_eagerly()
        tf.config.run_functions_eagerly(params["sets"])
        return keras_kept_state.sized(4)

    trainer = keras_kept_state.trainer_of(model_fn)
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        for sets in (True, False):
            trainer.build("t", {"sets": sets})
            assert not tf.config.functions_run_eagerly()
    assert caplog.text.count("`tf.config.run_functions_eagerly` was set to True") == 1
