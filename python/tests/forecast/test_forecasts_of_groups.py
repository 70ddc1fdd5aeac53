"""Forecasts of runs whose trials several workers train together, cut anywhere."""

from __future__ import annotations

from typing import Any

import pytest
from cut_runs import KnownRun, settings_of, simulated_run

from cerebro_spark.backend.simulated import SimulatedWorker
from cerebro_spark.events import UnitFinished
from cerebro_spark.forecast.remaining import forecast
from cerebro_spark.search import FixedSearch

COSTS = (2.0, 3.0)
WORLD: dict[str, Any] = {"load_seconds": 0.25, "efficiency": lambda params, size: 0.8}


def grouped_run(trials: int = 2, **changes: Any) -> KnownRun:
    made = settings_of(4, 1, 4, queue_ahead=1, **{"group": 2, **changes})
    search = lambda: FixedSearch([{"cost": cost, "name": str(cost)} for cost in COSTS[:trials]], 3)  # noqa: E731
    return simulated_run(search, made, [SimulatedWorker(f"w{i}") for i in range(4)], **WORLD)


@pytest.mark.parametrize("options", [{"group": 2}, {"group": 4, "group_auto": True}], ids=["two", "auto"])
def test_a_run_in_groups_can_be_foreseen_wherever_it_is_cut(options: dict[str, Any]) -> None:
    run = grouped_run(**options)
    ended = {event.unit.trial for event in run.events if isinstance(event, UnitFinished)}
    assert len(ended) == 2
    for turns in range(1, len(run.turns), 6):
        found = forecast(run.until(turns), run.search)
        if found.known and turns > len(run.turns) // 2:
            assert found.done_at == pytest.approx(run.end, rel=0.1), f"after {turns} of {len(run.turns)} turns"


def test_who_is_in_a_group_is_expected_to_be_done_with_it() -> None:
    run = grouped_run()
    units = [number for number, turn in enumerate(run.turns, 1) if any(isinstance(e, UnitFinished) for e in turn)]
    found = forecast(run.until(units[-8]), run.search)
    assert found.done_at == pytest.approx(run.end, rel=0.1)
