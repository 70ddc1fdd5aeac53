"""Classification metrics of torchmetrics on logits: their value does not depend on batches, or it is told."""

from __future__ import annotations

import inspect
import json
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from trainer_data import columns, feed
from unimported import exported

from cerebro_spark.codec import from_plain, to_plain
from cerebro_spark.result.decoding import find_meaning
from cerebro_spark.trainer import Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.trainer.torch.losses import BatchLoss
from cerebro_spark.trainer.torch.metric_inputs import _warn_of_guesses, _warn_of_probabilities
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.types import Metrics, Unit

CPU = torch.device("cpu")
ROWS = 48
FORM = re.compile("Binary|Multiclass|Multilabel")
NAMES = [name for name in exported("torchmetrics", "classification") if FORM.match(name)]
UNEQUAL = {"BinaryFairness", "BinaryGroupStatRates"}  # want a third argument, the group
SETTINGS = {"num_classes": 3, "num_labels": 3, "beta": 2.0}
SETTINGS |= dict.fromkeys(["min_recall", "min_precision", "min_specificity", "min_sensitivity"], 0.5)
Rows = tuple[torch.Tensor, torch.Tensor]
Parts = list[Metrics]


def rows_of(form: str) -> Rows:
    """Logits, of which the first half lies in [0, 1] and the second half does not, and labels."""
    drawn = torch.Generator().manual_seed(5)
    shape = (ROWS,) if form == "Binary" else (ROWS, 3)
    logits = torch.rand(shape, generator=drawn)
    logits[ROWS // 2 :] = logits[ROWS // 2 :] * 8 - 4
    if form == "Multiclass":
        return logits, torch.randint(0, 3, (ROWS,), generator=drawn)
    return logits, (logits + 1 > 2.5 * torch.rand(shape, generator=drawn)).long()


def measure(
    make: Callable[[], Any], rows: Rows, size: int, takes_logits: bool | None, cuts: tuple[int, ...] = ()
) -> Any:
    """The value of a metric when partitions are measured one by one, and what is handed on goes through a log."""
    metric, parts = make(), Parts()
    for start, stop in zip((0, *cuts), (*cuts, ROWS), strict=True):
        collector = collect(metric, takes_logits, parts[-1] if parts else None)
        for output, label in zip(*(each[start:stop].split(size) for each in rows), strict=True):
            collector.add(torch.tensor(0.0), output, label)
        plain = json.loads(json.dumps(to_plain(collector.collect(), "metrics")))
        parts.append(from_plain(Metrics, plain))
    return collect(metric, takes_logits).finish(Metrics.merge(parts))["m"]


def collect(metric: Any, takes_logits: bool | None, carried: Metrics | None = None) -> MetricCollector:
    return MetricCollector({"m": metric}, carried, lambda output, label, n: n, CPU, takes_logits)


def make_metric(name: str, **given: Any) -> Any:
    classification = pytest.importorskip("torchmetrics.classification")
    kind = getattr(classification, name)
    wanted = inspect.signature(kind.__init__).parameters
    return kind(**{key: value for key, value in SETTINGS.items() if key in wanted and key != "average"}, **given)


def is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() == 1


# Importing torchmetrics takes seconds, and what it warns of is no business of these tests.
slow = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class TestOfLogits:
    """Where the loss says that outputs are logits."""

    pytestmark = slow

    @pytest.mark.parametrize("name", sorted(set(NAMES) - UNEQUAL))
    def test_no_metric_depends_on_the_batches(self, name: str) -> None:
        form = FORM.match(name)
        assert form
        logits, label = rows_of(form[0])
        chances = logits.softmax(1) if form[0] == "Multiclass" else logits.sigmoid()
        expected = make_metric(name)(chances, label)
        if not is_number(expected):
            return
        for size, cuts in ((4, ()), (ROWS, ()), (7, (10, 30))):
            found = measure(lambda: make_metric(name), (logits, label), size, True, cuts)
            assert found == pytest.approx(float(expected), rel=1e-5, abs=1e-6, nan_ok=True)

    @pytest.mark.parametrize("name", ["BinaryAUROC", "BinaryCalibrationError", "MulticlassAUROC", "MultilabelF1Score"])
    def test_metrics_by_themselves_guess(self, name: str) -> None:
        """Older runs did so: the values of both rules differ, or this file would show nothing."""
        form = FORM.match(name)
        assert form
        by_batch = measure(lambda: make_metric(name), rows_of(form[0]), 4, None)
        assert by_batch != pytest.approx(measure(lambda: make_metric(name), rows_of(form[0]), ROWS, None))
        assert by_batch != pytest.approx(measure(lambda: make_metric(name), rows_of(form[0]), 4, True))

    @pytest.mark.parametrize("size", [4, ROWS])
    def test_compositions_and_wrappers_too(self, size: int) -> None:
        wrappers = pytest.importorskip("torchmetrics.wrappers")
        logits, label = rows_of("Binary")
        auc = float(make_metric("BinaryAUROC")(logits.sigmoid(), label))
        accuracy = float(make_metric("BinaryAccuracy")(logits.sigmoid(), label))

        def composed() -> Any:
            flat = wrappers.LambdaInputTransformer(make_metric("BinaryAccuracy"), torch.flatten, torch.flatten)
            return 1 - (make_metric("BinaryAUROC") + flat) / 2

        found = measure(composed, (logits[:, None], label), size, True, (11, 30))
        assert found == pytest.approx(1 - (auc + accuracy) / 2)

    @pytest.mark.parametrize("size", [4, ROWS])
    def test_probabilities_are_not_taken_for_logits(self, size: int) -> None:
        wrappers = pytest.importorskip("torchmetrics.wrappers")
        logits, label = rows_of("Binary")
        expected = float(make_metric("BinaryCalibrationError")(logits.sigmoid(), label))

        def wrapped() -> Any:
            inner = make_metric("BinaryCalibrationError")
            return wrappers.LambdaInputTransformer(inner, transform_pred=torch.sigmoid)

        assert measure(wrapped, (logits, label), size, True, (20,)) == pytest.approx(expected)

    def test_a_metric_is_left_as_it_was(self) -> None:
        metric = make_metric("BinaryAUROC")
        update, names = vars(metric)["update"], set(vars(metric))
        collect(metric, True).add(torch.tensor(0.0), *rows_of("Binary"))
        assert vars(metric)["update"] is update
        assert set(vars(metric)) == names

    @pytest.mark.parametrize("takes_logits", [True, False])
    def test_a_metric_that_is_told_to_normalize_nothing_guesses_nothing(
        self, takes_logits: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        _warn_of_guesses.cache_clear()
        logits, label = rows_of("Binary")
        logits = logits * 100  # whose sigmoid would be 1 for nearly all
        expected = float(make_metric("BinaryAUROC", normalization=None)(logits, label))
        found = measure(lambda: make_metric("BinaryAUROC", normalization=None), (logits, label), 4, takes_logits, (20,))
        assert found == pytest.approx(expected)
        assert not caplog.records

    def test_a_metric_that_is_made_anew_by_reset_is_seen(self) -> None:
        torchmetrics = pytest.importorskip("torchmetrics")

        class Renewed(torchmetrics.Metric):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.inner = make_metric("BinaryAccuracy")

            def update(self, preds: Any, target: Any) -> None:
                self.inner.update(preds, target)

            def compute(self) -> Any:
                return self.inner.compute()

            def reset(self) -> None:
                super().reset()
                self.inner = make_metric("BinaryAccuracy")

        metric = Renewed()
        collector = collect(metric, True)
        logits, label = rows_of("Binary")
        for output, target in zip(logits.split(4), label.split(4), strict=True):
            collector.add(torch.tensor(0.0), output, target)
        assert float(metric.compute()) == float(make_metric("BinaryAccuracy")(logits.sigmoid(), label))

    def test_outputs_that_look_like_probabilities_are_told(self, caplog: pytest.LogCaptureFixture) -> None:
        _warn_of_probabilities.cache_clear()
        logits, label = rows_of("Binary")
        measure(lambda: make_metric("BinaryAUROC"), (logits, label), ROWS, True)
        assert not caplog.records
        measure(lambda: make_metric("BinaryAUROC"), (logits.sigmoid(), label), ROWS, True)
        assert "'m': the loss takes logits, but" in caplog.text


class TestOfAnything:
    """Where nothing says what outputs are."""

    pytestmark = slow

    @pytest.mark.parametrize("given", [{}, {"thresholds": 20}], ids=["carried", "added"])
    @pytest.mark.parametrize(("size", "cuts"), [(4, ()), (ROWS // 2, ()), (ROWS, (ROWS // 2,))])
    def test_values_of_both_kinds_are_told(
        self, given: Any, size: int, cuts: tuple[int, ...], caplog: pytest.LogCaptureFixture
    ) -> None:
        _warn_of_guesses.cache_clear()
        measure(lambda: make_metric("BinaryAUROC", **given), rows_of("Binary"), size, False, cuts)
        assert re.search(r"(?s)'m' got .*in \[0, 1\].*BinaryAUROC.*LambdaInputTransformer.*BCEWith", caplog.text)

    def test_what_is_one_kind_alone_is_right(self, caplog: pytest.LogCaptureFixture) -> None:
        _warn_of_guesses.cache_clear()
        logits, label = rows_of("Binary")
        expected = float(make_metric("BinaryAUROC")(logits.sigmoid(), label))
        for output in (logits.sigmoid(), logits + 10):
            found = measure(lambda: make_metric("BinaryAUROC"), (output, label), 4, False, (20,))
            assert found == pytest.approx(expected)
        assert not caplog.records

    def test_no_numbers_are_no_kind(self) -> None:
        logits, label = rows_of("Binary")
        chances = logits.sigmoid()
        chances[3] = torch.nan
        measure(lambda: make_metric("BinaryAccuracy"), (chances, label), 4, False)

    def test_the_largest_of_several_logits_needs_no_guess(self) -> None:
        logits, label = rows_of("Multiclass")
        expected = float(make_metric("MulticlassAccuracy")(logits, label))
        assert measure(lambda: make_metric("MulticlassAccuracy"), (logits, label), 4, False) == pytest.approx(expected)


class Mine(nn.CrossEntropyLoss):
    """Is given probabilities."""

    def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return super().forward(output.log(), label)


def test_which_losses_say_that_outputs_are_logits() -> None:
    weighted = partial(F.cross_entropy, ignore_index=-1)
    saying: list[Any] = [nn.BCEWithLogitsLoss(), nn.CrossEntropyLoss(), F.binary_cross_entropy_with_logits, weighted]
    silent: list[Any] = [
        nn.BCELoss(),
        nn.NLLLoss(),
        nn.MSELoss(),
        F.nll_loss,
        Mine(),
        lambda output, label: output.mean(),
    ]
    for loss in saying:
        meaning = find_meaning(loss)
        assert meaning is not None
        assert meaning.scale == "logits"
        assert BatchLoss(loss).takes_logits
    for loss in silent:
        assert not BatchLoss(loss).takes_logits


def model_fn(params: Any) -> TorchModel:
    layer = nn.Linear(8, 1)
    module = nn.Sequential(layer, nn.Flatten(0))
    with torch.no_grad():
        layer.weight.mul_(0.3)  # so that many logits lie in [0, 1]
        layer.bias.fill_(0.5)
    metrics = {name: make_metric(name) for name in ("BinaryAUROC", "BinaryAccuracy")}
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=1e-3), nn.BCEWithLogitsLoss(), metrics=metrics)


def values_of(rule: str, size: int) -> dict[str, float]:
    spec = TrainerSpec(Hooks(model_fn), 3, "torch", Resources(device="cpu"), metric_rule=rule)  # type: ignore[arg-type]
    trainer = spec.make_trainer(columns("tabular"))
    trainer.build("t", {})
    found = trainer.evaluate(Unit("t", 1, "v", "eval"), Feed(feed("tabular", 1).arrays, batch_size=size))
    return trainer.finish(found)


@pytest.mark.slow
def test_a_trainer_goes_by_the_rule_of_its_run() -> None:
    today, earlier = ([values_of(rule, size) for size in (2, 90)] for rule in ("loss", "guess"))
    for name in ("BinaryAUROC", "BinaryAccuracy"):
        assert today[0][name] == pytest.approx(today[1][name])
    assert earlier[0] != earlier[1]


def test_a_spec_of_an_older_release_means_the_rule_of_then() -> None:
    spec = TrainerSpec(Hooks(len), 3)
    assert pickle.loads(pickle.dumps(spec)).metric_rule == "loss"
    older = object.__new__(TrainerSpec)
    older.__setstate__([spec.hooks, 3, "auto", Resources()])
    assert (older.seed, older.metric_rule) == (3, "guess")
