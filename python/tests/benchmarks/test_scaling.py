"""The scaling benchmark: its fit of unit times, and speedups whose answer is known beforehand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import scaling
from benchmarks.scaling import Times, bend, fit, gaps, in_units, scale
from cerebro_spark.simulation import Scenario, simulate

FREE = Times(row=1e-4, fixed=0.0, between=0.0, spread=0.0)


def test_the_fit_finds_the_line_that_units_lie_on() -> None:
    few = [0.002 + 3e-6 * 20_000] * 9
    many = [0.002 + 3e-6 * 2_500] * 9
    found = fit(few, many, (20_000, 2_500), [0.004, 0.006, 0.005])
    assert found.row == pytest.approx(3e-6)
    assert found.fixed == pytest.approx(0.002)
    assert found.between == pytest.approx(0.005)
    assert found.unit(10_000) == pytest.approx(0.037)


def test_the_fit_is_not_moved_by_units_that_build_their_model() -> None:
    assert fit([0.2] * 9 + [5.0] * 2, [0.1] * 9 + [5.0] * 2, (2_000, 1_000), [0.0]).fixed == pytest.approx(0.0)


def test_units_that_differ_are_spread() -> None:
    found = fit([0.9, 0.95, 1.0, 1.05, 1.1], [0.5] * 5, (2, 1), [0.0])
    assert found.spread == pytest.approx(0.1)


def test_gaps_are_those_of_one_worker() -> None:
    assert gaps([("w0", 0.0, 1.0), ("w1", 0.2, 1.0), ("w0", 1.25, 2.0), ("w1", 3.0, 4.0)]) == [0.25, 2.0]


def test_free_hops_and_enough_trials_scale_ideally() -> None:
    assert [row["speedup"] for row in scale(FREE, 1_000, 16, (1, 2, 4, 8))] == pytest.approx([1, 2, 4, 8])


def test_no_more_workers_are_busy_than_there_are_trials() -> None:
    speedups = [row["speedup"] for row in scale(FREE, 1_000, 4, (1, 2, 4, 8, 16))]
    assert speedups[2] == pytest.approx(4)
    assert all(speedup <= 4 * (1 + 1e-9) for speedup in speedups)


def test_what_does_not_shrink_bounds_the_speedup() -> None:
    times = Times(row=1e-4, fixed=0.05, between=0.05, spread=0.0)
    rows = scale(times, 1_000, 16, (1, 2, 4, 8))
    for row in rows:
        # 0.1 s for all rows and 0.1 s a unit: each worker has a unit of every trial, with its share of the rows.
        assert row["speedup"] == pytest.approx(0.2 / (0.1 / row["workers"] + 0.1))
    assert "does not shrink" in bend(rows)


def test_one_simulation_serves_for_all_sizes() -> None:
    units, _ = in_units(12, 8, 0.05)
    seven = simulate(Scenario(trials=12, workers=8, epochs=scaling.EPOCHS, cost=7.25, jitter=0.05))
    assert seven.makespan == pytest.approx(7.25 * units)


def test_the_bend_is_put_down_to_too_few_trials() -> None:
    assert bend(scale(FREE, 1_000, 4, (1, 2, 4, 8))) == "at 8 workers: 4 trials keep 4 busy"
    assert bend(scale(FREE, 1_000, 4, (1, 2, 4))) == "not up to 4 workers"


def test_the_bend_is_put_down_to_waiting_where_that_costs_more_than_what_does_not_shrink() -> None:
    row = {"workers": 16.0, "speedup": 12.0, "most": 16.0, "overhead": 0.05, "busy": 0.8}
    assert bend([row]) == "at 16 workers: workers wait 20% of the time for trials that others still have"
    assert bend([{**row, "overhead": 0.25}]) == "at 16 workers: 25% of a unit does not shrink with its rows"


@pytest.mark.slow
@pytest.mark.rare
def test_the_command_measures_here_and_writes_numbers_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scaling, "TRIALS", (8,))
    numbers = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["scaling", "--json", str(numbers), "--picture", str(tmp_path)])
    assert scaling.main() == 0
    found = json.loads(numbers.read_text())
    assert found["times"]["row"] > 0
    assert list(found["rows"]) == [str(rows) for rows in scaling.ROWS]
    assert "- 8 trials bend at" in capsys.readouterr().out  # where, depends on what was measured
    assert (tmp_path / "scaling.svg").exists()
