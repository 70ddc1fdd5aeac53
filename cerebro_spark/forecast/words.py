"""A forecast in words, for people: for a progress line or a terminal. It reads no clock but the one it is given."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cerebro_spark.forecast.values import Forecast

_SOON = 90.0
"""Seconds below which minutes say too little."""


def describe(forecast: Forecast, now: float) -> str:
    """Return one line on when a run will be done, in local time.

    Args:
        forecast: The forecast.
        now: The wall clock, in seconds since 1970: days are named where it is not today.

    >>> from cerebro_spark.forecast.values import Forecast
    >>> describe(Forecast(0.0, 0, reason="no unit has ended"), 0.0)
    'not known yet: no unit has ended'
    """
    if forecast.done_at is None or forecast.low is None or forecast.high is None:
        return f"not known yet: {forecast.reason}" if forecast.reason else "not known yet"
    show = _clock_for((forecast.done_at, forecast.low, forecast.high), now)
    done, low, high = show(forecast.done_at), show(forecast.low), show(forecast.high)
    return f"done {done}" if low == high else f"done {done}, between {_bare(low)} and {_bare(high)}"


def describe_answers(forecast: Forecast, now: float) -> list[str]:
    """Return a line for each question that a forecast answers, such as "if you stop t7: done at 14:12"."""
    return [f"{_question(label)}: {describe(answer, now)}" for label, answer in sorted(forecast.what_if.items())]


_QUESTIONS = {
    "stop_trial": "if you stop {}",
    "resume_trial": "if you resume {}",
    "clone": "if you clone {}",
    "add_workers": "if you add {} workers",
    "remove_worker": "if you remove {}",
    "pause": "if you pause the run",
    "unpause": "if you let the run go on",
    "end": "if you end the run",
    "kill": "if you kill the run",
}


def _question(label: str) -> str:
    verb, _, about = label.partition(" ")
    return _QUESTIONS.get(verb, f"if you {verb} {{}}").format(about)


class _Clock:
    """Shows times with as much of the date, and as many seconds, as are needed to tell them apart from now."""

    def __init__(self, dated: bool, seconds: bool) -> None:
        self._time = "%H:%M:%S" if seconds else "%H:%M"
        self._dated = dated

    def __call__(self, at: float) -> str:
        moment = time.localtime(at)
        day = f"on {moment.tm_mday} {time.strftime('%b', moment)} " if self._dated else ""
        return f"{day}at {time.strftime(self._time, moment)}"


def _clock_for(times: tuple[float, ...], now: float) -> _Clock:
    today = time.localtime(now)[:3]
    dated = any(time.localtime(at)[:3] != today for at in times)
    return _Clock(dated, seconds=max(times) - now < _SOON)


def _bare(shown: str) -> str:
    """Return a time that follows "between" or "and".

    >>> _bare("at 14:32"), _bare("on 17 Nov at 02:10")
    ('14:32', '17 Nov 02:10')
    """
    return shown.removeprefix("on ").removeprefix("at ").replace(" at ", " ")
