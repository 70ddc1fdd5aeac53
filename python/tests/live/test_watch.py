"""A run in a terminal, with a clock that stands still between two looks and a log that is scripted."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from fake_driver import CLOCK, answered, beginning, ending, epoch_of_t0, turn
from run_elsewhere import Elsewhere

from cerebro_spark.commands import Command
from cerebro_spark.events import WorkAdded, WorkerJoined
from cerebro_spark.forecast.files import ForecastFolder
from cerebro_spark.forecast.values import Forecast
from cerebro_spark.live.live_view import LiveView
from cerebro_spark.live.watch import frame, watch
from cerebro_spark.run_view import RunView
from cerebro_spark.turns import Turn
from cerebro_spark.types import Work


@pytest.fixture
def driver(tmp_path: Path) -> Elsewhere:
    """A run that goes on by a turn whenever somebody sleeps."""
    made = Elsewhere(tmp_path)
    made.beat()
    made.says(beginning())
    steps = [epoch_of_t0(), answered(Command("pause")), ending()]
    made.acts = [lambda step=step: made.says(step) for step in steps]  # type: ignore[misc]
    made.acts.insert(1, lambda: None)
    return made


def watched(driver: Elsewhere, terminal: bool) -> tuple[str, str]:
    out = io.StringIO()
    status = watch(
        driver.attach(),
        out,
        terminal=terminal,
        size=lambda: (60, 12),
        sleep=driver.sleep,
        clock=lambda: CLOCK + driver.now,
    )
    return status, out.getvalue()


def test_without_a_terminal_a_line_is_printed_when_something_has_changed(driver: Elsewhere) -> None:
    status, said = watched(driver, terminal=False)
    assert status == "done"
    assert said.splitlines() == [
        "08:00:00 running: 2 running, 0 done | 0/4 epochs | 1 worker",
        "08:00:01 running: 2 running, 0 done | 1/4 epochs | 1 worker | best loss 0.5 (t0)",
        "08:00:03 paused: 2 running, 0 done | 1/4 epochs | 1 worker | best loss 0.5 (t0)",
        "08:00:04 done: 2 running, 0 done | 1/4 epochs | 1 worker | best loss 0.5 (t0)",
    ]


def test_in_a_terminal_each_look_is_drawn_over_the_one_before(driver: Elsewhere) -> None:
    status, said = watched(driver, terminal=True)
    assert status == "done"
    looks = said.split("\x1b[H")
    assert looks[0] == "\x1b[2J"
    assert len(looks) == 1 + 5
    first = [line.removesuffix("\x1b[K") for line in looks[1].splitlines()]
    assert first == [
        "Run r1 is running, 0:00 since its start",
        "[------------------------------]   0%  0/4 units",
        "2 running, 0 done | 0/4 epochs | 1 worker",
        "",
        "trial   status      epochs  loss          params",
        "t0      running        0/2                lr=0.1",
        "t1      running        0/2                lr=0.2",
        "",
        "w0 on mars: t0/1/p0 for 0:00",
        "\x1b[J",
    ]
    assert "[#######-----------------------]  25%  1/4 units" in looks[2]


def test_the_forecast_is_shown_as_long_as_the_run_goes_on(driver: Elsewhere) -> None:
    end = CLOCK + 600
    forecast = Forecast(CLOCK, 3, end, end - 60, end + 120)
    ForecastFolder(driver.store, "r1").write(forecast)
    shown = time.strftime("%H:%M", time.localtime(end))
    _, lines = watched(driver, terminal=False)
    first, *_, last = lines.splitlines()
    assert f"| 1 worker | done at {shown}, between " in first
    assert "between" not in last
    assert f"Forecast: done at {shown}, between" in frame(many(1, 1), "running", CLOCK, forecast=forecast)[3]


def test_a_run_whose_driver_is_gone_ends_the_view(driver: Elsewhere) -> None:
    driver.acts = [driver.sign_off]
    assert watched(driver, terminal=False)[0] == "stopped"


def many(trials: int, workers: int) -> RunView:
    live = LiveView()
    live(beginning(trials=trials))
    for number in range(1, workers):
        live(turn(WorkerJoined(1.0, f"w{number}", host="h")))
    return live.snapshot()


@pytest.mark.parametrize(("trials", "workers"), [(1, 1), (7, 3), (3, 50), (500, 200)])
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (20, 8), (200, 60), (10, 2)])
def test_a_frame_fits_its_terminal(trials: int, workers: int, columns: int, rows: int) -> None:
    lines = frame(many(trials, workers), "running", CLOCK, columns, rows)
    assert len(lines) <= rows
    assert all(len(line) <= columns for line in lines)
    assert lines[0].startswith("Run r1"[:columns])
    if rows >= 24:
        assert any(line.startswith("t") and "running" in line for line in lines)
        assert any(line.startswith("w0 on") for line in lines)


def test_what_users_wrote_cannot_move_the_cursor() -> None:
    live = LiveView()
    live(beginning())
    work = WorkAdded(1.0, Work("t2", {"kind": "\x1b[2J\x07evil\nline"}, 2))
    live(Turn([work, WorkerJoined(1.0, "w7", host="\x1b]0;evil\x07")], turn(work, work).outcomes, CLOCK))
    text = "".join(frame(live.snapshot(), "running", CLOCK))
    assert "evil" in text
    assert text.isprintable()
