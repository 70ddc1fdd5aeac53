"""Metrics and losses of users' own in Keras see no row beside the label of another: they are right, or refused."""

from __future__ import annotations

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
