"""Settings of Keras that one trial's functions change do not reach another trial."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from trainer_data import feed

from cerebro_spark.errors import TrialFailed
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


def test_a_counter_of_a_layer_is_seen_whatever_its_name_is() -> None:
    import keras
    import keras_kept_state

    class Counting(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.iterations = 0

        def call(self, x: Any) -> Any:
            self.iterations += 1
            return x * (1 + self.iterations)

    def model_fn(params: Any) -> Any:
        model = keras.Sequential([Counting(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        return model

    trainer = keras_kept_state.trainer_of(model_fn)
    trainer.build("t", {})
    with pytest.raises(TrialFailed, match=r"`Counting.iterations` changed from \d+ to \d+"):
        trainer.train(Unit("t", 1, "0"), feed("tabular", 0))


def test_what_a_tf_function_refers_to_is_seen() -> None:
    import keras_kept_state
    import tensorflow as tf

    steps = tf.Variable(0.0)

    @tf.function  # type: ignore[untyped-decorator]
    def count() -> Any:
        return steps.assign_add(1.0)

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        return {"loss": float(count()), "rows": 1.0}

    trainer = keras_kept_state.trainer_of(keras_kept_state.plain, train_fn)
    trainer.build("t", {})
    with pytest.raises(TrialFailed, match=r"steps.* changed from variable\(0.0\) to variable\(1.0\)"):
        trainer.train(Unit("t", 1, "0"), feed("tabular", 0))
