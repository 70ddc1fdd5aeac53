"""The part of benchmarks.dashboard that opens a page: a log that grows, and a small run in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import dashboard_page
from benchmarks.dashboard import RUN, write_log
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import UnitFinished
from cerebro_spark.outcomes import view_of
from cerebro_spark.store.local import LocalStore


@pytest.fixture
def whole(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "whole")
    write_log(store, trials=40, epochs=4, partitions=2)
    return store


def units_in(store: LocalStore) -> int:
    return sum(isinstance(event, UnitFinished) for event in EventLog(store, RUN).read())


def test_a_log_grows_by_the_units_that_were_held_back_and_does_not_end(whole: LocalStore, tmp_path: Path) -> None:
    copy = LocalStore(tmp_path / "copy")
    log = dashboard_page.GrowingLog(whole, copy, RUN)
    begun = log.units
    assert 0 < begun == units_in(copy) < units_in(whole)
    log.grow()
    assert log.units == units_in(copy) == begun + dashboard_page.UNITS_AN_UPDATE
    while log.can_grow:
        log.grow()
    view = view_of(EventLog(copy, RUN).turns())
    assert not view.finished
    assert view_of(EventLog(whole, RUN).turns()).finished


@pytest.mark.slow
def test_a_page_is_measured(whole: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := dashboard_page.why_not():
        pytest.skip(f"no page is opened: {reason}")
    for name, few in {"LOADS": 1, "UPDATES": 2, "USED_SECONDS": 2}.items():
        monkeypatch.setattr(dashboard_page, name, few)
    result = dashboard_page.measure(str(whole.root), RUN)
    (load,) = result["loads"]
    assert min(load["row"], load["chart"]) > 0
    assert len(result["updates_ms"]) == 2
    for update in result["updates_ms"]:
        assert update["page"] > 0
        assert update["all"] == pytest.approx(update["polling"] + update["server"] + update["page"], abs=0.01)
    assert all(spent and min(spent) > 0 for spent in result["acts"].values())
    assert "| first chart | " in dashboard_page.table(result)


def test_a_machine_without_a_browser_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CEREBRO_CHROMIUM", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert dashboard_page.why_not() == "chromium is not installed"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert dashboard_page.why_not() == "playwright is not installed"
