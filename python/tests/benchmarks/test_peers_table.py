"""From measured rounds to a table: medians, ratios to the limit of the same round, unknown things as such."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.contender import Contender, Report
from benchmarks.peers.harness import Measured, Row, ratio_of
from benchmarks.peers.ours import hops_and_bytes
from benchmarks.peers.picture import draw
from benchmarks.peers.table import COLUMNS, markdown
from cerebro_spark.events import UnitFinished
from cerebro_spark.types import Checkpoint, Unit

LIMIT = Contender("limit-torch", "the limit", "benchmarks.peers.limit")
RAY = Contender("ray", "Ray Tune", "benchmarks.peers.ray_tune", environment="ray")


def measured(wall: float, **more: Any) -> Measured:
    return Measured(Report(wall_s=wall, losses={"a": 0.25, "b": 0.75}, start_s=2.0, **more), 500_000_000, 2)


def test_the_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    limits = [measured(10.0), measured(20.0), measured(10.0)]
    assert ratio_of([measured(30.0), measured(20.0), measured(15.0)], limits) == 1.5
    assert ratio_of([measured(30.0)], []) is None


def test_a_line_of_the_table() -> None:
    rounds = (measured(10.0, hops=4, data_bytes=26_000_000), measured(30.0, hops=8, data_bytes=26_000_000))
    head, rule, line = markdown([Row(RAY, rounds, 2.345)]).splitlines()
    assert head == f"| {' | '.join(COLUMNS)} |"
    assert rule.count("---") == len(COLUMNS)
    assert line == "| Ray Tune | 20.0 | 2.0 | 2.35 | 6 | 500 | 26.0 | - | - | 0.2500 | 0.5000 |"


@pytest.mark.slow
def test_the_same_rows_give_the_same_picture(tmp_path: Path) -> None:
    rows = [Row(LIMIT, (measured(10.0),), 1.0), Row(RAY, (measured(23.0),), None)]
    for name in ("one", "two"):
        draw(rows, "a work", tmp_path / name / "benchmark.svg")
    one, two = ((tmp_path / name / "benchmark.svg").read_bytes() for name in ("one", "two"))
    assert one == two
    assert b"<svg" in one


def finished(attempt: int, worker: str, trial: str, epoch: int, step: int, digest: str | None) -> UnitFinished:
    """A training unit with its checkpoint of ten bytes, or an evaluation, which has none."""
    if digest is None:
        unit = Unit(trial, epoch, "validation-00000", "eval")
        return UnitFinished(0.0, worker, unit, attempt, 1.0)
    left = Checkpoint(trial, epoch, step, attempt, 10, digest)
    return UnitFinished(0.0, worker, Unit(trial, epoch, f"train-{step}"), attempt, 1.0, left)


def test_hops_and_bytes_are_those_of_the_log() -> None:
    units = [
        finished(1, "w0", "t1", 1, 1, "a"),  # written: 10
        finished(2, "w1", "t1", 1, 2, "b"),  # a hop, read and written: 20
        finished(3, "w1", "t1", 1, 0, None),  # evaluated where it is in memory: nothing
        finished(4, "w0", "t1", 1, 0, None),  # evaluated elsewhere, read: 10
        finished(5, "w0", "t1", 2, 1, "c"),  # a hop, but what it starts from is in memory by now; written: 10
        finished(6, "w0", "t2", 1, 1, "d"),  # another trial's first unit; written: 10
        finished(7, "w0", "t1", 2, 2, "e"),  # at home, but no longer in memory: 20
    ]
    assert hops_and_bytes(units[::-1]) == (2, 80)
