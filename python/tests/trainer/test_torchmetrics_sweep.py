"""Metrics of torchmetrics: over partitions each is what one object says of all rows, or it is refused by name."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from unimported import exported, keys_in

from cerebro_spark.codec import from_plain, to_plain
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.trainer.torch.model_checks import check_model
from cerebro_spark.types import Metrics

CASES = Path(__file__).with_name("torchmetrics_cases.py")
CPU = torch.device("cpu")
ROWS = 40
Rows = tuple[torch.Tensor, torch.Tensor]
# What torchmetrics warns of is no business of these tests. To import it takes seconds.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


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


FORM = re.compile("Binary|Multiclass|Multilabel")
CLASSIFIERS = [name for name in exported("torchmetrics", "classification") if FORM.match(name)]
UNEQUAL = {"BinaryFairness", "BinaryGroupStatRates"}  # want a third argument, the group


@pytest.fixture(scope="module")
def cases() -> Any:
    """The module of cases, imported by the first test: it imports torchmetrics, and that takes seconds."""
    pytest.importorskip("torchmetrics")
    import torchmetrics_cases

    return torchmetrics_cases


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_classification(cases: Any, name: str) -> None:
    kind, form = getattr(cases.classification, name), FORM.match(name)
    assert form
    if name in UNEQUAL:
        with pytest.raises(ConfigurationError, match="missing 1 required positional argument: 'groups'"):
            over_partitions(kind(num_groups=2), DATA["Binary"], [])
        return
    check_law(lambda: kind(**settings_of(kind)), DATA[form[0]])


@pytest.mark.parametrize("name", exported("torchmetrics", "regression"))
def test_regression(cases: Any, name: str) -> None:
    kind = getattr(cases.regression, name)
    check_law(lambda: kind(**settings_of(kind)), DATA[FORMS.get(name, "regression")])


@pytest.mark.parametrize("name", keys_in(CASES, "COMPOSED"))
def test_compositions_are_right(cases: Any, name: str) -> None:
    check_law(cases.COMPOSED[name], DATA["Binary"])


def test_a_composition_has_no_constant_value(cases: Any) -> None:
    assert over_partitions(1 - cases.accuracy(), DATA["Binary"], [11]) not in (0.0, 1.0)


@pytest.mark.parametrize("name", keys_in(CASES, "REFUSED"))
def test_what_is_no_value_of_all_rows_is_refused_by_name(cases: Any, name: str) -> None:
    make, message = cases.REFUSED[name]
    with pytest.raises(ConfigurationError, match=f"(?s)'m'.*{message}"):
        over_partitions(make(), DATA["Binary"], [17])


def test_metrics_of_a_collection_are_right_one_by_one(cases: Any) -> None:
    metrics = [cases.accuracy(), cases.classification.BinaryF1Score(), cases.auc()]
    collection = cases.torchmetrics.MetricCollection(metrics)
    for metric in dict(collection.items()).values():
        expected = float(whole(metric.clone(), DATA["Binary"]))
        assert over_partitions(metric, DATA["Binary"], [17]) == pytest.approx(expected)


def check_all(metrics: Any) -> None:
    module = torch.nn.Linear(1, 1)
    check_model(TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), torch.nn.MSELoss(), metrics))


def test_a_collection_in_place_of_a_dict_says_how(cases: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"dict\(collection.items\(\)\)"):
        check_all(cases.torchmetrics.MetricCollection([cases.accuracy()]))


def test_an_object_under_two_names_is_refused(cases: Any) -> None:
    shared = cases.accuracy()
    with pytest.raises(ConfigurationError, match="'a' and 'b' share one BinaryAccuracy"):
        check_all({"a": shared, "b": 1 - shared})
    check_all({"a": cases.accuracy(), "b": 1 - cases.accuracy()})


@pytest.mark.parametrize("outputs", [2, 5])
@pytest.mark.parametrize("name", ["R2Score", "ExplainedVariance", "MeanSquaredError", "1 - R2Score"])
def test_several_outputs_are_right(name: str, outputs: int) -> None:
    """Of some metrics a state is one number at first, and then one for each output."""
    import torchmetrics

    rows = (chances(ROWS, outputs), chances(2 * ROWS, outputs)[ROWS:])
    kind = getattr(torchmetrics, name.rpartition(" ")[2])
    check_law(lambda: 1 - kind() if name.startswith("1") else kind(), rows)


def test_states_that_do_not_begin_with_zero_are_counted_once() -> None:
    import torchmetrics

    class Smoothed(torchmetrics.Metric):
        hits: Any
        rows: Any

        def __init__(self) -> None:
            super().__init__()
            self.add_state("hits", torch.tensor(1.0), "sum")
            self.add_state("rows", torch.tensor(2.0), "sum")

        def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
            self.hits = self.hits + ((output > 0.5) == (label > 0.5)).sum()
            self.rows = self.rows + len(label)

        def compute(self) -> Any:
            return self.hits / self.rows

    check_law(Smoothed, DATA["regression"])
