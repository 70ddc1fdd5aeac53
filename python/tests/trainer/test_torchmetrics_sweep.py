"""Metrics of torchmetrics: over partitions each is what one object says of all rows, or it is refused by name."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from cerebro_spark.codec import from_plain, to_plain
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.trainer.torch.model_checks import check_model
from cerebro_spark.types import Metrics

torchmetrics = pytest.importorskip("torchmetrics")
classification = pytest.importorskip("torchmetrics.classification")
regression = pytest.importorskip("torchmetrics.regression")
wrappers = pytest.importorskip("torchmetrics.wrappers")

CPU = torch.device("cpu")
ROWS = 40
Rows = tuple[torch.Tensor, torch.Tensor]
# What torchmetrics warns of is no business of these tests.
pytestmark = pytest.mark.filterwarnings("ignore")


def chances(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 0.9 + 0.05


def numbers(top: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, top, shape, generator=torch.Generator().manual_seed(2))


DATA: dict[str, Rows] = {
    "Binary": (chances(ROWS), numbers(2, ROWS)),
    "Multiclass": (chances(ROWS, 3).softmax(1), numbers(3, ROWS)),
    "Multilabel": (chances(ROWS, 3), numbers(2, ROWS, 3)),
    "regression": (chances(ROWS), chances(2 * ROWS)[ROWS:]),
    "ensemble": (chances(ROWS, 3), chances(2 * ROWS)[ROWS:]),
    "vectors": (chances(ROWS, 3).softmax(1), chances(2 * ROWS, 3)[ROWS:].softmax(1)),
}
SETTINGS = {
    "num_classes": 3,
    "num_labels": 3,
    "min_recall": 0.5,
    "min_precision": 0.5,
    "min_specificity": 0.5,
    "min_sensitivity": 0.5,
    "beta": 2.0,
    "threshold": 0.5,
    "p": 3,
    "num_groups": 2,
}
FORMS = {
    "CosineSimilarity": "vectors",
    "KLDivergence": "vectors",
    "JensenShannonDivergence": "vectors",
    "ContinuousRankedProbabilityScore": "ensemble",
}


def whole(metric: Any, rows: Rows) -> Any:
    for start in range(0, ROWS, 8):
        metric.update(rows[0][start : start + 8], rows[1][start : start + 8])
    return metric.compute()


def over_partitions(metric: Any, rows: Rows, cuts: list[int]) -> float:
    """Its value when each partition is measured by itself, and what is handed on goes through a log."""
    module = torch.nn.Linear(1, 1)
    check_model(TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), torch.nn.MSELoss(), {"m": metric}))
    parts: list[Metrics] = []
    for start, stop in zip([0, *cuts], [*cuts, ROWS], strict=True):
        collector = MetricCollector({"m": metric}, parts[-1] if parts else None, lambda output, label, n: n, CPU)
        for at in range(start, stop, 5):
            end = min(at + 5, stop)
            collector.add(torch.tensor(0.0), rows[0][at:end], rows[1][at:end])
        plain = json.loads(json.dumps(to_plain(collector.collect(), "metrics")))
        parts.append(from_plain(Metrics, plain))
    return MetricCollector({"m": metric}, None, lambda output, label, n: n, CPU).finish(Metrics.merge(parts))["m"]


def check_law(make: Callable[[], Any], rows: Rows) -> None:
    """One number of all rows is found again over partitions; anything else is refused by the metric's name."""
    value = whole(make(), rows)
    expected = None if isinstance(value, dict | tuple | list) else torch.as_tensor(value)
    for cuts in ([], [17], [3, 20, 21]):
        if expected is None or expected.numel() != 1:
            with pytest.raises(ConfigurationError, match="'m'"):
                over_partitions(make(), rows, cuts)
        else:
            found = over_partitions(make(), rows, cuts)
            assert found == pytest.approx(float(expected), rel=1e-5, abs=1e-6, nan_ok=True)


def settings_of(kind: Any) -> dict[str, Any]:
    wanted = inspect.signature(kind.__init__).parameters.values()
    needed = [p.name for p in wanted if p.default is inspect.Parameter.empty or p.name in ("num_classes", "num_labels")]
    return {name: SETTINGS[name] for name in needed if name in SETTINGS}


def kinds_in(module: Any) -> list[Any]:
    found = [kind for kind in vars(module).values() if inspect.isclass(kind) and issubclass(kind, torchmetrics.Metric)]
    return sorted(found, key=lambda kind: kind.__name__)


CLASSIFIERS = [kind for kind in kinds_in(classification) if re.match("Binary|Multiclass|Multilabel", kind.__name__)]
UNEQUAL = {"BinaryFairness", "BinaryGroupStatRates"}  # want a third argument, the group


@pytest.mark.parametrize("kind", CLASSIFIERS, ids=lambda kind: kind.__name__)
def test_classification(kind: Any) -> None:
    form = re.match("Binary|Multiclass|Multilabel", kind.__name__)
    assert form
    if kind.__name__ in UNEQUAL:
        with pytest.raises(TypeError):
            over_partitions(kind(num_groups=2), DATA["Binary"], [])
        return
    check_law(lambda: kind(**settings_of(kind)), DATA[form[0]])


@pytest.mark.parametrize("kind", kinds_in(regression), ids=lambda kind: kind.__name__)
def test_regression(kind: Any) -> None:
    check_law(lambda: kind(**settings_of(kind)), DATA[FORMS.get(kind.__name__, "regression")])


def accuracy() -> Any:
    return classification.BinaryAccuracy()


def auc() -> Any:
    return classification.BinaryAUROC()


class Doubled(torchmetrics.Metric):
    """Somebody's own metric around another."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = accuracy()
        self.add_state("seen", torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.inner.update(output, label)
        self.seen += len(label)

    def compute(self) -> torch.Tensor:
        return 2 * self.inner.compute() + self.seen

    def reset(self) -> None:
        super().reset()
        self.inner.reset()


COMPOSED = {
    "one minus": lambda: 1 - accuracy(),
    "sum": lambda: accuracy() + classification.BinaryF1Score(),
    "of mixed kinds": lambda: (accuracy() + auc()) / 2,
    "nested": lambda: abs((1 - accuracy()) * 2 - auc() ** 2),
    "with a tensor": lambda: torch.tensor(3.0) * accuracy(),
    "largest error": lambda: torchmetrics.MeanMetric() - 0.25,
    "around another": Doubled,
    "of one's own": lambda: 1 - Doubled(),
    "transformed": lambda: wrappers.BinaryTargetTransformer(accuracy(), threshold=0),
    "transformed auc": lambda: wrappers.LambdaInputTransformer(auc(), transform_pred=lambda p: 1 - p),
    "mean": torchmetrics.MeanMetric,
    "in one step": lambda: classification.Accuracy(task="binary"),
}


@pytest.mark.parametrize("make", COMPOSED.values(), ids=COMPOSED)
def test_compositions_are_right(make: Callable[[], Any]) -> None:
    check_law(make, DATA["Binary"])


def test_a_composition_has_no_constant_value() -> None:
    assert over_partitions(1 - accuracy(), DATA["Binary"], [11]) not in (0.0, 1.0)


class Listed(Doubled):
    """Keeps a metric where no module looks."""

    def __init__(self) -> None:
        super().__init__()
        del self.inner
        self.inners = [accuracy()]

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.inners[0].update(output, label)

    def reset(self) -> None:
        torchmetrics.Metric.reset(self)


class Counting(Doubled):
    """Keeps a number that is no state."""

    batches = 0

    def __init__(self) -> None:
        super().__init__()
        self.batches = 0

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        super().update(output, label)
        self.batches += 1


class Stateless(torchmetrics.Metric):
    """Registers nothing."""

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.last = output.mean()

    def compute(self) -> torch.Tensor:
        return self.last


REFUSED = {
    "running": (lambda: wrappers.Running(torchmetrics.MeanSquaredError(), 3), "Running.*last batches"),
    "running mean": (lambda: torchmetrics.aggregation.RunningMean(3), "Running.*last batches"),
    "in a composition": (lambda: 1 - wrappers.Running(torchmetrics.MeanSquaredError(), 3), "Running"),
    "min and max": (lambda: wrappers.MinMaxMetric(accuracy()), "MinMaxMetric"),
    "classes": (lambda: wrappers.ClasswiseWrapper(classification.MulticlassAccuracy(3, average=None)), "Classwise"),
    "bootstrap": (lambda: wrappers.BootStrapper(accuracy(), num_bootstraps=3), "BootStrapper.*at random"),
    "outputs": (lambda: wrappers.MultioutputWrapper(torchmetrics.MeanSquaredError(), 2), "MultioutputWrapper"),
    "tasks": (lambda: wrappers.MultitaskWrapper({"a": accuracy()}), "MultitaskWrapper"),
    "tracker": (lambda: wrappers.MetricTracker(accuracy()), "MetricTracker"),
    "collection": (lambda: torchmetrics.MetricCollection([accuracy()]), r"MetricCollection.*dict\(collection.items"),
    "ungrouped": (lambda: torchmetrics.MetricCollection([accuracy()], compute_groups=False), "MetricCollection"),
    "in a list": (Listed, "'inners' in `update`.*ModuleList"),
    "counter": (Counting, "'batches' in `update`.*add_state"),
    "stateless": (Stateless, "Stateless.*no state.*add_state"),
}


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_value_of_all_rows_is_refused_by_name(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s)'m'.*{message}"):
        over_partitions(make(), DATA["Binary"], [17])


def test_metrics_of_a_collection_are_right_one_by_one() -> None:
    collection = torchmetrics.MetricCollection([accuracy(), classification.BinaryF1Score(), auc()])
    for metric in dict(collection.items()).values():
        expected = float(whole(metric.clone(), DATA["Binary"]))
        assert over_partitions(metric, DATA["Binary"], [17]) == pytest.approx(expected)


def check_all(metrics: Any) -> None:
    module = torch.nn.Linear(1, 1)
    check_model(TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), torch.nn.MSELoss(), metrics))


def test_a_collection_in_place_of_a_dict_says_how() -> None:
    with pytest.raises(ConfigurationError, match=r"dict\(collection.items\(\)\)"):
        check_all(torchmetrics.MetricCollection([accuracy()]))


def test_an_object_under_two_names_is_refused() -> None:
    shared = accuracy()
    with pytest.raises(ConfigurationError, match="'a' and 'b' share one BinaryAccuracy"):
        check_all({"a": shared, "b": 1 - shared})
    check_all({"a": accuracy(), "b": 1 - accuracy()})
