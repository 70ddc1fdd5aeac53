"""The bytes of checkpoints that a run's turns tell of: those that the backend moved, and those of the formulas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engine_runs import SETTINGS, WORLD, Promoting, Recording, workers
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from cerebro_spark.backend.simulated import SimulatedBackend
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import DiscardingLog, EventLog
from cerebro_spark.events import Settings, UnitFinished
from cerebro_spark.outcomes import view_of
from cerebro_spark.run_view import RunView
from cerebro_spark.search import Search
from cerebro_spark.store.local import LocalStore
from cerebro_spark.traffic import Traffic
from cerebro_spark.types import Partition, Unit

SIZE = 1000
HEAVY = replace(WORLD, checkpoint_bytes=lambda params: SIZE)


def run(search: Search, settings: Settings, log: EventLog | None = None) -> Traffic:
    """Run a search without faults, and check its traffic against what the backend has counted by itself."""
    backend, view = SimulatedBackend(workers(settings.workers), HEAVY), RunView()
    Engine(search, settings, backend, log or DiscardingLog(), "log", [view.apply]).run()
    traffic, moved = view.traffic, backend.traffic
    assert traffic.written == moved.written > 0
    assert traffic.trained_from + traffic.evaluated_from == moved.read
    assert (traffic.hopped, traffic.hops) == (moved.hopped, moved.hops)
    return traffic


def settings_of(partitions: int, workers: int, *, group: int = 1, validation: int = 0, fuse: int = 1) -> Settings:
    parts = [Partition(f"p{n}", rows=10) for n in range(partitions)]
    parts += [Partition(f"v{n}", "validation", rows=10) for n in range(validation)]
    return replace(SETTINGS, partitions=tuple(parts), workers=workers, group=group, fuse=fuse)


@pytest.mark.parametrize("group", [1, 2, 4])
def test_what_training_moves_is_what_the_formulas_say(group: int) -> None:
    epochs, trials, partitions = 3, 4, 8
    search = Recording([{"cost": 1.0} for _ in range(trials)], epochs)
    traffic = run(search, settings_of(partitions, 4, group=group))
    everything = epochs * SIZE * trials * partitions
    assert traffic.written == everything // group
    assert traffic.trained_from == everything - SIZE * trials * group
    assert traffic.evaluated_from == 0
    assert 0 < traffic.hopped <= traffic.trained_from


def test_each_validation_partition_is_measured_from_the_end_of_its_epoch() -> None:
    traffic = run(Recording([{"cost": 1.0} for _ in range(3)], 2), settings_of(4, 2, validation=3))
    assert traffic.evaluated_from == 2 * SIZE * 3 * 3


def test_what_groups_exchange_is_added_up() -> None:
    traffic = Traffic()
    for number, exchanged in enumerate((7, 0, 5), 1):
        traffic.add(UnitFinished(1.0, "w0", Unit("t0", 1, f"p{number}"), number, 1.0, exchanged=exchanged))
    assert (traffic.exchanged, traffic.written, traffic.trained_from) == (12, 0, 0)


@examples(deadline=None)
@given(
    trials=st.integers(1, 5),
    partitions=st.integers(1, 6),
    count=st.integers(1, 4),
    group=st.integers(1, 4),
    validation=st.integers(0, 2),
    fuse=st.sampled_from([1, 3]),
)
def test_the_turns_tell_what_the_backend_moved(
    trials: int, partitions: int, count: int, group: int, validation: int, fuse: int
) -> None:
    settings = settings_of(partitions, count, group=min(group, count), validation=validation, fuse=fuse)
    run(Recording([{"cost": 1.0} for _ in range(trials)], 2), settings)


def test_a_clone_starts_from_what_it_was_cloned_from_and_logs_tell_the_same(tmp_path: Path) -> None:
    log = EventLog(LocalStore(tmp_path), "log")
    traffic = run(Promoting(), SETTINGS, log)
    units = 9 * 3
    assert traffic.written == units * SIZE
    assert traffic.trained_from == (units - 4) * SIZE, "four trials built their models; the fifth has those of another"
    log.close()
    assert view_of(EventLog(LocalStore(tmp_path), "log").turns()).traffic == traffic
