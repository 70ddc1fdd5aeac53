"""Metrics and losses of users' own in Keras see no row beside the label of another: they are right, or refused."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from cerebro_spark.errors import ConfigurationError, TrialFailed

# Importing TensorFlow alone takes seconds.
pytestmark = pytest.mark.slow

# The shapes of labels and of one row's output.
SHAPES = {"row, column": ((11,), (1,)), "columns": ((11, 1), (1,)), "column, row": ((11, 1), ()), "rows": ((11,), ())}
CASES = [(metric, shapes) for metric in ("compared", "squeezed", "Hits") for shapes in SHAPES]
# Of one dimension its mean is one over rows, which Keras averages by batches.
CASES += [("averaged", "row, column"), ("averaged", "columns")]


@pytest.fixture(scope="module")
def models() -> Any:
    import keras_shapes

    return keras_shapes


def right(models: Any) -> Any:
    """The share of rows on the label's side of 0."""
    return pytest.approx(float(((models.X[:, 0] > 0) == (models.Y > 0)).mean()), rel=1e-5)


def mse(models: Any) -> Any:
    return pytest.approx(float(np.mean((models.X[:, 0] - models.Y) ** 2)), rel=1e-5)


@pytest.mark.parametrize(("metric", "shapes"), CASES)
def test_a_metric_is_right_in_every_shape(models: Any, metric: str, shapes: str) -> None:
    labels, output = SHAPES[shapes]
    found = models.measured("mse", getattr(models, metric), models.Y.reshape(labels), output)
    assert found[metric.lower()] == right(models)
    assert found["loss"] == mse(models)


def test_a_metric_that_squeezes_for_itself_gets_the_label_as_it_is(models: Any) -> None:
    assert models.measured("mse", models.squeezing_outputs)["squeezing_outputs"] == right(models)


def test_trying_a_metric_leaves_no_trace_in_it(models: Any) -> None:
    metric = models.checked(models.Noting())
    assert [len(label) for label in metric.notes] == [11]
    assert metric.last is metric.notes[0]
    assert float(metric.rows) == 11


def test_a_metric_with_state_in_attributes_is_refused(models: Any) -> None:
    with pytest.raises(TrialFailed, match=r"`Noting\..*` changed from .*add_weight"):
        models.measured("mse", models.Noting)


def test_what_cannot_be_told_is_refused(models: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"metric 'root' gets labels.*'rows'.*'rows', 1.*Reshape"):
        models.measured("mse", models.root)
    assert models.measured("mse", models.root, models.Y[:, None])["root"] > 0


@pytest.mark.parametrize("loss", ["Squares", "squares"])
def test_a_loss_of_ones_own_is_right(models: Any, loss: str) -> None:
    for labels, output in SHAPES.values():
        found = models.measured(getattr(models, loss), models.squeezed, models.Y.reshape(labels), output)
        assert found["loss"] == mse(models)


@pytest.mark.parametrize("shape", [(11,), (11, 1)])
@pytest.mark.parametrize("metric", ["chosen", "Chosen"])
def test_a_class_number_in_a_column_meets_its_own_row(models: Any, metric: str, shape: tuple[int, ...]) -> None:
    labels = (models.PAIRS[:, 1] > 0).astype("int64")
    expected = float((models.PAIRS.argmax(1) == labels).mean())
    loss = models.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    found = models.measured_pairs(loss, getattr(models, metric), labels.reshape(shape))
    assert found[metric if metric == "chosen" else "hits"] == pytest.approx(expected)


def test_so_does_the_label_of_a_loss_with_two_outputs(models: Any) -> None:
    mean, spread = models.PAIRS.T
    expected = pytest.approx(float((0.5 * (spread + (models.Y - mean) ** 2 / np.exp(spread))).mean()), rel=1e-5)
    assert models.measured_pairs(models.gaussian, None, models.Y)["loss"] == expected
    assert models.measured_pairs(models.Gaussian, None, models.Y[:, None])["loss"] == expected
    with pytest.raises(
        (ConfigurationError, TrialFailed), match="loss gaussian computes a value for every row with every"
    ):
        models.measured_pairs(models.gaussian, None, models.Y[:, None])


def test_a_loss_function_of_all_pairs_is_refused(models: Any) -> None:
    with pytest.raises(
        (ConfigurationError, TrialFailed), match="loss of_pairs computes a value for every row with every"
    ):
        models.measured(models.of_pairs, models.compared)


@pytest.mark.parametrize(("loss", "shape"), [("squeezing_labels", (1,)), ("one_column", (1,)), ("made_column", ())])
def test_a_loss_function_that_takes_the_mean_of_all_pairs_is_refused(models: Any, loss: str, shape: Any) -> None:
    said = f"loss {loss} computes a value for every row with every other"
    with pytest.raises((ConfigurationError, TrialFailed), match=said):
        models.measured(getattr(models, loss), models.compared, models.Y, shape)


def test_a_loss_function_of_whole_batches_is_left_alone(models: Any) -> None:
    for loss in (models.moments, models.squares, models.root):
        assert models.measured(loss, models.compared)["loss"] > 0


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("sum", "loss MeanSquaredError has reduction='sum'"),
        ("ignoring", "loss SparseCategoricalCrossentropy has ignore_class=0"),
        ("scalar", "loss root returns one number for a batch"),
    ],
)
def test_a_loss_that_depends_on_batches_says_so(
    models: Any, loss: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    from cerebro_spark.trainer.keras.shapes import _tell_once

    def root(label: Any, output: Any) -> Any:
        return models.ops.sqrt(models.ops.mean(models.ops.square(label - output)))

    losses = {
        "sum": models.keras.losses.MeanSquaredError(reduction="sum"),
        "ignoring": models.keras.losses.SparseCategoricalCrossentropy(ignore_class=0, from_logits=True),
        "scalar": root,
    }
    _tell_once.cache_clear()
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        if loss == "ignoring":
            models.measured_pairs(losses[loss], None, models.Y.astype("int64"))
        else:
            models.measured(losses[loss], models.compared)
    assert f"{said}, so that what is measured of it depends on which rows are in a batch" in caplog.text


def test_a_mask_of_outputs_is_said(models: Any, caplog: pytest.LogCaptureFixture) -> None:
    from cerebro_spark.trainer.keras.shapes import _tell_once

    _tell_once.cache_clear()
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        models.fit_labels(models.masked(sequences=False), {})
        assert "mask" not in caplog.text
        models.fit_labels(models.masked(sequences=True), {})
    assert "the outputs have a mask, by which the loss of a batch is divided" in caplog.text
