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
from cerebro_spark.trainer.torch import rowwise_inputs
from cerebro_spark.trainer.torch.batchwise_inputs import _warn_of_guesses
from cerebro_spark.trainer.torch.losses import BatchLoss
from cerebro_spark.trainer.torch.metric_inputs import _warn_of_probabilities
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.rowwise_inputs import _warn_of_few
from cerebro_spark.types import Metrics, Unit

CPU = torch.device("cpu")
ROWS = 48
FORM = re.compile("Binary|Multiclass|Multilabel")
NAMES = [name for name in exported("torchmetrics", "classification") if FORM.match(name)]
UNEQUAL = {"BinaryFairness", "BinaryGroupStatRates"}  # want a third argument, the group
SETTINGS = {"num_classes": 3, "num_labels": 3, "beta": 2.0}
SETTINGS |= dict.fromkeys(["min_recall", "min_precision", "min_specificity", "min_sensitivity"], 0.5)
# Sizes of batches, and where partitions begin: in the first ones all logits lie in [0, 1], or none does.
CUT: list[tuple[int, tuple[int, ...]]] = [(1, ()), (4, ()), (ROWS, ()), (7, (10, 30)), (ROWS, (ROWS // 2,))]
GIVEN: list[dict[str, Any]] = [{}, {"thresholds": 20}, {"average": "weighted"}, {"ignore_index": 0}]
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
    make: Callable[[], Any],
    rows: Rows,
    size: int,
    takes_logits: bool | None,
    cuts: tuple[int, ...] = (),
    by_rows: bool = True,
) -> Any:
    """The value of a metric when partitions are measured one by one, and what is handed on goes through a log."""
    metric, parts = make(), Parts()
    for start, stop in zip((0, *cuts), (*cuts, ROWS), strict=True):
        collector = collect(metric, takes_logits, parts[-1] if parts else None, by_rows)
        for output, label in zip(*(each[start:stop].split(size) for each in rows), strict=True):
            collector.add(torch.tensor(0.0), output, label)
        plain = json.loads(json.dumps(to_plain(collector.collect(), "metrics")))
        parts.append(from_plain(Metrics, plain))
    return collect(metric, takes_logits, by_rows=by_rows).finish(Metrics.merge(parts))["m"]


def collect(
    metric: Any, takes_logits: bool | None, carried: Metrics | None = None, by_rows: bool = True
) -> MetricCollector:
    return MetricCollector({"m": metric}, carried, lambda output, label, n: n, CPU, takes_logits, by_rows)


def make_metric(name: str, **given: Any) -> Any:
    classification = pytest.importorskip("torchmetrics.classification")
    kind = getattr(classification, name)
    wanted = inspect.signature(kind.__init__).parameters
    return kind(**{key: value for key, value in SETTINGS.items() if key in wanted and key != "average"}, **given)


def make_stepping() -> Any:
    """A metric of one's own that asks another for the value of each batch, which resets that one meanwhile."""
    torchmetrics = pytest.importorskip("torchmetrics")

    class Stepping(torchmetrics.Metric):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.inner = make_metric("BinaryAUROC")

        def update(self, preds: Any, target: Any) -> None:
            self.inner(preds, target)

        def compute(self) -> Any:
            return self.inner.compute()

        def reset(self) -> None:
            super().reset()
            self.inner.reset()

    return Stepping()


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

    def test_what_the_loss_tells_is_not_kept_twice(self) -> None:
        wrappers = pytest.importorskip("torchmetrics.wrappers")
        sizes = []
        for wrap in (lambda each: each, lambda each: 1 - each, wrappers.LambdaInputTransformer):
            metric = wrap(make_metric("BinaryAUROC", thresholds=20))
            sizes.append(len(collect(metric, True).collect().states["m"]))
        assert sizes == [80 + 2, 80 + 2, 160 + 2]

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

    @pytest.mark.parametrize("takes_logits", [True, False])
    @pytest.mark.parametrize("name", ["BinaryAccuracy", "BinaryAUROC"])
    def test_a_metric_that_is_made_anew_by_reset_is_seen(self, name: str, takes_logits: bool) -> None:
        wrappers = pytest.importorskip("torchmetrics.wrappers")

        class Renewed(wrappers.LambdaInputTransformer):  # type: ignore[misc, name-defined]
            def reset(self) -> None:
                self.wrapped_metric = make_metric(name)

        logits, label = rows_of("Binary")
        expected = float(make_metric(name)(logits.sigmoid(), label))
        found = measure(lambda: Renewed(make_metric(name)), (logits, label), 4, takes_logits, (20,))
        assert found == pytest.approx(expected)

    def test_a_metric_of_ones_own_is_told_too(self) -> None:
        logits, label = rows_of("Binary")
        expected = float(make_metric("BinaryAUROC")(logits.sigmoid(), label))
        assert measure(make_stepping, (logits, label), 4, True, (20,)) == pytest.approx(expected)

    def test_outputs_that_look_like_probabilities_are_told(self, caplog: pytest.LogCaptureFixture) -> None:
        _warn_of_probabilities.cache_clear()
        logits, label = rows_of("Binary")
        measure(lambda: make_metric("BinaryAUROC"), (logits, label), ROWS, True)
        assert not caplog.records
        measure(lambda: make_metric("BinaryAUROC"), (logits.sigmoid(), label), ROWS, True)
        assert "'m': the loss takes logits, but" in caplog.text


@pytest.fixture(params=["host", "device"])
def _where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are read at once, or only at the end of a partition, as on a device."""
    if request.param == "device":
        monkeypatch.setattr(rowwise_inputs, "_is_free_to_read", lambda tensor: False)


@pytest.mark.usefixtures("_where")
class TestOfAnything:
    """Where nothing says what outputs are, all rows of an evaluation do together."""

    pytestmark = slow

    @pytest.mark.parametrize("name", sorted(set(NAMES) - UNEQUAL))
    def test_no_metric_depends_on_the_batches(self, name: str) -> None:
        form = FORM.match(name)
        assert form
        logits, label = rows_of(form[0])
        chances = logits.softmax(1) if form[0] == "Multiclass" else logits.sigmoid()
        for rows in ((logits, label), (logits.flip(0), label.flip(0)), (chances, label)):
            expected = make_metric(name)(*rows)
            if not is_number(expected):
                return
            for size, cuts in CUT:
                found = measure(lambda: make_metric(name), rows, size, False, cuts)
                assert found == pytest.approx(float(expected), rel=1e-5, abs=1e-6, nan_ok=True)

    @pytest.mark.parametrize("given", GIVEN, ids=str)
    @pytest.mark.parametrize("name", ["BinaryAUROC", "MulticlassAUROC", "MultilabelAveragePrecision"])
    @pytest.mark.parametrize(("size", "cuts"), CUT)
    def test_nor_with_other_settings(self, name: str, given: Any, size: int, cuts: tuple[int, ...]) -> None:
        form = FORM.match(name)
        assert form
        logits, label = rows_of(form[0])
        wanted = inspect.signature(type(make_metric(name)).__init__).parameters
        given = {key: value for key, value in given.items() if key in wanted}
        expected = float(make_metric(name, **given)(logits, label))
        found = measure(lambda: make_metric(name, **given), (logits, label), size, False, cuts)
        assert found == pytest.approx(expected)

    @pytest.mark.parametrize(("size", "cuts"), CUT)
    def test_each_part_of_a_composition_goes_by_what_it_is_given(self, size: int, cuts: tuple[int, ...]) -> None:
        wrappers = pytest.importorskip("torchmetrics.wrappers")
        logits, label = rows_of("Binary")
        auc = float(make_metric("BinaryAUROC")(logits.sigmoid(), label))
        accuracy = float(make_metric("BinaryAccuracy", threshold=0.7)(logits.sigmoid(), label))
        error = float(make_metric("BinaryCalibrationError")(logits.sigmoid(), label))

        def composed() -> Any:
            told = wrappers.LambdaInputTransformer(make_metric("BinaryCalibrationError"), torch.sigmoid)
            return 1 - make_metric("BinaryAUROC") + make_metric("BinaryAccuracy", threshold=0.7) * told

        for takes_logits in (False, True):
            found = measure(composed, (logits, label), size, takes_logits, cuts)
            assert found == pytest.approx(1 - auc + accuracy * error)

    @pytest.mark.parametrize("name", ["BinaryAccuracy", "BinaryAUROC"])
    @pytest.mark.parametrize(("size", "cuts"), CUT)
    def test_ignored_rows_say_nothing(self, name: str, size: int, cuts: tuple[int, ...]) -> None:
        logits, label = rows_of("Binary")
        chances, few = logits.sigmoid(), torch.arange(ROWS) % 5 == 0
        expected = float(make_metric(name)(chances[~few], label[~few]))
        rows = torch.where(few, 7.0, chances), torch.where(few, -1, label)
        found = measure(lambda: make_metric(name, ignore_index=-1), rows, size, False, cuts)
        assert found == pytest.approx(expected)

    @pytest.mark.parametrize(("size", "cuts"), CUT)
    def test_classes_count_as_they_are(self, size: int, cuts: tuple[int, ...]) -> None:
        logits, label = rows_of("Binary")
        rows = (logits > 0.5).long(), label
        expected = float(make_metric("BinaryF1Score")(*rows))
        assert measure(lambda: make_metric("BinaryF1Score"), rows, size, False, cuts) == pytest.approx(expected)

    @pytest.mark.parametrize(("size", "cuts"), CUT)
    def test_a_chance_may_exceed_1_by_rounding(self, size: int, cuts: tuple[int, ...]) -> None:
        logits, label = rows_of("Binary")
        chances = logits.sigmoid()
        expected = float(make_metric("BinaryAccuracy")(chances, label))
        chances[chances.argmax()] = 1 + 2e-7
        assert measure(lambda: make_metric("BinaryAccuracy"), (chances, label), size, False, cuts) == expected

    @pytest.mark.parametrize(("size", "cuts"), CUT)
    def test_what_is_no_number_is_no_probability(self, size: int, cuts: tuple[int, ...]) -> None:
        logits, label = rows_of("Binary")
        chances = logits.sigmoid()
        chances[3] = torch.nan
        expected = float(make_metric("BinaryAccuracy")(chances, label))
        assert measure(lambda: make_metric("BinaryAccuracy"), (chances, label), size, False, cuts) == expected

    @pytest.mark.parametrize("given", [{}, {"thresholds": 20}], ids=["carried", "added"])
    def test_a_few_values_outside_are_told(self, given: Any, caplog: pytest.LogCaptureFixture) -> None:
        _warn_of_few.cache_clear()
        logits, label = rows_of("Binary")
        measure(lambda: make_metric("BinaryAUROC", **given), (logits, label), 4, False, (20,))
        assert not caplog.records
        chances = logits.sigmoid()
        chances[5] = 1.2
        measure(lambda: make_metric("BinaryAUROC", **given), (chances, label), 4, False, (20,))
        assert re.search(r"(?s)'m': 1 of 48 .*BinaryAUROC.*outside \[0, 1\].*clamp", caplog.text)

    def test_a_metric_is_left_as_it_was(self) -> None:
        metric = make_metric("BinaryAUROC")
        names = set(vars(metric))
        collector = collect(metric, False)
        logits, label = rows_of("Binary")
        collector.add(torch.tensor(0.0), logits.sigmoid(), label)
        assert set(vars(metric)) == names
        assert metric.update_count == 1
        assert torch.equal(metric.preds[0], logits.sigmoid())

    @pytest.mark.parametrize("chances", [True, False])
    def test_the_predictions_of_all_rows_are_handed_on_once(self, chances: bool) -> None:
        logits, label = rows_of("Binary")
        collector = collect(make_metric("BinaryAUROC"), False)
        for output, target in zip(logits.split(8), label.split(8), strict=True):
            collector.add(torch.tensor(0.0), output.sigmoid() if chances else output, target)
        text = json.dumps(to_plain(collector.collect().carried, "carried"))
        told = collect(make_metric("BinaryAUROC"), True)
        told.add(torch.tensor(0.0), logits, label)
        assert len(text) < 1.3 * len(json.dumps(to_plain(told.collect().carried, "carried"))) + 500

    def test_a_metric_of_ones_own_is_left_its_guesses_and_told_of(self, caplog: pytest.LogCaptureFixture) -> None:
        _warn_of_guesses.cache_clear()
        found = measure(make_stepping, rows_of("Binary"), 4, False, (20,))
        assert found == measure(lambda: make_metric("BinaryAUROC"), rows_of("Binary"), 4, None, (20,))
        assert "'m' got batches with all values in [0, 1]" in caplog.text

    def test_what_is_told_counts_as_it_is_whatever_else_is_given(self) -> None:
        """A batch that shares no memory with the output is not told."""
        logits, label = rows_of("Binary")
        for name in ("BinaryAUROC", "BinaryAccuracy", "BinaryCalibrationError"):
            expected = float(make_metric(name)(logits.sigmoid(), label))
            metric, copied = make_metric(name), torch.arange(ROWS // 4) % 3 == 1
            transformed = pytest.importorskip("torchmetrics.wrappers").LambdaInputTransformer
            for rows in ((logits, label), (logits.flip(0), label.flip(0))):
                batches = iter(copied)
                wrapped = transformed(metric, lambda given, each=batches: given.clone() if next(each) else given)
                collector = collect(wrapped, True)
                for output, target in zip(*(each.split(4) for each in rows), strict=True):
                    collector.add(torch.tensor(0.0), output, target)
                assert collector.finish(collector.collect())["m"] == pytest.approx(expected)

    def test_the_largest_of_several_logits_needs_no_guess(self) -> None:
        logits, label = rows_of("Multiclass")
        expected = float(make_metric("MulticlassAccuracy")(logits, label))
        assert measure(lambda: make_metric("MulticlassAccuracy"), (logits, label), 4, False) == pytest.approx(expected)


class TestByBatch:
    """The rule of runs that began when a metric still guessed for each batch where the loss does not say it."""

    pytestmark = slow

    @pytest.mark.parametrize("given", [{}, {"thresholds": 20}], ids=["carried", "added"])
    @pytest.mark.parametrize(("size", "cuts"), [(4, ()), (ROWS // 2, ()), (ROWS, (ROWS // 2,))])
    def test_values_of_both_kinds_are_told(
        self, given: Any, size: int, cuts: tuple[int, ...], caplog: pytest.LogCaptureFixture
    ) -> None:
        _warn_of_guesses.cache_clear()
        measure(lambda: make_metric("BinaryAUROC", **given), rows_of("Binary"), size, False, cuts, by_rows=False)
        assert re.search(r"(?s)'m' got .*in \[0, 1\].*BinaryAUROC.*LambdaInputTransformer.*BCEWith", caplog.text)

    def test_what_is_one_kind_alone_is_right(self, caplog: pytest.LogCaptureFixture) -> None:
        _warn_of_guesses.cache_clear()
        logits, label = rows_of("Binary")
        expected = float(make_metric("BinaryAUROC")(logits.sigmoid(), label))
        for output in (logits.sigmoid(), logits + 10):
            found = measure(lambda: make_metric("BinaryAUROC"), (output, label), 4, False, (20,), by_rows=False)
            assert found == pytest.approx(expected)
        assert not caplog.records

    def test_values_are_those_of_then(self) -> None:
        rows = rows_of("Binary")
        by_batch = measure(lambda: make_metric("BinaryAUROC"), rows, 4, False, (20,), by_rows=False)
        assert by_batch == measure(lambda: make_metric("BinaryAUROC"), rows, 4, None, (20,))
        assert by_batch != pytest.approx(measure(lambda: make_metric("BinaryAUROC"), rows, 4, False, (20,)))

    def test_no_numbers_are_no_kind(self) -> None:
        logits, label = rows_of("Binary")
        chances = logits.sigmoid()
        chances[3] = torch.nan
        measure(lambda: make_metric("BinaryAccuracy"), (chances, label), 4, False, by_rows=False)


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


def mine(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return F.softplus(output) - output * label


def model_fn(params: Any) -> TorchModel:
    layer = nn.Linear(8, 1)
    module = nn.Sequential(layer, nn.Flatten(0))
    with torch.no_grad():
        layer.bias.fill_(0.5)  # so that many logits, but not all, lie in [0, 1]
    metrics = {name: make_metric(name) for name in METRICS}
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=1e-3), params["loss"], metrics=metrics)


METRICS = ("BinaryAUROC", "BinaryAccuracy", "BinaryCalibrationError")


def values_of(rule: str, size: int, loss: Any, cuts: tuple[int, ...] = ()) -> dict[str, float]:
    spec = TrainerSpec(Hooks(model_fn), 3, "torch", Resources(device="cpu"), metric_rule=rule)  # type: ignore[arg-type]
    trainer = spec.make_trainer(columns("tabular"))
    trainer.build("t", {"loss": loss})
    arrays, parts = feed("tabular", 1).arrays, Parts()
    rows = len(next(iter(arrays.values())))
    for start, stop in zip((0, *cuts), (*cuts, rows), strict=True):
        part = Feed({name: array[start:stop] for name, array in arrays.items()}, batch_size=size)
        carried = parts[-1] if parts else None
        parts.append(trainer.evaluate(Unit("t", 1, f"v{start}", "eval"), part, carried))
    return trainer.finish(Metrics.merge(parts))


@pytest.mark.slow
@pytest.mark.parametrize(("loss", "exact"), [(nn.BCEWithLogitsLoss(), ("loss", "rows")), (mine, ("rows",))])
@pytest.mark.parametrize("rule", ["guess", "loss", "rows"])
def test_a_trainer_goes_by_the_rule_of_its_run(rule: str, loss: Any, exact: tuple[str, ...]) -> None:
    small, large = values_of(rule, 2, loss, (11, 40)), values_of(rule, 90, loss)
    same = [small[name] == pytest.approx(large[name]) for name in METRICS]
    assert all(same) is (rule in exact)


@pytest.mark.parametrize("rule", ["guess", "loss", "rows"])
def test_a_spec_keeps_its_rule(rule: Any) -> None:
    assert TrainerSpec(Hooks(len), 3).metric_rule == "rows"
    assert pickle.loads(pickle.dumps(TrainerSpec(Hooks(len), 3, metric_rule=rule))).metric_rule == rule


def test_a_spec_of_an_older_release_means_the_rule_of_then() -> None:
    spec = TrainerSpec(Hooks(len), 3)
    older = object.__new__(TrainerSpec)
    older.__setstate__([spec.hooks, 3, "auto", Resources()])
    assert (older.seed, older.metric_rule) == (3, "guess")
