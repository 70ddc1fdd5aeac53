"""Forecasts in words and as JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from cerebro_spark.commands import Command
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.forecast.values import Forecast, from_json, label_of, to_json
from cerebro_spark.forecast.words import describe, describe_answers

NOON = 1_800_014_400.0 - 1_800_014_400.0 % 86400 + 12 * 3600
"""Noon of some day in UTC."""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(hours: float, minutes: float = 0.0) -> float:
    return NOON + (hours - 12) * 3600 + minutes * 60


WHOLE = Forecast(NOON, 70, at(14, 32), at(14, 25), at(14, 50), exact=True)


def test_it_says_when_and_between_what() -> None:
    assert describe(WHOLE, NOON) == "done at 14:32, between 14:25 and 14:50"


def test_without_an_interval_it_says_when() -> None:
    assert describe(Forecast(NOON, 1, at(14, 32), at(14, 32), at(14, 32)), NOON) == "done at 14:32"


def test_another_day_is_named() -> None:
    shown = describe(Forecast(NOON, 1, at(26, 10), at(23, 50), at(28)), NOON)
    day = time.gmtime(NOON).tm_mday
    month = time.strftime("%b", time.gmtime(NOON))
    assert shown == (f"done on {day + 1} {month} at 02:10, between {day} {month} 23:50 and {day + 1} {month} 04:00")


def test_soon_has_seconds() -> None:
    soon = Forecast(NOON, 1, NOON + 40, NOON + 30, NOON + 50)
    assert describe(soon, NOON) == "done at 12:00:40, between 12:00:30 and 12:00:50"


def test_what_is_not_known_has_a_reason() -> None:
    assert describe(Forecast(NOON, 1, reason="no unit has ended"), NOON) == "not known yet: no unit has ended"
    assert describe(Forecast(NOON, 1), NOON) == "not known yet"


def test_answers_are_in_words() -> None:
    stop = Forecast(NOON, 70, at(14, 12), at(14, 12), at(14, 12))
    answers = {"stop_trial t7": stop, "unpause": Forecast(NOON, 70, reason="no worker is left"), "odd t1": stop}
    assert describe_answers(Forecast(NOON, 70, what_if=answers), NOON) == [
        "if you odd t1: done at 14:12",
        "if you stop t7: done at 14:12",
        "if you let the run go on: not known yet: no worker is left",
    ]


def test_a_forecast_survives_json() -> None:
    whole = Forecast(1.5, 7, 3.0, 2.0, 4.0, True, "", {"stop_trial t7": Forecast(1.5, 7, reason="why not")})
    assert from_json(to_json(whole)) == whole
    assert set(json.loads(to_json(whole))) == {
        "made_at", "done_at", "low", "high", "exact", "events", "reason", "what_if"
    }  # fmt: skip


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"made_at": NaN}', to_json(WHOLE).replace("70", '"x"'), "{" * 10000])
def test_anything_else_is_no_forecast(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no forecast"):
        from_json(text)


def test_infinite_times_are_no_forecast() -> None:
    with pytest.raises(ConfigurationError, match="is no forecast"):
        from_json(to_json(WHOLE).replace(str(WHOLE.low), "1e999"))


def test_answers_are_found_by_what_was_asked() -> None:
    assert label_of(Command("stop_trial", trial="t7")) == "stop_trial t7"
    assert label_of(Command("remove_worker", worker="w1")) == "remove_worker w1"
    assert label_of(Command("end")) == "end"


def test_moving_it_moves_its_answers() -> None:
    whole = Forecast(0.0, 7, 3.0, 2.0, 4.0, what_if={"end": Forecast(0.0, 7, 2.0, 2.0, 2.0), "x": Forecast(0.0, 7)})
    moved = whole.shifted(10.0)
    assert (moved.done_at, moved.low, moved.high) == (13.0, 12.0, 14.0)
    assert moved.what_if["end"].done_at == 12.0
    assert moved.what_if["x"].done_at is None
