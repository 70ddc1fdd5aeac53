"""Labels that a loss is not made for are refused by name, wherever they are: PyTorch would learn from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.base import Member
from cerebro_spark.trainer.label_rules import LabelChecks, LabelRule
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

ROWS = 96
UNIT, MEASURING = Unit("t", 1, "p"), Unit("t", 1, "p", "eval")
BINARY: list[Any] = [
    nn.BCEWithLogitsLoss(),
    nn.BCELoss(),
    nn.MultiLabelSoftMarginLoss(),
    functional.binary_cross_entropy_with_logits,
    partial(functional.binary_cross_entropy_with_logits, pos_weight=torch.tensor(2.0)),
]
SIGNED: list[Any] = [nn.SoftMarginLoss(), nn.HingeEmbeddingLoss(), functional.soft_margin_loss]
CLASSES: list[Any] = [nn.CrossEntropyLoss(), nn.NLLLoss(), nn.MultiMarginLoss(), functional.cross_entropy]


def name_of(loss: Any) -> str:
    return getattr(loss, "__name__", type(loss).__name__)


def feed_of(labels: Any, weight: Any = None) -> Feed:
    rows = np.random.default_rng(0).normal(size=(len(labels), 4)).astype("float32")
    weights = {} if weight is None else {"w": np.asarray(weight, "float32")}
    return Feed({"x": rows, "y": np.asarray(labels), **weights}, batch_size=32, key="p")


def trainer_of(loss: Any, outputs: int, labels: Any, weight: str | None = None, **hooks: Any) -> TorchTrainer:
    def model_fn(params: Any) -> TorchModel:
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, outputs), nn.Sigmoid())
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), loss)

    spec = ColumnSpec(str(np.asarray(labels).dtype), np.asarray(labels).shape[1:])
    columns = Columns({"x": ColumnSpec("float32", (4,))}, {"y": spec}, weight)
    trainer = TorchTrainer(Hooks(model_fn, **hooks), columns, resources=Resources(device="cpu", threads=1))
    trainer.build("t", {})
    return trainer


def last_is(value: float, others: Iterable[float], dtype: str = "float32") -> Any:
    """Labels of which only the last one is wrong: no first batch has it."""
    good = np.resize(np.array(list(others), dtype), ROWS)
    good[-1] = value
    return good


def refuse(loss: Any, outputs: int, labels: Any) -> str:
    """Return how training refuses labels; evaluating must refuse them too."""
    for run, unit in (("train", UNIT), ("evaluate", MEASURING)):
        trainer = trainer_of(loss, outputs, labels)
        with pytest.raises(ConfigurationError) as refused:
            getattr(trainer, run)(unit, feed_of(labels))
    return str(refused.value)


@pytest.mark.parametrize("loss", BINARY, ids=name_of)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_labels_of_two_classes_are_from_zero_to_one(loss: Any, dtype: str) -> None:
    message = refuse(loss, 1, last_is(2, [0, 1], dtype))
    assert message.startswith("label 'y' is 2 in some rows (1 of 96 values), but ")
    assert "labels from 0 to 1" in message
    assert "CrossEntropyLoss with an output for each class" in message
    trainer_of(loss, 1, last_is(1, [0, 1], dtype)).train(UNIT, feed_of(last_is(1, [0, 1], dtype)))


def test_probabilities_may_be_rounded() -> None:
    labels = last_is(1.000001, [0.3, 0.9])
    trainer_of(nn.BCEWithLogitsLoss(), 1, labels).train(UNIT, feed_of(labels))


@pytest.mark.parametrize("loss", SIGNED, ids=name_of)
def test_losses_of_signs_refuse_zeros(loss: Any) -> None:
    message = refuse(loss, 1, last_is(0, [-1, 1]))
    assert "label 'y' is 0 in" in message
    assert "labels that are -1 or 1" in message
    assert "2 * label - 1" in message
    trainer_of(loss, 1, last_is(1, [-1, 1])).train(UNIT, feed_of(last_is(1, [-1, 1])))


@pytest.mark.parametrize("loss", CLASSES, ids=name_of)
@pytest.mark.parametrize("wrong", [-1, 1.5])
def test_class_numbers_are_whole_and_count_from_zero(loss: Any, wrong: float) -> None:
    message = refuse(loss, 3, last_is(wrong, [0, 1, 2]))
    assert f"label 'y' is {wrong:g} in" in message
    assert "class numbers of at least 0" in message


@pytest.mark.parametrize("loss", CLASSES, ids=name_of)
def test_class_numbers_are_below_the_number_of_outputs_once_that_is_known(loss: Any) -> None:
    good, bad = last_is(2, [0, 1, 2], "int64"), last_is(3, [0, 1, 2], "int64")
    trainer = trainer_of(loss, 3, good)
    trainer.train(UNIT, feed_of(good))
    with pytest.raises(ConfigurationError, match=r"label 'y' is 3 in .* class numbers from 0 to 2"):
        trainer.train(Unit("t", 2, "p"), feed_of(bad))


def test_a_class_number_that_is_too_high_in_the_first_batch_is_refused_by_name() -> None:
    labels = np.full(ROWS, 3)
    with pytest.raises(ConfigurationError, match=r"the label is 3 in some rows .* class numbers from 0 to 2"):
        trainer_of(nn.CrossEntropyLoss(), 3, labels).train(UNIT, feed_of(labels))


@pytest.mark.parametrize("ignored", [-100, 255])
def test_labels_that_the_loss_ignores_are_right(ignored: int) -> None:
    labels = last_is(ignored, [0, 1, 2], "int64")
    trainer_of(nn.CrossEntropyLoss(ignore_index=ignored), 3, labels).train(UNIT, feed_of(labels))


def test_probabilities_of_classes_are_no_class_numbers() -> None:
    labels = np.random.default_rng(0).dirichlet([1, 1, 1], ROWS).astype("float32")
    trainer_of(nn.CrossEntropyLoss(), 3, labels).train(UNIT, feed_of(labels))


@pytest.mark.parametrize("log_target", [True, False])
def test_logarithms_of_probabilities_may_be_negative(log_target: bool) -> None:
    labels = last_is(-0.5, [-0.1])
    trainer = trainer_of(nn.KLDivLoss(reduction="batchmean", log_target=log_target), 1, labels)
    if log_target:
        trainer.train(UNIT, feed_of(labels))
    else:
        with pytest.raises(ConfigurationError, match="labels of at least 0"):
            trainer.train(UNIT, feed_of(labels))


def test_rows_that_weigh_nothing_may_have_any_label() -> None:
    labels = last_is(-1, [0, 1])
    trainer = trainer_of(nn.BCEWithLogitsLoss(reduction="none"), 1, labels, "w")
    trainer.train(UNIT, feed_of(labels, weight=labels >= 0))
    with pytest.raises(ConfigurationError, match="label 'y' is -1"):
        trainer.train(Unit("t", 2, "p"), feed_of(labels.copy(), weight=np.ones(ROWS)))


def test_what_input_fn_makes_of_labels_counts() -> None:
    labels = np.resize(np.array([1, 2], "int64"), ROWS)

    def shifted(by: int) -> TorchTrainer:
        return trainer_of(
            nn.BCEWithLogitsLoss(), 1, labels, input_fn=lambda batch, params: {**batch, "y": batch["y"] + by}
        )

    shifted(-1).train(UNIT, feed_of(labels))
    with pytest.raises(ConfigurationError, match="label 'y' is 3"):
        shifted(1).train(UNIT, feed_of(np.resize(np.array([-1, 0, 2], "int64"), ROWS)))


def test_members_of_a_bundle_are_refused_by_name() -> None:
    labels = last_is(2, [0, 1])
    trainer = trainer_of(nn.BCEWithLogitsLoss(), 1, labels)
    members = [Member(Unit(trial, 1, "p"), {}, feed_of(labels)) for trial in ("a", "b", "c")]
    for outcome in [*trainer.train_together(members), *trainer.train_together(members)]:
        assert isinstance(outcome, ConfigurationError)
        assert "label 'y' is 2" in str(outcome)


def test_a_loss_of_the_users_own_is_warned_of_labels_that_it_may_mask(caplog: pytest.LogCaptureFixture) -> None:
    def masked(output: Any, label: Any) -> Any:
        each = functional.binary_cross_entropy_with_logits(output.squeeze(1), label, reduction="none")
        return torch.where(label >= 0, each, torch.zeros_like(each))

    labels = np.resize(np.array([0, 1, -1], "float32"), ROWS)
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        trainer_of(masked, 1, labels).train(UNIT, feed_of(labels))
    assert "binary_cross_entropy_with_logits" in caplog.text
    assert "labels from 0 to 1" in caplog.text


def test_labels_are_looked_at_once() -> None:
    class Counted(LabelRule):
        looks = 0

        def find_wrong(self, labels: Any) -> Any:
            Counted.looks += 1
            return labels[:0]

    checks, feed = LabelChecks(["y"], None), feed_of(np.zeros(ROWS))
    for _ in range(3):
        checks.check({"y": Counted("loss")}, feed)
    checks.check({"y": Counted("loss")}, feed_of(np.zeros(ROWS)))
    assert Counted.looks == 2


@given(
    st.lists(st.sampled_from([-1, 0, 1, 2, 0.5, 255, float("nan")]), max_size=20),
    st.sampled_from([(0, 1), (0, np.inf)]),
    st.booleans(),
    st.sampled_from([None, 255]),
    st.sampled_from(["float32", "float64", "float16"]),
)
def test_wrong_labels_are_those_that_the_rule_leaves_out(
    values: list[float], ends: tuple[float, float], whole: bool, ignored: float | None, dtype: str
) -> None:
    rule = LabelRule("loss", *ends, whole=whole, ignored=ignored)
    wrong = [
        value
        for value in values
        if value == value
        and value != ignored
        and (not ends[0] <= value <= ends[1] or (whole and not float(value).is_integer()))
    ]
    assert rule.find_wrong(np.array(values, dtype)).tolist() == wrong


@pytest.mark.parametrize("loss", [nn.MSELoss(), nn.L1Loss(), functional.mse_loss, nn.PoissonNLLLoss()], ids=name_of)
def test_whole_numbers_that_a_loss_rounds_are_said_once(loss: Any, caplog: pytest.LogCaptureFixture) -> None:
    labels = np.arange(ROWS) + (1 << 24)
    trainer = trainer_of(loss, 1, labels)
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        trainer.train(UNIT, feed_of(labels))
        trainer.evaluate(MEASURING, feed_of(labels))
    assert caplog.text.count(f"label 'y' has {ROWS // 2} rows with whole numbers beyond 16777216") == 1


@pytest.mark.parametrize("labels", [np.arange(ROWS), np.arange(ROWS) * 2.0**24, np.arange(ROWS) % 3], ids=str)
def test_labels_that_no_loss_rounds_are_not_spoken_of(labels: Any, caplog: pytest.LogCaptureFixture) -> None:
    trainer = trainer_of(nn.MSELoss(), 1, labels.astype("float32" if labels.dtype.kind == "f" else "int64"))
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        trainer.train(UNIT, feed_of(labels))
    assert "whole numbers" not in caplog.text
