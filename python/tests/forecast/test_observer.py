"""What the driver tells the process that makes forecasts, and how that process gives way to others."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from test_process import LoggedRun, search

from cerebro_spark.commands import Command
from cerebro_spark.events import (
    CommandAnswered,
    CommandReceived,
    Event,
    TrialStopped,
    UnitFinished,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.forecast.observer import LiveForecasts
from cerebro_spark.forecast.priority import LOW
from cerebro_spark.forecast.refresh import Refresh
from cerebro_spark.store.local import LocalStore
from cerebro_spark.turns import Turn

NICEST = 19


def said_of(folder: Path, *events: Event) -> bytes:
    """What an observer says of a turn to its process, which is only made up."""
    forecasts = LiveForecasts(LocalStore(folder), search(), "r1")
    said: list[bytes] = []
    forecasts._say = said.append  # type: ignore[assignment,method-assign]
    forecasts._given.set()
    forecasts(Turn(list(events)))
    return b"".join(said)


@pytest.mark.parametrize(
    ("event", "news"),
    [
        (CommandAnswered(1.0, "c1", True, ""), b"c"),
        (CommandAnswered(1.0, "c1", False, "no such trial"), b"c"),
        (TrialStopped(1.0, "t0"), b"c"),
        (WorkerJoined(1.0, "w0"), b"c"),
        (WorkerLost(1.0, "w0"), b"c"),
        (CommandReceived(1.0, Command("pause", id="c1")), b""),
    ],
)
def test_what_is_news_to_the_process(tmp_path: Path, event: Event, news: bytes) -> None:
    assert said_of(tmp_path, event) == news


def test_a_unit_that_is_done_is_news(tmp_path: Path) -> None:
    turns = LoggedRun(tmp_path, turns=20).turns
    (one, *_) = (event for turn in turns for event in turn.events if isinstance(event, UnitFinished))
    assert said_of(tmp_path, one, one) == b"uu"


def test_after_a_command_there_is_another_forecast(tmp_path: Path) -> None:
    """However few units were done since the last one."""
    refresh = Refresh(units=1000, seconds=5.0, oldest=3600.0)
    refresh.note(b"u", 0.0)
    refresh.made(0.0, 0.1)
    refresh.note(said_of(tmp_path, CommandReceived(9.0, Command("pause", id="c1"))), 9.0)
    assert not refresh.due(10.0)
    refresh.note(said_of(tmp_path, CommandAnswered(9.0, "c1", True, "")), 9.0)
    assert refresh.due(10.0)


def test_its_process_has_a_low_priority(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path, turns=20)
    mine = os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert LOW == 10
    with LiveForecasts(run.store, search(), after=0.0) as forecasts:
        forecasts(run.turns[0])
        assert forecasts._starting is not None
        forecasts._starting.join()
        started = forecasts._process
        assert started is not None
        nothing = threading.Event()
        for _ in range(2400):
            if os.getpriority(os.PRIO_PROCESS, started.pid) == min(mine + LOW, NICEST):
                break
            assert started.poll() is None, "it ended"
            nothing.wait(0.05)
        assert os.getpriority(os.PRIO_PROCESS, started.pid) == min(mine + LOW, NICEST)
    assert os.getpriority(os.PRIO_PROCESS, os.getpid()) == mine, "the driver keeps its own"
