"""A metric that computes outside PyTorch compares each row with its own label, or is refused with both shapes."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.torch.losses import BatchLoss
from cerebro_spark.trainer.torch.metrics import MetricCollector

Rows = tuple[torch.Tensor, torch.Tensor]
CPU = torch.device("cpu")
ROWS = 40
SHAPES = [((1,), ()), ((), (1,)), ((1, 1), ()), ((1, 3), (3,))]
STRETCHED = r"'m' compares shapes .*NumPy would stretch over each other"

# How values leave PyTorch.
LEAVE: dict[str, Any] = {
    "numpy": lambda tensor: tensor.numpy(),
    "detached": lambda tensor: tensor.detach().cpu().numpy(),
    "as float": lambda tensor: tensor.float().cpu().numpy(),
    "array": np.asarray,
    "list": lambda tensor: np.array(tensor.tolist()),
    "exchanged": np.from_dlpack,
}


class Total:
    """A metric object that sums what a function says of a batch."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __deepcopy__(self, memo: Any) -> Total:
        made = Total(self._function)
        made.total = self.total
        return made

    def reset(self) -> None:
        self.total = 0.0

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.total += float(self._function(output, label))

    def compute(self) -> float:
        return self.total


def measure(metric: Any, output: torch.Tensor, label: torch.Tensor, batch: int = ROWS) -> Any:
    collector = MetricCollector({"m": metric}, None, lambda output, label, rows: rows, CPU)
    for start in range(0, len(label), batch):
        collector.add(torch.tensor(0.0), output[start : start + batch], label[start : start + batch])
    if isinstance(metric, Total):
        return metric.total
    return collector.collect().values()["m"]


def draw(
    output: tuple[int, ...] = (1,), label: tuple[int, ...] = (), seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    values = torch.randn(ROWS, *output, generator=made)
    noise = torch.randn(ROWS, *output, generator=made)
    return values, (values + noise > 0).float().reshape(ROWS, *label)


WRONG: dict[str, Any] = {
    "error": lambda o, y: np.abs(o - y).sum(),
    "squares": lambda o, y: ((y - o) ** 2).mean(),
    "hits": lambda o, y: ((o > 0) == (y > 0)).sum(),
    "chosen": lambda o, y: np.where(y > 0, o, -o).sum(),
}


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("leave", LEAVE.values(), ids=LEAVE)
def test_an_object_that_stretches_outside_pytorch_is_refused(leave: Any, wrong: Any, shapes: Any) -> None:
    metric = Total(lambda output, label: wrong(leave(output), leave(label)))
    with pytest.raises(ConfigurationError, match=STRETCHED):
        measure(metric, *draw(*shapes))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shapes", SHAPES[:2], ids=str)
def test_a_function_that_stretches_outside_pytorch_is_refused(shapes: Any, axis: int) -> None:
    metric = lambda o, y: torch.from_numpy(((o.numpy() - y.numpy()) ** 2).mean(axis))  # noqa: E731
    with pytest.raises(ConfigurationError, match=STRETCHED):
        measure(metric, *draw(*shapes))


def flat(o: Any, y: Any) -> tuple[Any, Any]:
    return np.ravel(o), np.ravel(y)


RIGHT: dict[str, Any] = {
    "flattened": flat,
    "squeezed": lambda o, y: (o.squeeze(-1), y),
    "indexed": lambda o, y: (o[:, 0], y),
    "a column made": lambda o, y: (o, y[:, None]),
    "shaped alike": lambda o, y: (o, y.reshape(o.shape)),
}
VALUES: dict[str, Any] = {
    **WRONG,
    "bias": lambda o, y: (o - y).sum(),
    "of one only": lambda o, y: o.mean(),
    "means": lambda o, y: o.mean() - y.mean(),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("right", RIGHT.values(), ids=RIGHT)
def test_a_metric_that_gives_both_one_shape_is_left_alone(right: Any, value: Any, seed: int) -> None:
    output, label = draw(seed=seed)
    expected = value(*flat(output.numpy(), label.numpy()))
    for leave in (LEAVE["numpy"], LEAVE["array"]):
        metric = Total(lambda o, y, leave=leave: value(*right(leave(o), leave(y))))
        assert measure(metric, output, label) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_labels_that_are_all_the_same_show_nothing_wrong() -> None:
    for right in RIGHT.values():
        metric = Total(lambda o, y, right=right: WRONG["hits"](*right(o.numpy(), y.numpy())))
        output, _ = draw()
        assert measure(metric, output, torch.zeros(ROWS)) == float((output <= 0).sum())


def test_a_few_other_labels_are_enough_to_show_it() -> None:
    output, label = draw()
    label.zero_()
    label[ROWS // 2] = 1.0
    output[0], output[ROWS // 2] = 3.0, 2.0
    with pytest.raises(ConfigurationError, match=STRETCHED):
        measure(Total(lambda o, y: WRONG["error"](o.numpy(), y.numpy())), output, label)


def test_the_same_shapes_are_computed_once() -> None:
    calls = []

    def error(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        calls.append(len(label))
        return torch.from_numpy(np.abs(output.numpy() - label.numpy()))

    output, label = draw((), ())
    assert measure(error, output, label, batch=8) == pytest.approx(float((output - label).abs().mean()))
    assert calls == [8] * 5


def test_what_is_tried_changes_neither_the_value_nor_the_generators() -> None:
    def noisy(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        drawn = float(torch.rand(())) + np.random.rand() + random.random()
        return torch.from_numpy(np.abs(output.numpy()[:, 0] - label.numpy())) + drawn

    output, label = draw()
    found = []
    for shaped in (output, output[:, 0]):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        metric = noisy if shaped.ndim == 2 else lambda o, y: noisy(o[:, None], y)
        found.append(
            (measure(metric, shaped, label, batch=8), float(torch.rand(())), np.random.rand(), random.random())
        )
    assert found[0] == found[1]


class Uncopied(Total):
    def __deepcopy__(self, memo: Any) -> Total:
        raise TypeError("no copies")


def test_an_object_that_cannot_be_copied_is_left_alone() -> None:
    output, label = draw()
    metric = Uncopied(lambda o, y: np.abs(o.numpy()[:, 0] - y.numpy()).sum())
    assert measure(metric, output, label) == pytest.approx(float((output[:, 0] - label).abs().sum()), rel=1e-5)


class Kept:
    """A metric object that compares only at the end."""

    def reset(self) -> None:
        self.outputs: list[Any] = []
        self.labels: list[Any] = []

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.outputs += output.tolist()
        self.labels += label.tolist()

    def compute(self) -> float:
        return float(np.abs(np.array(self.outputs) - np.array(self.labels)).mean())


def test_what_is_compared_at_the_end_is_found_too() -> None:
    output, label = draw()
    with pytest.raises(ConfigurationError, match=STRETCHED):
        measure(Kept(), output, label)


def classes(made: torch.Tensor, label: tuple[int, ...]) -> Rows:
    numbers = torch.randint(3, (ROWS,), generator=torch.Generator().manual_seed(1))
    return made + torch.nn.functional.one_hot(numbers, 3), numbers.reshape(ROWS, *label)


@pytest.mark.parametrize("keeps", [True, False])
def test_classes_in_a_column_beside_logits_are_compared_with_their_own_rows(keeps: bool) -> None:
    output, label = classes(draw((3,), (3,))[0], () if keeps else (1,))
    metric = Total(lambda o, y: (o.numpy().argmax(1, keepdims=keeps) == y.numpy()).sum())
    with pytest.raises(ConfigurationError, match=STRETCHED):
        measure(metric, output, label)
    right = Total(lambda o, y: (o.numpy().argmax(1) == y.numpy().ravel()).sum())
    assert measure(right, output, label) == float((output.argmax(1) == label.flatten()).sum())


def test_a_mean_over_outputs_beside_one_label_is_left_alone() -> None:
    output, label = draw((3,), (3,))
    metric = Total(lambda o, y: np.abs(o.numpy() - y.numpy()).sum())
    expected = float((output - label[:, :1]).abs().sum())
    assert measure(metric, output, label[:, :1]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("function", [True, False])
def test_a_first_batch_that_tells_nothing_does_not_end_the_search(function: bool) -> None:
    output, label = draw()
    label[:8] = 0.0
    if function:
        metric: Any = lambda o, y: torch.from_numpy(((o.numpy() > 0) == (y.numpy() > 0)).mean(0))  # noqa: E731
    else:
        metric = Total(lambda o, y: ((o.numpy() > 0) == (y.numpy() > 0)).sum())
    with pytest.raises(ConfigurationError, match=STRETCHED):
        measure(metric, output, label, batch=8)


def test_batches_that_tell_nothing_are_not_tried_for_ever() -> None:
    calls = []

    def hits(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        calls.append(len(label))
        return torch.from_numpy((output.numpy()[:, 0] > 0) == (label.numpy() > 0))

    output = torch.ones(100, 1)
    measure(hits, output, torch.ones(100), batch=2)
    tries = len(calls) - 50
    measure(hits, torch.ones(200, 1), torch.ones(200), batch=2)
    assert len(calls) - 150 == 2 * tries


@torch.jit.script
def scripted_error(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return ((output - label) ** 2).mean()


LOSSES: dict[str, Any] = {
    "scripted inside": lambda o, y: scripted_error(o, y),
    "by way of numpy": lambda o, y: ((o - torch.from_numpy(y.numpy())) ** 2).mean(),
    "by way of a list": lambda o, y: ((o - torch.tensor(y.tolist())) ** 2).mean(),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_a_loss_that_stretches_where_it_cannot_be_followed_is_refused(loss: Any) -> None:
    output, label = draw()
    with pytest.raises(ConfigurationError, match=r"the loss compares shapes .* stretch over each other"):
        BatchLoss(loss)(output.clone().requires_grad_(), label)
    right = BatchLoss(lambda o, y: loss(o[:, 0], y))(output.detach(), label)
    assert float(right) == pytest.approx(float(((output[:, 0] - label) ** 2).mean()), rel=1e-5)
