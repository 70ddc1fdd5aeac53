"""Views of simulated runs, made in all the ways there are, and compared with what the scheduler knows."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from wild_runs import ListedLog, Trouble

from cerebro_spark.backend.simulated import SimulatedBackend
from cerebro_spark.engine import Engine
from cerebro_spark.errors import RunStalled
from cerebro_spark.events import Settings
from cerebro_spark.outcomes import view_of
from cerebro_spark.run_view import RunView
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.search import Search
from cerebro_spark.turns import Turn, events_of
from cerebro_spark.types import Partition

PARTITIONS = (*(Partition(f"p{i}", rows=10 + i) for i in range(3)), Partition("v0", "validation"))
TROUBLES = st.builds(
    Trouble,
    deaths=st.sampled_from([0.0, 0.1, 0.3]),
    worker_faults=st.sampled_from([0.0, 0.1]),
    trial_faults=st.sampled_from([0.0, 0.02]),
)


def bare(turns: list[Turn]) -> list[Turn]:
    """The turns as a version wrote them that recorded no outcomes, all in one."""
    return [Turn(events_of(turns))]


def timeless(turns: list[Turn]) -> list[Turn]:
    return [replace(turn, wall_clock=None) for turn in turns]


def check_all_ways(turns: list[Turn], live: RunView, scheduler: MopScheduler) -> None:
    """The view says what the scheduler knows, whichever way it was made. `repr`, because NaN is not NaN."""
    assert repr(view_of(turns)) == repr(live)
    old, new = view_of(bare(turns)), view_of(timeless(turns))
    assert repr(old) == repr(new)
    assert repr(view_of([step for turn in timeless(turns) for step in turn.split()])) == repr(new)
    check_against(live, scheduler)


def check_against(view: RunView, scheduler: MopScheduler) -> None:
    state = scheduler.state
    assert (view.finished, view.search_ended, view.now) == (scheduler.finished, state.search_ended, state.now)
    assert list(view.trials) == list(state.trials)
    for name, trial in state.trials.items():
        shown = view.trials[name]
        assert (shown.status, shown.until) == (trial.status, trial.until)
        # An evaluation that ends after its trial has failed counts as a unit, and for nothing else.
        assert shown.units == trial.finished or (shown.units > trial.finished and trial.status == "failed")
        assert repr(shown.params) == repr(trial.params)
        assert (shown.best and shown.best.checkpoint) == trial.best
        assert trial.status != "failed" or view.errors[name] == trial.error
    assert list(view.workers) == list(state.workers)
    for name, worker in state.workers.items():
        seen = view.workers[name]
        assert (seen.up, seen.host) == (worker.live, worker.host if worker.live else seen.host)
        assert [assigned.attempt for assigned in seen.queue] == list(worker.queue)
        assert [assigned.unit for assigned in seen.queue] == [state.assignments[a].unit for a in worker.queue]
        assert worker.loading <= set(seen.loading) <= worker.loading | set(worker.unwanted)


def run_watched(search: Search, settings: Settings, backend: SimulatedBackend) -> tuple[list[Turn], RunView, Engine]:
    """A run to its end, or until the search waits for a trial that was stopped."""
    log, view = ListedLog(), RunView()
    engine = Engine(search, settings, backend, log, "r1", [view.apply])
    try:
        engine.run()
    except RunStalled:
        assert any(trial.status == "stopped" for trial in engine.scheduler.state.trials.values())
    return log.written, view, engine
