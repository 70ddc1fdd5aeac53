"""The trainer's framework-free parts: structure, randomness, feeds, metrics, and what importing them loads."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest

from cerebro_spark.errors import ConfigurationError, TrialFailed
from cerebro_spark.trainer import Feed
from cerebro_spark.trainer.checkpoints.randomness import capture_host, derive_seed, restore_host
from cerebro_spark.trainer.feed import batch_size_of
from cerebro_spark.trainer.hook_results import read_metrics
from cerebro_spark.trainer.sharing.signature import compute_signature
from cerebro_spark.trainer.unit_errors import check_loss
from cerebro_spark.types import Metrics, Unit


def closing_over(value: object) -> object:
    return lambda x: (x, value)


def made_class(value: object) -> type:
    return type("Made", (), {"value": value})


class Listed(list):  # type: ignore[type-arg]
    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value


class Kept:
    def __init__(self, value: object) -> None:
        self.value = value


def nested(value: object, levels: int) -> object:
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "make",
    [
        lambda v: v,
        lambda v: {"a": [v, (v,)]},
        closing_over,
        Kept,
        lambda v: Kept(closing_over(v)).value,
        partial(partial, closing_over),
        lambda v: partial(closing_over, value=v),
        lambda v: [v].index,
        lambda v: np.array([Kept(v), None]),
        lambda v: defaultdict(list, a=v),
        lambda v: nested(v, 25),
    ],
    ids=[
        "plain",
        "nested",
        "closure",
        "object",
        "inner",
        "partial",
        "keyword",
        "method",
        "objects",
        "subclass",
        "deep",
    ],
)
def test_signatures_tell_values_apart(make: Callable[[Any], Any]) -> None:
    assert compute_signature(make(0.1)) == compute_signature(make(0.1))
    assert compute_signature(make(0.1)) != compute_signature(make(0.2))
    assert compute_signature(make(1)) != compute_signature(make(1.0)) != compute_signature(make(True))


def test_signatures_in_doubt_differ() -> None:
    class Slotted:
        __slots__ = ("value",)

    class Below(Slotted):
        pass

    assert compute_signature(made_class(1)) != compute_signature(made_class(1))
    unknown = [Slotted(), Below(), random.Random(3), deque([1]), lru_cache(len), nested(1, 40), TypeError(1)]
    assert [thing for thing in unknown if compute_signature(thing) == compute_signature(thing)] == []


def test_factories_and_attributes_of_containers_count() -> None:
    assert compute_signature(defaultdict(list)) != compute_signature(defaultdict(dict)) != compute_signature({})
    assert (
        compute_signature(Listed(1))
        == compute_signature(Listed(1))
        != compute_signature(Listed(2))
        != compute_signature([])
    )


def test_attributes_of_functions_count() -> None:
    before = compute_signature(closing_over)
    closing_over.gamma = 2  # type: ignore[attr-defined]
    assert compute_signature(closing_over) != before
    del closing_over.gamma  # type: ignore[attr-defined]
    assert compute_signature(closing_over) == before


def test_a_cycle_has_a_signature() -> None:
    ring: list[object] = [1]
    ring.append(ring)
    assert compute_signature(ring) == compute_signature(ring)


def test_seeds_are_the_same_everywhere() -> None:
    code = "from cerebro_spark.trainer.checkpoints.randomness import derive_seed; print(derive_seed(7, 't3'))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert int(done.stdout) == derive_seed(7, "t3")


def test_generators_come_back() -> None:
    random.gauss(0, 1), np.random.normal()
    state = capture_host()
    first = [random.gauss(0, 1), random.random(), np.random.normal(), np.random.random()]
    restore_host(state)
    assert [random.gauss(0, 1), random.random(), np.random.normal(), np.random.random()] == first


def test_a_feed_covers_every_row_once() -> None:
    order = np.random.default_rng(0).permutation(10)
    feed = Feed({"x": np.arange(10) * 2}, order, batch_size=4)
    batches = [batch["x"].tolist() for batch in feed]
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert [x for batch in batches for x in batch] == (order * 2).tolist()


@pytest.mark.parametrize("size", [0, -1, 16.5, 0.0, -2.0, "32", True, None, float("nan"), float("inf")])
def test_a_batch_size_is_a_whole_number_of_at_least_1(size: Any) -> None:
    rule = re.escape(f"batch_size is {size!r}, but must be a whole number of at least 1: ")
    with pytest.raises(ConfigurationError, match=rule):
        Feed({"x": np.arange(3)}, batch_size=size)
    with pytest.raises(ConfigurationError, match=rule):
        batch_size_of({"batch_size": size})


def test_batch_sizes_of_numpy_are_whole_numbers_too() -> None:
    size = batch_size_of({"batch_size": np.int64(2)})
    assert (size, type(size)) == (2, int)
    feed = Feed({"x": np.arange(3)}, batch_size=np.int64(2))  # type: ignore[arg-type]
    assert [batch["x"].tolist() for batch in feed] == [[0, 1], [2]]
    assert batch_size_of({"batch_size": 64.0}) == batch_size_of({"batch_size": np.float32(64)}) == 64
    assert type(batch_size_of({"batch_size": 64.0})) is int
    assert batch_size_of({}) == Feed({"x": np.arange(3)}).batch_size == 32


def test_states_add_up_and_carried_ones_stand() -> None:
    parts = [
        Metrics(states={"auc": (1.0, 2.0)}, carried={"m": [1]}),
        Metrics(states={"auc": (3.0, 4.0)}, carried={"m": [2]}),
    ]
    merged = Metrics.merge(parts)
    assert merged.states == {"auc": (4.0, 6.0)}
    assert merged.carried == {"m": [2]}


@pytest.mark.parametrize("value", [3.0, {"loss": 1.0}, None])
def test_metrics_without_a_row_count_are_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="rows"):
        read_metrics(value)


def test_a_sum_needs_its_weight() -> None:
    with pytest.raises(ConfigurationError, match=r"sums of \['loss'\] but weights of \[\]: give each sum its weight"):
        read_metrics(Metrics({"loss": 3.0}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 2e30, -2e30])
def test_a_loss_that_exploded_names_the_unit(value: float) -> None:
    with pytest.raises(TrialFailed, match=r"t3.*epoch 2.*train-00001.*'lr': 9"):
        check_loss(Metrics({"loss": value}, {"loss": 1.0}), Unit("t3", 2, "train-00001"), {"lr": 9})
    check_loss(Metrics({"gain": value, "loss": 1.0}, {}), Unit("t3", 2, "train-00001"), {})


def test_it_is_the_loss_of_a_row_that_explodes() -> None:
    many = Metrics({"loss": 5e30, "click_loss": 0.0}, {"loss": 1e6, "click_loss": 0.0})
    check_loss(many, Unit("t3", 2, "train-00001"), {})


def test_importing_the_package_loads_no_framework() -> None:
    code = (
        "import sys, cerebro_spark.trainer;"
        "print([m for m in ('torch', 'tensorflow', 'keras', 'pyspark', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout.strip() == "[]"
