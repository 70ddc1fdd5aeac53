"""All searches: what a log says of a run is the same, whether it recorded what counted or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st
from run_views import PARTITIONS, TROUBLES, check_all_ways, run_watched
from tune_searches import ALGORITHMS, LOSS, quality, wrapped
from wild_runs import Trouble, WildBackend

from cerebro_spark.events import RunUnit, Settings, UnitFinished
from cerebro_spark.search import Search
from cerebro_spark.types import Metrics, Work


class LossyBackend(WildBackend):
    """A wild backend whose losses depend on params, for searches that look at them."""

    def _measured(self, order: RunUnit, fact: Any) -> UnitFinished:
        loss = quality(order.unit.trial, order.params, order.unit.epoch)
        measured: UnitFinished = replace(fact, metrics=Metrics({"loss": loss}, {"loss": 1.0}))
        return measured


def with_costs(search: Search) -> Search:
    """The search, whose params also say what a unit costs."""
    ask = search.ask

    def asked() -> Any:
        answer = ask()
        return replace(answer, params={**answer.params, "cost": 1.0}) if isinstance(answer, Work) else answer

    search.ask = asked  # type: ignore[method-assign]
    return search


# One that decides beforehand, one that promotes, one that copies checkpoints; the whole suite has all.
QUICK = ("grid", "asha", "pbt")
NAMES = [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in ALGORITHMS]


@pytest.mark.parametrize("name", NAMES)
@examples(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), trouble=TROUBLES, queue_ahead=st.integers(0, 1))
def test_a_log_without_outcomes_gives_the_same_view(name: str, seed: int, trouble: Trouble, queue_ahead: int) -> None:
    settings = Settings(PARTITIONS, workers=3, seed=seed, queue_ahead=queue_ahead, objective=LOSS, quarantine=5.0)
    backend = LossyBackend(3, trouble, seed, set())
    turns, live, engine = run_watched(with_costs(wrapped(name, LOSS, 4)), settings, backend)
    check_all_ways(turns, live, engine.scheduler)
