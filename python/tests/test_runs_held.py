"""A run whose driver lives is left to it; one whose driver is gone goes on."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from plain_loop import judged, logged
from small_driver import small_recipe
from small_search import small_dataset
from virtual_runs import Untouchable, simulated, stopped

from cerebro_spark import hold, runs
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import EventLogError
from cerebro_spark.events import Event, UnitFinished
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.turns import Turn


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A data set that no test writes to; runs go to stores of their own."""
    return small_dataset(tmp_path_factory.mktemp("data"), partitions=3)


class Paused:
    """An observer that lets a driver get so far, and no further until it may."""

    def __init__(self) -> None:
        self.there = threading.Event()
        self.go = threading.Event()

    def __call__(self, turn: Turn) -> None:
        for event in turn.events:
            self._see(event)

    def _see(self, event: Event) -> None:
        if isinstance(event, UnitFinished):
            self.there.set()
            assert self.go.wait(60)


def test_a_run_whose_driver_lives_is_refused_with_who_holds_it(
    template: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("cerebro_spark.hold.EVERY", 0.02)
    monkeypatch.setattr("cerebro_spark.hold._LOOK", 0.02)
    paused = Paused()
    with ThreadPoolExecutor(1) as pool:
        alive = pool.submit(runs.execute, small_recipe(template, 2), tmp_path, simulated(), "r1", [paused])
        assert paused.there.wait(60)
        with pytest.raises(EventLogError, match=rf"run r1: process {os.getpid()} on .* since 20.* UTC") as caught:
            runs.resume(tmp_path, "r1", Untouchable())
        assert getattr(caught.value, "__notes__", []) == []
        paused.go.set()
        assert alive.result(60) == "r1", "the first driver does not even notice"
    assert "looking for up to 30 s" in caplog.text
    assert judged(logged(LocalStore(tmp_path), "r1"))[0].finished
    assert LocalStore(tmp_path).list(paths.beats("r1")) == []


def test_a_run_that_is_taken_over_ends_where_it_was(template: Dataset, tmp_path: Path) -> None:
    paused = Paused()
    with ThreadPoolExecutor(1) as pool:
        alive = pool.submit(runs.execute, small_recipe(template, 2), tmp_path, simulated(), "r1", [paused])
        assert paused.there.wait(60)
        runs.resume(tmp_path, "r1", simulated(), take_over=True)
        after = logged(LocalStore(tmp_path), "r1")
        paused.go.set()
        with pytest.raises(EventLogError, match="another driver goes on with run r1"):
            alive.result(60)
    assert judged(after)[0].finished
    assert logged(LocalStore(tmp_path), "r1") == after


def test_a_run_whose_driver_was_killed_goes_on_after_a_while(
    template: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(template, LocalStore(tmp_path))
    LocalStore(tmp_path).write(paths.beat("r1", "dead", 7), b'{"by": "process 7 on mars", "since": "yesterday"}')
    slept: list[float] = []
    patient = partial(hold.wait_until_free, clock=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr("cerebro_spark.runs.wait_until_free", patient)
    runs.resume(tmp_path, "r1", simulated())
    assert sum(slept) == 30.0
    assert judged(logged(LocalStore(tmp_path), "r1"))[0].finished
    runs.resume(tmp_path, "r1", Untouchable())
    assert sum(slept) == 30.0, "who ended well has left no doubt"
