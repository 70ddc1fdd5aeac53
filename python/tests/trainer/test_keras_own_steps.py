"""What a `test_step` of one's own returns is measured, over rows and not over batches, or said not to be."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from cerebro_spark.errors import ConfigurationError, TrialFailed

# Importing TensorFlow alone takes seconds.
pytestmark = pytest.mark.slow

CUTS = [(11, ()), (4, ()), (3, (5,)), (1, (2, 9))]


@pytest.fixture(scope="module")
def models() -> Any:
    import keras_own_steps

    return keras_own_steps


def mse(models: Any) -> Any:
    return pytest.approx(float(np.mean((models.X - models.Y) ** 2)), rel=1e-5)


@pytest.mark.parametrize(("size", "cuts"), CUTS)
@pytest.mark.parametrize(("kind", "name"), [("Plain", "loss"), ("Tracked", "tracked"), ("More", "loss")])
def test_values_of_a_step_are_means_over_rows(
    models: Any, kind: str, name: str, size: int, cuts: tuple[int, ...]
) -> None:
    found = models.measured(getattr(models, kind), size, cuts)
    assert found == {name: mse(models)}


def test_the_metrics_that_keras_returns_are_no_reason_to_warn(models: Any, caplog: pytest.LogCaptureFixture) -> None:
    from cerebro_spark.trainer.keras import own_steps

    own_steps._tell_untouched.cache_clear()
    own_steps._tell_unmeasured.cache_clear()
    own_steps._tell_number("loss", "row")
    own_steps._tell_number("tracked", "row")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        for size, cuts in CUTS:
            found = models.measured(models.Guided, size, cuts)
            assert found == {
                "loss": mse(models),
                "mae": pytest.approx(float(np.abs(models.X - models.Y).mean()), rel=1e-5),
            }
            assert models.measured(models.Renaming, size, cuts) == {"tracked": mse(models), "loss": mse(models)}
    assert not caplog.text


@pytest.mark.parametrize(("size", "cuts"), CUTS)
def test_what_is_made_of_a_mean_is_no_value_of_a_batch(models: Any, size: int, cuts: tuple[int, ...]) -> None:
    assert models.measured(models.Derived, size, cuts) == {"tracked": mse(models)}


def test_a_compiled_step_counts_once(models: Any) -> None:
    if models.keras.backend.backend() != "tensorflow":
        pytest.skip("TensorFlow compiles steps")
    import tensorflow as tf

    class Compiled(models.Tracked):  # type: ignore[misc]
        test_step = tf.function(models.Tracked.test_step)

    class Returning(models.Derived):  # type: ignore[misc]
        test_step = tf.function(models.Derived.test_step)

    for kind in (Compiled, Returning):
        assert models.measured(kind, 11) == {"tracked": mse(models)}
        # It counts by batches, as in Keras: those of one row are rows.
        assert models.measured(kind, 1, (2, 9)) == {"tracked": mse(models)}


def test_a_compiled_step_may_be_traced_for_several_graphs(models: Any, caplog: pytest.LogCaptureFixture) -> None:
    if models.keras.backend.backend() != "tensorflow":
        pytest.skip("TensorFlow compiles steps")
    import tensorflow as tf

    from cerebro_spark.trainer.keras import own_steps

    class Compiled(models.Tracked):  # type: ignore[misc]
        test_step = tf.function(models.Tracked.test_step)

    own_steps._tell_number.cache_clear()
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        found = models.measured_in_turns(Compiled)
    assert found == [{"tracked": mse(models)}] * 4
    assert "which counts once for each batch" in caplog.text


def test_what_is_computed_for_a_batch_alone_is_said(models: Any, caplog: pytest.LogCaptureFixture) -> None:
    from cerebro_spark.trainer.keras import own_steps

    own_steps._tell_unmeasured.cache_clear()
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        assert models.measured(models.Computing, 4).keys() == {"loss", "mae"}
    assert "test_step returns 'computed', which no metric of the model keeps" in caplog.text


def test_what_is_not_measured_is_said(models: Any, caplog: pytest.LogCaptureFixture) -> None:
    from cerebro_spark.trainer.keras import own_steps

    own_steps._tell_untouched.cache_clear()
    own_steps._tell_unmeasured.cache_clear()
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        found = models.measured(models.Skipping, 4)
        assert found == {"mae": pytest.approx(float(np.abs(models.X - models.Y).mean()), rel=1e-5)}
        assert "test_step neither updates the metric 'loss' nor returns a value of its own" in caplog.text
        models.measured(models.More, 4)
    assert "test_step returns 'more', which no metric of the model keeps" in caplog.text


@pytest.mark.parametrize(("size", "cuts"), CUTS)
def test_a_metric_function_with_one_number_for_a_batch_is_a_mean_over_rows(
    models: Any, size: int, cuts: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    from cerebro_spark.trainer.keras.shapes import _tell_once

    _tell_once.cache_clear()
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        found = models.measured(models.whole, size, cuts, [models.scalar_error])
    assert found["scalar_error"] == pytest.approx(float(np.abs(models.X - models.Y).mean()), rel=1e-5)
    assert "metric 'scalar_error' returns one number for a batch" in caplog.text


def test_statistics_of_batches_and_logits_are_said(models: Any, caplog: pytest.LogCaptureFixture) -> None:
    from cerebro_spark.trainer.keras import shapes

    keras = models.keras
    model = models.whole()
    model.build((None, 1))
    model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
    shapes._tell_once.cache_clear()
    shapes._tell_logits.cache_clear()
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        model._compile_loss.build(models.Y, models.Y)
        shapes.fit_labels(model, {"auc": keras.metrics.AUC(from_logits=True)})
        assert not caplog.text
        shapes.fit_labels(model, {"auc": keras.metrics.AUC(), "pearson": keras.metrics.PearsonCorrelation()})
    assert "metric 'auc' takes outputs for probabilities, but the loss takes them for logits" in caplog.text
    assert "metric 'pearson' (PearsonCorrelation) is computed for each batch by itself" in caplog.text


def test_a_number_for_a_batch_is_said_to_be_taken_for_a_mean(models: Any, caplog: pytest.LogCaptureFixture) -> None:
    from cerebro_spark.trainer.keras import own_steps

    own_steps._tell_number.cache_clear()
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        models.measured(models.Tracked, 4)
        models.measured(models.Tracked, 3)
    assert caplog.text.count("metric 'tracked' gets one number for a batch from a step of your own") == 1


def test_a_model_without_a_call_is_trained_by_its_own_steps(models: Any) -> None:
    for size, cuts in CUTS:
        assert models.measured(models.Uncalled, size, cuts, (), None) == {"loss": mse(models)}
    for given, why in [((), "its layer .* is not built yet"), (("mae",), "compiled with a loss or metrics")]:
        kind = (lambda: models.Uncalled(built=False)) if not given else models.Uncalled
        with pytest.raises((ConfigurationError, TrialFailed), match=rf"has no `call`, but .*{why}.*: write one"):
            models.measured(kind, 4, (), given, None)
