"""The trainer's framework-free parts: structure, randomness, feeds, metrics, and what importing them loads."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest

from cerebro_spark.errors import ConfigurationError, TrialFailed
from cerebro_spark.trainer import Feed
from cerebro_spark.trainer.base import check_loss, user_metrics
from cerebro_spark.trainer.randomness import capture_host, derive_seed, restore_host
from cerebro_spark.trainer.structure import signature
from cerebro_spark.types import Metrics, Unit


def closing_over(value: object) -> object:
    return lambda x: (x, value)


def made_class(value: object) -> type:
    return type("Made", (), {"value": value})


class Kept:
    def __init__(self, value: object) -> None:
        self.value = value


@pytest.mark.parametrize(
    "make",
    [lambda v: v, lambda v: {"a": [v, (v,)]}, closing_over, Kept, lambda v: Kept(closing_over(v)).value],
    ids=["plain", "nested", "closure", "object", "inner"],
)
def test_signatures_tell_values_apart(make: object) -> None:
    assert signature(make(0.1)) == signature(make(0.1))
    assert signature(make(0.1)) != signature(make(0.2))
    assert signature(make(1)) != signature(make(1.0)) != signature(make(True))


def test_signatures_in_doubt_differ() -> None:
    class Slotted:
        __slots__ = ("value",)

    slotted = Slotted()
    assert signature(made_class(1)) != signature(made_class(1))
    assert signature(slotted) != signature(slotted)


def test_a_cycle_has_a_signature() -> None:
    ring: list[object] = [1]
    ring.append(ring)
    assert signature(ring) == signature(ring)


def test_seeds_are_the_same_everywhere() -> None:
    code = "from cerebro_spark.trainer.randomness import derive_seed; print(derive_seed(7, 't3'))"
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
    with pytest.raises(ConfigurationError, match="batch_size is 0"):
        Feed({"x": np.arange(3)}, batch_size=0)


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
        user_metrics(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_not_finite_names_the_unit(value: float) -> None:
    with pytest.raises(TrialFailed, match=r"t3.*epoch 2.*train-00001.*'lr': 9"):
        check_loss(Metrics({"loss": value}, {"loss": 1.0}), Unit("t3", 2, "train-00001"), {"lr": 9})
    check_loss(Metrics({"gain": value, "loss": 1.0}, {}), Unit("t3", 2, "train-00001"), {})


def test_importing_the_package_loads_no_framework() -> None:
    code = (
        "import sys, cerebro_spark.trainer;"
        "print([m for m in ('torch', 'tensorflow', 'keras', 'pyspark', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
    assert done.stdout.strip() == "[]"
