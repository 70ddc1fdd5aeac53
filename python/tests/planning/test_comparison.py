"""A plan and what became of it: what is said, and which causes are found."""

from __future__ import annotations

from typing import Any

import pytest
from made_up_pilots import made_profile

from cerebro_spark.backend.machines import Cluster
from cerebro_spark.errors import EventLogError
from cerebro_spark.planning.comparison import Comparison, compare
from cerebro_spark.planning.planner import Planned
from cerebro_spark.planning.values import Demand, Estimate, Option, Setting, Wish, Workload
from cerebro_spark.run_view import EpochRow, RunView, TrialView
from cerebro_spark.timeline import Absence, UnitRow

PARAMS: dict[str, Any] = {"units": 8, "lr": 0.1, "batch_size": 10}
ROWS = Workload(train=1000, validation=0, bytes=0)


def planned(seconds: float, build: float = 0.0) -> Planned:
    """A plan of one trial that trains ten units of a second on one worker, and builds its model before."""
    profile = made_profile([PARAMS], lambda params, batches: 0.01 * batches, Setting(1, 1), build=build)
    estimate = Estimate(Option(1, 1, 1, 1), seconds, 0.9 * seconds, 1.1 * seconds, 1.0, seconds, dry_runs=16)
    demand = Demand((PARAMS,), (10,))
    return Planned((estimate,), demand, ROWS, Cluster(1, 1), Wish(), {profile.setting: profile}, profile, 1.0, 30.0)


def run(seconds: float, every: float, epochs: int = 10) -> RunView:
    """A run of units that take so many seconds each, one begun every so many seconds."""
    view = RunView("r1", trials={"t0": TrialView("t0", 0, PARAMS)})
    view.timeline.joined = {"w0": 0.0}
    for epoch in range(1, epochs + 1):
        end = epoch * every
        view.timeline.units.append(
            UnitRow("t0", epoch, "p0", "train", "w0", "", end - seconds, end, seconds, 0.5, attempt=epoch)
        )
        view.timeline.busy += seconds
        view.timeline.end = end
        view.epochs["t0", epoch] = EpochRow("t0", epoch, end, {}, PARAMS)
    return view


def test_a_run_that_goes_as_planned_has_no_causes() -> None:
    found = compare(planned(10.0), run(1.0, every=1.05))
    assert found.took == pytest.approx(10.5)
    assert found.causes == ()
    assert str(found) == "planned 10 s (9.0 s to 11 s), took 10 s, 5% longer"


def test_a_first_unit_that_builds_its_model_is_not_slower_than_planned() -> None:
    built = run(1.0, every=1.0)
    first = built.timeline.units[0]
    built.timeline.units[0] = first._replace(seconds=5.0, start=-4.0)
    assert compare(planned(20.0), built).causes == ("units took 1.4 times as long as was measured",)
    assert compare(planned(20.0, build=4.0), built).causes == ()


def test_units_that_are_slower_are_a_cause() -> None:
    found = compare(planned(10.0), run(2.0, every=2.0))
    assert found.causes == ("units took 2 times as long as was measured",)


def test_waiting_losses_and_other_numbers_of_epochs_are_causes() -> None:
    slow = run(1.0, every=2.0)
    assert compare(planned(10.0), slow).causes == (
        "workers waited 50% of the time, for hops and for each other, instead of 0%",
    )
    slow.timeline.absences += [Absence("w0", 1.0, 2.0), Absence("w1", 2.0, None, retired=True)]
    assert {"1 worker was lost", "1 worker was removed"} <= set(compare(planned(10.0), slow).causes)
    more = compare(planned(10.0), run(1.0, every=1.0, epochs=20))
    assert "20 epochs were trained, where 10 were likely" in more.causes


def test_it_is_kept_as_a_file_and_nothing_else_is_taken_for_one() -> None:
    found = Comparison(10.0, 9.0, 11.0, 20.0, ("1 worker was lost",))
    assert Comparison.from_json(found.to_json()) == found
    assert found.is_noteworthy
    for damaged in (b"", b"[]", b"{}", b'{"causes": []}'):
        with pytest.raises(EventLogError, match="the plan beside the log cannot be read"):
            Comparison.from_json(damaged)
