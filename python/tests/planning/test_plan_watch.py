"""A plan held against its run while that goes on, in virtual time: when it speaks, what it says, and what it leaves."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest
from made_up_pilots import made_profile

from cerebro_spark.backend.machines import Cluster
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import Settings
from cerebro_spark.planning.plan import Plan
from cerebro_spark.planning.planner import Planned
from cerebro_spark.planning.values import Demand, Estimate, Option, Setting, Wish, Workload
from cerebro_spark.planning.watch import PlanWatch, Standing
from cerebro_spark.progress import Remarking
from cerebro_spark.search import FixedSearch, Search
from cerebro_spark.tune.algorithms.stopping import Stopping
from cerebro_spark.turns import Turn
from cerebro_spark.types import Objective, Partition

PARAMS: dict[str, Any] = {"units": 8, "lr": 0.1, "batch_size": 10}
TRIALS, EPOCHS = 4, 10
PARTITIONS = (Partition("p0"), Partition("p1"), Partition("v0", "validation"))


def planned(time_budget: float | None = None) -> Planned:
    """A plan for two workers: training units of a second, one evaluation of half a second an epoch."""
    profile = made_profile([PARAMS], lambda params, batches: 0.01 * batches, Setting(1, 2))
    # Of epochs that have begun when its time is over, a run waits for the end.
    seconds = min(TRIALS * EPOCHS * 2.5 / 2 * 1.2, (time_budget or math.inf) + 4)
    estimate = Estimate(Option(2, 1, 1, 2), seconds, 0.9 * seconds, 1.1 * seconds, 0.83, seconds, dry_runs=16)
    return Planned(
        (estimate,),
        Demand((PARAMS,) * TRIALS, (EPOCHS,) * TRIALS),
        Workload(train=2000, validation=1000, bytes=0, validation_partitions=1),
        Cluster(1, 2),
        Wish(),
        {profile.setting: profile},
        profile,
        1.0,
        30.0,
        time_budget=time_budget,
    )


class Watched:
    """A run in virtual time that is held against that plan.

    Args:
        cost: The seconds of a training unit.
        workers: The workers.
        time_budget: The seconds after which the search asks for nothing more.
    """

    def __init__(self, cost: float, *workers: SimulatedWorker, time_budget: float | None = None) -> None:
        self.watch = Plan(planned(time_budget)).watch()
        self.standings: list[Standing | None] = []
        self.brief: list[str] = []
        objective = Objective("val_loss", "min")
        settings = Settings(PARTITIONS, len(workers), objective=objective)
        backend = SimulatedBackend(list(workers), World(lambda params: cost, evaluation_cost=0.5))
        search: Search = FixedSearch([PARAMS] * TRIALS, EPOCHS)
        if time_budget is not None:
            search = Stopping(search, objective, None, time_budget)  # type: ignore[arg-type]
        Engine(search, settings, backend, DiscardingLog(), "r1", [self.watch, self._keep]).run()

    def _keep(self, turn: Turn) -> None:
        self.standings.append(self.watch.standing)
        self.brief.append(self.watch.in_brief())


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "cerebro_spark"):
        yield caplog


def warnings(said: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in said.records if record.levelno == logging.WARNING]


def test_a_run_that_goes_as_planned_says_so_at_each_quarter(said: pytest.LogCaptureFixture) -> None:
    watched = Watched(1.0, SimulatedWorker("w0"), SimulatedWorker("w1"))
    assert warnings(said) == []
    assert [message.split(" of the work")[0] for message in said.messages] == [
        "run r1: 25%",
        "run r1: 50%",
        "run r1: 75%",
    ]
    assert watched.brief[0] == ""
    assert watched.brief[-1].startswith("planned 1 min 00 s, likely 1 min 0")
    last = watched.standings[-1]
    assert last is not None
    assert last.share == pytest.approx(1.0)
    assert last.likely == pytest.approx(last.passed)


def test_units_that_are_slow_are_said_early_and_once(said: pytest.LogCaptureFixture) -> None:
    watched = Watched(3.0, SimulatedWorker("w0"), SimulatedWorker("w1"))
    (warning,) = warnings(said)
    assert "units took 3 times as long as was measured" in warning
    first = next(standing for standing in watched.standings if standing is not None)
    last = watched.standings[-1]
    assert last is not None
    assert first.share < 0.15
    assert first.deviation > 0.25
    assert first.likely > 1.25 * first.planned


def test_a_worker_that_is_gone_is_a_cause(said: pytest.LogCaptureFixture) -> None:
    Watched(1.0, SimulatedWorker("w0"), SimulatedWorker("w1", deaths=((20.0, float("inf")),)))
    assert any("1 worker was lost" in warning and "longer" in warning for warning in warnings(said))


def test_a_worker_that_comes_back_makes_it_go_as_planned_again(said: pytest.LogCaptureFixture) -> None:
    Watched(1.0, SimulatedWorker("w0"), SimulatedWorker("w1", deaths=((20.0, 24.0),)))
    levels = [record.levelno for record in said.records]
    assert logging.WARNING in levels
    assert levels[-1] == logging.INFO


def test_a_run_that_is_faster_is_said_too(said: pytest.LogCaptureFixture) -> None:
    Watched(0.5, SimulatedWorker("w0"), SimulatedWorker("w1"))
    assert any("shorter" in warning for warning in warnings(said))


def test_it_has_something_to_say_beside_the_bar() -> None:
    assert isinstance(PlanWatch(planned()), Remarking)


@pytest.mark.parametrize("cost", [1.0, 3.0])
def test_a_run_that_its_time_budget_ends_is_likely_to_end_then(cost: float, said: pytest.LogCaptureFixture) -> None:
    watched = Watched(cost, SimulatedWorker("w0"), SimulatedWorker("w1"), time_budget=40.0)
    standings = [standing for standing in watched.standings if standing is not None]
    shares = [int(message.split("%")[0].split(": ")[1]) for message in said.messages]
    assert shares[:3] == pytest.approx([25, 50, 75], abs=2)
    assert all(standing.likely == pytest.approx(40.0, rel=0.05) for standing in standings if standing.passed < 40)
    assert warnings(said) == []
