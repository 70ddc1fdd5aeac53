"""Drivers that race for one event log, on stores as they are: see test_eventlog_races.py for thousands in memory."""

from __future__ import annotations

import os

import pytest
from stepping import race

from cerebro_spark.store.base import Store

RACES = int(os.environ.get("CEREBRO_STORE_RACES", "4"))


@pytest.mark.timeout(1200)
def test_three_drivers_that_race_lose_nothing(real_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.eventlog._SEGMENTS_BEFORE_COMPACTION", 2)
    for seed in range(RACES):
        try:
            race(seed, real_store, f"r{seed}")
        except BaseException as error:
            error.add_note(f"with seed {seed}")
            raise
