"""Three drivers that believe they own one run, and readers beside them: in thousands of orders of their store calls."""

from __future__ import annotations

import os

import pytest
from stepping import Memory, race

from cerebro_spark.events import WorkerLost

RACES = int(os.environ.get("CEREBRO_RACES", "100"))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 2)


def test_nothing_that_was_acknowledged_is_lost_and_what_was_read_never_changes() -> None:
    shapes = set()
    for seed in range(RACES):
        try:
            final = race(seed, Memory(), "r1")
        except BaseException as error:
            error.add_note(f"with seed {seed}")
            raise
        shapes.add(tuple(event.worker for event in final if isinstance(event, WorkerLost)))
    assert len(shapes) > RACES / 20, "the orders differ"
    assert max(len(set(shape)) for shape in shapes) == 3, "in some all three have had their turn"
