"""How fast a run goes, from what it measured: as of late, and with as much noise as there was around that."""

from __future__ import annotations

from statistics import fmean

import pytest

from cerebro_spark.forecast.measured import Measurements, OrderSample, UnitSample
from cerebro_spark.forecast.pace import Pace, pace_of
from cerebro_spark.types import Partition

NOISE = (0.9, 1.0, 1.1, 1.0)


def pace_after(levels: list[float], overheads: list[float]) -> Pace:
    """The pace of a run whose units took these seconds, with some noise, and whose orders had these overheads."""
    seen = Measurements(params={"t0": {}})
    seen.units = [
        UnitSample("train", "t0", "", "w0", "p0", 1, level * noise, first=False) for level in levels for noise in NOISE
    ]
    seen.orders = [OrderSample("train", overhead, 0.0, first=False) for overhead in overheads]
    return pace_of(seen, [Partition("p0", rows=100)])


def test_a_run_that_became_faster_goes_on_so_and_varies_around_that() -> None:
    pace = pace_after([2.0] * 8 + [1.0] * 8, [0.4] * 16 + [0.2] * 16)
    now = pace.expected.seconds("train", "t0", {}).seconds * pace.recent["train"]
    assert now == pytest.approx(1.0, rel=0.01)
    assert fmean(pace.ratios["train"]) == pytest.approx(1.0), "what was slower once does not make the rest slower"
    assert pace.overhead["train"] == fmean(pace.overheads["train"]) == pytest.approx(0.2)
    assert pace.drift > 0.2, "what has changed once may change again"


def test_a_steady_run_varies_as_it_did() -> None:
    pace = pace_after([1.0] * 12, [0.1] * 12)
    assert pace.recent["train"] == 1.0
    assert sorted(set(pace.ratios["train"])) == pytest.approx([0.9, 1.0, 1.1])
    assert pace.drift < 0.1


def test_a_unit_that_hung_once_counts_only_so_much() -> None:
    pace = pace_after([1.0] * 11 + [100.0], [0.1] * 12)
    assert max(pace.ratios["train"]) < 6.0
    assert pace.recent["train"] < 3.0


def test_short_units_that_vary_much_make_no_others_longer() -> None:
    seen = Measurements(params={"short": {"width": 1}, "long": {"width": 9}})
    short = [UnitSample("train", "short", "s", "w0", "p0", 1, s, first=False) for s in (0.1, 0.1, 0.1, 0.3)] * 6
    long = [UnitSample("train", "long", "l", "w0", "p0", 1, s, first=False) for s in (9.9, 10.0, 10.1, 10.0)] * 6
    seen.units = [unit for pair in zip(short, long, strict=True) for unit in pair]
    pace = pace_of(seen, [Partition("p0", rows=100)])
    assert fmean(pace.ratios["train"]) == pytest.approx(1.0)
