"""Output and label are never stretched over each other: a loss or a metric is right, or refused with both shapes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.shapes import call_watched, like_output
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

EVAL = Unit("t", 1, "v", "eval")
STRETCHED = r"shapes.*stretch over each other.*view_as"
CPU = Resources(device="cpu")


class Shaped(nn.Module):
    """Gives its features in another shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.shape = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale).reshape(len(x), *self.shape)


def measured(loss: Any, x: Any, y: Any, *shape: int, batch_size: int = 4, **metrics: Any) -> dict[str, float]:
    """What is measured of a module that gives `x` as it is, in a shape of its own."""

    def model_fn(params: Any) -> TorchModel:
        module = Shaped(*shape)
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), loss, metrics)

    features, label = ({name: ColumnSpec(str(a.dtype), a.shape[1:])} for name, a in (("x", x), ("y", y)))
    trainer = TorchTrainer(Hooks(model_fn), Columns(features, label), resources=CPU)
    trainer.build("t", {})
    return trainer.finish(trainer.evaluate(EVAL, Feed({"x": x, "y": y}, batch_size=batch_size)))


X = np.random.default_rng(0).normal(size=11).astype("float32")
Y = (X + np.random.default_rng(1).normal(size=11) > 0).astype("float32")
MSE = float(((X - Y) ** 2).mean())
RIGHT = float(((X > 0) == (Y > 0)).mean())


def own_mse(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return ((output - label) ** 2).mean()


FITTED = {
    "module": nn.MSELoss(),
    "function": functional.mse_loss,
    "partial": functools.partial(functional.mse_loss, reduction="mean"),
    "a value a row": functools.partial(functional.mse_loss, reduction="none"),
    "sum": functools.partial(functional.mse_loss, reduction="sum"),
    "squeezed": lambda output, label: own_mse(output.flatten(), label.flatten()),
    "viewed": lambda output, label: own_mse(output, label.view_as(output)),
}
SHAPES = [((), ()), ((1,), ()), ((), (1,)), ((1,), (1,)), ((1, 1), ())]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("loss", FITTED.values(), ids=FITTED)
def test_a_loss_is_right_in_every_shape_of_one_value_a_row(loss: Any, shapes: Any) -> None:
    output, label = shapes
    assert measured(loss, X, Y.reshape(11, *label), *output)["loss"] == pytest.approx(MSE)


STRETCHING = {
    "own": own_mse,
    "turned": lambda output, label: ((label - output) ** 2).mean(),
    "lambda": lambda output, label: functional.mse_loss(output, label),
    "module inside": lambda output, label: nn.MSELoss()(output, label),
    "made of both": lambda output, label: (output.sigmoid() * label.float()).sum() / len(label),
    "where": lambda output, label: torch.where(label > 0, output, -output).mean(),
    "scripted": torch.jit.script(nn.MSELoss()),
}


@pytest.mark.parametrize("shapes", [((1,), ()), ((), (1,))], ids=str)
@pytest.mark.parametrize("loss", STRETCHING.values(), ids=STRETCHING)
def test_a_loss_that_stretches_is_refused(loss: Any, shapes: Any) -> None:
    output, label = shapes
    with pytest.raises(ConfigurationError, match=STRETCHED):
        measured(loss, X, Y.reshape(11, *label), *output)
    with pytest.raises(ConfigurationError, match=STRETCHED):
        measured(loss, X, Y.reshape(11, *label), *output, batch_size=11)


METRICS = {
    "compared": lambda output, label: (output > 0) == (label > 0),
    "rows of a matrix": lambda output, label: ((output > 0) == (label > 0)).float().mean(-1),
}


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_metric_that_stretches_is_refused(metric: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"'right'.*{STRETCHED}"):
        measured(nn.MSELoss(), X, Y, 1, right=metric)
    squeezed = lambda output, label: (output.squeeze(-1) > 0) == (label > 0)  # noqa: E731
    assert measured(nn.MSELoss(), X, Y, 1, right=squeezed)["right"] == pytest.approx(RIGHT)
    same = lambda output, label: (output > 0) == (label > 0)  # noqa: E731
    assert measured(nn.MSELoss(), X, Y, right=same)["right"] == pytest.approx(RIGHT)
    column = measured(nn.MSELoss(), X, Y.reshape(11, 1), 1, right=same)
    assert column["right"] == pytest.approx(RIGHT), "a value a row, in a column"


def test_losses_of_pytorch_are_metrics_too() -> None:
    error = functools.partial(functional.l1_loss, reduction="none")
    found = measured(nn.MSELoss(), X, Y, 1, a=error, b=nn.L1Loss(reduction="none"))
    assert found["a"] == found["b"] == pytest.approx(float(np.abs(X - Y).mean()))
    with pytest.raises(ConfigurationError, match=r"'a' returned shape \(\) for 4 rows.*reduction='none'"):
        measured(nn.MSELoss(), X, Y, 1, a=functional.l1_loss)


class Hits:
    """A metric object of somebody's own."""

    def reset(self) -> None:
        self.hits, self.rows = 0.0, 0.0

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        found = (output > 0) == (label > 0)
        self.hits += float(found.sum())
        self.rows += found.numel()

    def compute(self) -> float:
        return self.hits / self.rows


@pytest.mark.slow
def test_metric_objects_are_fitted_or_refused() -> None:
    with pytest.raises(ConfigurationError, match=f"'hits'.*{STRETCHED}"):
        measured(nn.MSELoss(), X, Y, 1, hits=Hits())
    assert measured(nn.MSELoss(), X, Y, hits=Hits())["hits"] == pytest.approx(RIGHT)
    torchmetrics = pytest.importorskip("torchmetrics")
    found = measured(nn.MSELoss(), X, Y, 1, mse=torchmetrics.MeanSquaredError())
    assert found["mse"] == pytest.approx(MSE)


CLASSES = np.random.default_rng(2).integers(0, 3, 12)
LOGITS = np.random.default_rng(3).normal(size=(12, 3)).astype("float32")
EXPECTED = float(functional.cross_entropy(torch.from_numpy(LOGITS), torch.from_numpy(CLASSES)))


def gathered(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return -output.log_softmax(1).gather(1, label[:, None]).mean()


@pytest.mark.parametrize("batch_size", [3, 4, 12])
@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), functional.cross_entropy, gathered, lambda o, y: functional.cross_entropy(o, y)]
)
def test_class_numbers_are_left_alone(loss: Any, batch_size: int) -> None:
    right = lambda output, label: output.argmax(1) == label  # noqa: E731
    found = measured(loss, LOGITS, CLASSES, 3, batch_size=batch_size, right=right)
    assert found["loss"] == pytest.approx(EXPECTED)
    assert found["right"] == pytest.approx(float((LOGITS.argmax(1) == CLASSES).mean()))


def test_class_numbers_in_a_column_are_squeezed_for_pytorchs_own() -> None:
    for loss in (nn.CrossEntropyLoss(), functional.cross_entropy):
        assert measured(loss, LOGITS, CLASSES.reshape(12, 1), 3)["loss"] == pytest.approx(EXPECTED)


def test_rows_that_meet_classes_are_refused_where_both_are_as_many() -> None:
    with pytest.raises(ConfigurationError, match=STRETCHED):
        measured(own_mse, LOGITS, CLASSES.astype("float32"), 3, batch_size=3)


def test_columns_are_stretched_only_where_it_is_written_out() -> None:
    y = CLASSES.astype("float32").reshape(12, 1)
    expected = pytest.approx(float(((LOGITS - y) ** 2).mean()))
    for loss in (own_mse, nn.MSELoss(), functional.mse_loss):
        with pytest.raises(ConfigurationError, match=STRETCHED):
            measured(loss, LOGITS, y, 3)
    assert measured(lambda o, label: own_mse(o, label.expand_as(o)), LOGITS, y, 3)["loss"] == expected
    assert measured(lambda o, label: own_mse(o, label[:, None]), LOGITS, y[:, 0], 3)["loss"] == expected


PAIRS = {
    "pairs": lambda o, y: ((o - o.T).sigmoid() * (y[:, None] > y)).mean(),
    "likeness": lambda o, y: ((o @ o.T) * (y.unsqueeze(1) == y)).mean(),
    "centred": lambda o, y: ((o.squeeze(1) - y - (y - y.mean())) ** 2).sum() / ((y - y.mean()) ** 2).sum().clamp(1),
}


@pytest.mark.parametrize("loss", PAIRS.values(), ids=PAIRS)
def test_a_loss_over_pairs_of_rows_is_the_users_own_business(loss: Any) -> None:
    assert np.isfinite(measured(loss, X, Y, 1)["loss"])


WRONG_LOSSES = {
    "matrix": (lambda o, y: (o - o.T) ** 2, r"shape \(4, 4\) for 4 rows"),
    "part": (lambda o, y: (o.flatten() - y)[:2], r"shape \(2,\) for 4 rows"),
    "one in a list": (lambda o, y: own_mse(o.flatten(), y)[None], r"shape \(1,\) for 4 rows"),
    "number": (lambda o, y: 0.5, "returned 0.5"),
    "nothing": (lambda o, y: None, "returned None"),
}


@pytest.mark.parametrize(("loss", "message"), WRONG_LOSSES.values(), ids=WRONG_LOSSES)
def test_a_loss_that_is_no_scalar_and_no_value_a_row_is_refused(loss: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        measured(loss, X, Y, 1)


WRONG_METRICS = {
    "scalar": lambda o, y: (o.flatten() - y).abs().mean(),
    "matrix": lambda o, y: o - o.T,
    "columns": lambda o, y: torch.cat([o, o], 1),
    "part": lambda o, y: o.flatten()[:2],
}


@pytest.mark.parametrize("metric", WRONG_METRICS.values(), ids=WRONG_METRICS)
def test_a_metric_that_is_no_value_a_row_is_refused(metric: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"metric 'm' returned shape .* must return a value a row"):
        measured(nn.MSELoss(), X, Y, 1, m=metric)


@pytest.mark.parametrize("value", [{"a": 1}, None, "0.5"], ids=str)
def test_a_metric_that_returns_no_numbers_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"metric 'm' returned .* must return a tensor with a value a row"):
        measured(nn.MSELoss(), X, Y, 1, m=lambda o, y: value)


def test_a_value_for_each_part_of_a_row_is_averaged() -> None:
    x, y = LOGITS.reshape(12, 3), LOGITS[::-1].copy()
    found = measured(nn.MSELoss(), x, y, 3, error=lambda o, label: (o - label).abs())
    assert found["error"] == pytest.approx(float(np.abs(x - y).mean()))


def test_labels_by_name_are_looked_at_too() -> None:
    output = {"a": torch.zeros(4, 1), "b": torch.zeros(4, 3)}
    label = {"a": torch.zeros(4), "b": torch.zeros(4, dtype=torch.int64), "c": torch.zeros(4)}
    assert {name: part.shape for name, part in like_output(output, label).items()} == {
        "a": (4, 1),
        "b": (4,),
        "c": (4,),
    }
    with pytest.raises(ConfigurationError, match=STRETCHED):
        call_watched("the loss", lambda o, y: own_mse(o["a"], y["a"]), output, label)
    with pytest.raises(ConfigurationError, match=STRETCHED):
        call_watched("the loss", lambda o, y: own_mse(o, y["a"]), output["a"], label)
    call_watched("the loss", lambda o, y: functional.cross_entropy(o["b"], y["b"]) + o["a"].mean(), output, label)


sizes = st.lists(st.integers(1, 3), max_size=3)


@settings(max_examples=drawn(200), deadline=None)
@given(sizes, sizes, st.integers(2, 4))
def test_element_by_element_is_right_or_refused_in_all_shapes(one: list[int], other: list[int], rows: int) -> None:
    """Whatever the shapes: rows never meet other rows, and what is no error of PyTorch's own is as if row by row."""
    output, label = torch.rand(rows, *one), torch.rand(rows, *other)
    fitted = like_output(output, label)
    for given_label, function in ((fitted, own_mse), (label, own_mse)):
        try:
            found = call_watched("the loss", function, output, given_label)
        except (ConfigurationError, RuntimeError):
            assert given_label.shape != output.shape
            continue
        assert given_label.shape == output.shape
        row_by_row = [own_mse(output[i], given_label[i]) for i in range(rows)]
        assert torch.allclose(found, torch.stack(row_by_row).mean())
    assert (fitted.shape == output.shape) == ([d for d in one if d > 1] == [d for d in other if d > 1])


def poisson(output: torch.Tensor, label: torch.Tensor) -> Any:
    return -torch.distributions.Poisson(output.exp()).log_prob(label).mean()


def bernoulli(output: torch.Tensor, label: torch.Tensor) -> Any:
    return -torch.distributions.Bernoulli(logits=output).log_prob(label).mean()


def focal(output: torch.Tensor, label: torch.Tensor) -> Any:
    target = label.view_as(output)
    each = functional.binary_cross_entropy_with_logits(output, target, reduction="none")
    right = (output * (2 * target - 1)).sigmoid().flatten()
    return (each * (1 - right) ** 2).mean()


def smoothed(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    target = torch.full((len(label),), 0.1)
    target[label == 1] = 0.9
    return functional.mse_loss(output.sigmoid(), target)


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", [poisson, bernoulli, focal, smoothed])
def test_losses_that_stretch_far_inside_are_refused(loss: Any) -> None:
    with pytest.raises(ConfigurationError, match=STRETCHED):
        measured(loss, X, Y, 1)


@pytest.mark.parametrize("loss", [poisson, bernoulli, focal, smoothed])
def test_they_are_right_in_one_shape(loss: Any) -> None:
    expected = float(loss(torch.tensor(X), torch.tensor(Y)))
    assert measured(loss, X, Y, batch_size=11)["loss"] == pytest.approx(expected, rel=1e-5)


class Squeezed(nn.Module):
    """Ends as many models do."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, outputs)

    def forward(self, x: torch.Tensor) -> Any:
        return self.layer(x).squeeze()


@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("loss", [nn.MSELoss(), functional.mse_loss, own_mse], ids=["module", "function", "own"])
def test_a_batch_of_one_row_that_a_module_squeezes_keeps_its_row(loss: Any, outputs: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(9, 4)).astype("float32")
    y = rng.normal(size=(9, outputs)[: 1 + (outputs > 1)]).astype("float32")

    def model_fn(params: Any) -> TorchModel:
        module = Squeezed(outputs)
        return TorchModel(
            module, torch.optim.SGD(module.parameters(), lr=0.1), loss, {"own": lambda o, y: (o - y) ** 2}
        )

    label = {"y": ColumnSpec("float32", y.shape[1:])}
    trainer = TorchTrainer(Hooks(model_fn), Columns({"x": ColumnSpec("float32", (4,))}, label), resources=CPU)
    values = []
    for batch_size in (9, 4):
        trainer.build("t", {})
        feed = Feed({"x": x, "y": y}, batch_size=batch_size)
        values.append(trainer.finish(trainer.evaluate(EVAL, feed)))
    assert values[0] == pytest.approx(values[1], rel=1e-5)
