"""Metric objects as users write them: what they keep goes from partition to partition, whatever holds it."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cerebro_spark.codec import from_plain, to_plain
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.torch import batch_cuts
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.types import Metrics

CPU = torch.device("cpu")
DRAWN = torch.Generator().manual_seed(0)
OUTPUT = torch.randn(60, generator=DRAWN)
LABEL = (OUTPUT + torch.randn(60, generator=DRAWN) > 0).float()
RIGHT = int(((OUTPUT > 0) == (LABEL > 0)).sum())


def measure(make: Callable[[], Any], size: int = 60, cuts: tuple[int, ...] = (), told: bool | None = False) -> float:
    """The value of a metric over partitions, each by an object of its own, as workers have."""
    parts: list[Metrics] = []
    for start, stop in zip([0, *cuts], [*cuts, 60], strict=True):
        carried = parts[-1] if parts else None
        collector = MetricCollector({"m": make()}, carried, lambda o, y, n: n, CPU, told)
        for output, label in zip(OUTPUT[start:stop].split(size), LABEL[start:stop].split(size), strict=True):
            collector.add(torch.tensor(0.0), output, label)
        parts.append(from_plain(Metrics, to_plain(collector.collect(), "metrics")))
    last = MetricCollector({"m": make()}, None, lambda o, y, n: n, CPU, told)
    return last.finish(Metrics.merge(parts))["m"]


Pair = namedtuple("Pair", "right rows")


def added(counts: Any, right: Any) -> Any:
    counts.update(right=int(right.sum()), rows=len(right))
    return counts


def grown(counts: Any, right: Any) -> Any:
    counts["right"].extend(right.tolist())
    return counts


def counted(counts: Any, right: Any) -> Any:
    counts["right"] = counts.get("right", 0) + int(right.sum())
    return counts


def extended(values: Any, right: Any) -> Any:
    values.extend(right.tolist())
    return values


def joined(values: Any, right: Any) -> Any:
    return values | {bool(each) for each in right}


KEPT: dict[str, tuple[Any, Any, Any, Any]] = {
    "Counter": (Counter, added, lambda kept: kept["right"], RIGHT),
    "defaultdict": (lambda: defaultdict(list), grown, lambda kept: sum(kept["right"]), RIGHT),
    "OrderedDict": (OrderedDict, counted, lambda kept: kept["right"], RIGHT),
    "dict": (dict, counted, lambda kept: kept["right"], RIGHT),
    "deque": (lambda: deque(maxlen=60), extended, sum, RIGHT),
    "set": (set, joined, len, 2),
    "number of NumPy": (lambda: np.int64(0), lambda kept, right: kept + right.sum(), lambda kept: kept.item(), RIGHT),
    "array": (
        lambda: np.zeros(2),
        lambda kept, right: np.add(kept, (right.sum(), len(right))),
        lambda kept: kept[0],
        RIGHT,
    ),
}


class Holding:
    """A kind of its own, with functions that are no state."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.reset()

    def reset(self) -> None:
        self.kept = KEPT[self.kind][0]()

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.kept = KEPT[self.kind][1](self.kept, ((output > 0) == (label > 0)).numpy())

    def compute(self) -> float:
        return float(KEPT[self.kind][2](self.kept))


@pytest.mark.parametrize("kind", KEPT)
def test_what_a_metric_keeps_is_the_same_in_the_next_partition(kind: str) -> None:
    for size, cuts in [(60, ()), (7, (20,)), (4, (3, 30, 59))]:
        assert measure(lambda: Holding(kind), size, cuts) == KEPT[kind][3]


class Named(Holding):
    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.kept = Pair(0, 0)

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.kept = Pair(self.kept.right + 1, self.kept.rows + 1)

    def compute(self) -> float:
        return float(self.kept.right)


def test_what_cannot_go_on_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"metric 'm' keeps `kept` as a Pair, which cannot go from partition"):
        measure(Named)


class Averaging:
    """A mean of means, as many meters are."""

    def reset(self) -> None:
        self.total, self.batches = 0.0, 0

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.total += float(((output > 0) == (label > 0)).float().mean())
        self.batches += 1

    def compute(self) -> float:
        return self.total / self.batches


class Summing(Averaging):
    """A mean over rows."""

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.total += float(((output > 0) == (label > 0)).sum())
        self.batches += len(label)


@pytest.mark.parametrize(("kind", "said"), [(Averaging, True), (Summing, False)])
def test_a_metric_that_depends_on_batches_says_so(
    kind: type, said: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_cuts, "_tried", set())
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        for _ in range(2):
            measure(kind, 16)
    assert caplog.text.count("for the same rows in two batches") == said


@pytest.mark.slow
class TestOfTorchmetrics:
    """Classes around torchmetrics, and made from its classes."""

    @pytest.fixture
    def kinds(self) -> dict[str, Any]:
        classification = pytest.importorskip("torchmetrics.classification")

        class Own(classification.BinaryAUROC):  # type: ignore[misc, name-defined]
            def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
                super().update(output, label.long())

        class Holder:
            def __init__(self) -> None:
                self.inner = classification.BinaryAUROC()

            def reset(self) -> None:
                self.inner.reset()

            def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
                self.inner.update(output, label.long())

            def compute(self) -> Any:
                return self.inner.compute()

        return {"own": Own, "holder": Holder, "plain": classification.BinaryAUROC}

    def test_a_loss_that_takes_logits_decides(self, kinds: dict[str, Any]) -> None:
        expected = measure(kinds["plain"], told=True)
        for kind in ("own", "holder"):
            for size, cuts in [(60, ()), (2, ()), (3, (20, 40))]:
                assert measure(kinds[kind], size, cuts, told=True) == pytest.approx(expected)

    def test_others_are_warned_of(self, kinds: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
        from cerebro_spark.trainer.torch.batchwise_inputs import _warn_of_guesses

        for kind in ("own", "holder"):
            _warn_of_guesses.cache_clear()
            caplog.clear()
            with caplog.at_level(logging.WARNING, "cerebro_spark"):
                measure(kinds[kind], 2)
            assert "its value depends on how rows are cut into batches" in caplog.text

    def test_the_class_is_as_it_was_afterwards(self, kinds: dict[str, Any]) -> None:
        base = kinds["plain"].__mro__[1].update
        measure(kinds["own"], 4)
        assert kinds["plain"].__mro__[1].update is base

    def test_several_outputs_are_refused_by_name(self, kinds: dict[str, Any]) -> None:
        collector = MetricCollector({"m": kinds["plain"]()}, None, lambda o, y, n: n, CPU)
        with pytest.raises(ConfigurationError, match=r"'m' \(BinaryAUROC\) takes one output.*a dict with 'a', 'b'"):
            collector.add(torch.tensor(0.0), {"a": OUTPUT, "b": OUTPUT}, LABEL)

    def test_an_error_names_the_metric_and_what_it_was_given(self) -> None:
        classification = pytest.importorskip("torchmetrics.classification")
        collector = MetricCollector({"m": classification.BinaryAveragePrecision()}, None, lambda o, y, n: n, CPU)
        with pytest.raises(ConfigurationError, match=r"'m' \(BinaryAveragePrecision\) has failed for .*float32 \[60\]"):
            collector.add(torch.tensor(0.0), OUTPUT, LABEL)
