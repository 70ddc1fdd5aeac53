"""A run in a terminal, drawn anew while it goes on: `cerebro-spark watch STORE RUN`. It only looks.

Without a terminal (a pipe, a file) it prints a line whenever something has changed.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from cerebro_spark.forecast.values import Forecast
from cerebro_spark.forecast.words import describe as foresee
from cerebro_spark.live.handle import OVER, RunHandle, Status
from cerebro_spark.progress import describe
from cerebro_spark.run_view import RunView, WorkerView
from cerebro_spark.types import TrialId

EVERY = 1.0
"""Seconds from one look to the next."""
LOOKS_A_FORECAST = 5
"""After how many looks the forecast is read again."""
_BAR = 30
_HOME, _CLEAR, _REST_OF_LINE, _REST = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"


def watch(
    run: RunHandle,
    out: TextIO,
    *,
    terminal: bool | None = None,
    size: Callable[[], tuple[int, int]] = shutil.get_terminal_size,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> Status:
    """Show a run until it is over.

    Args:
        run: The run.
        out: Where to show it.
        terminal: Whether `out` understands the control sequences of a terminal. Defaults to None: if it is one.
        size: Returns the columns and lines of the terminal.
        sleep: Waits for some seconds.
        clock: Returns seconds since 1970.

    Returns:
        How the run ended.
    """
    show = _Screen(out, size) if (out.isatty() if terminal is None else terminal) else _Lines(out)
    looks = 0
    while True:
        status, view = run.status, run.snapshot()
        if looks % LOOKS_A_FORECAST == 0:
            forecast = run.forecast
        looks += 1
        show(view, status, clock(), None if status in OVER else forecast)
        if status in OVER:
            return status
        sleep(EVERY)


class _Screen:
    """Draws each look over the one before."""

    def __init__(self, out: TextIO, size: Callable[[], tuple[int, int]]) -> None:
        self._out, self._size = out, size
        self._begun = False

    def __call__(self, view: RunView, status: Status, clock: float, forecast: Forecast | None) -> None:
        columns, rows = self._size()
        lines = frame(view, status, clock, columns, rows - 1, forecast)
        begin = _HOME if self._begun else _CLEAR + _HOME
        self._begun = True
        self._out.write(begin + "".join(f"{line}{_REST_OF_LINE}\n" for line in lines) + _REST)
        self._out.flush()


class _Lines:
    """Prints where the run stands, if that has changed."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last = ""

    def __call__(self, view: RunView, status: Status, clock: float, forecast: Forecast | None) -> None:
        """Print a line. The forecast is in it, but a new one is no reason for a line."""
        said = f"{status}: {describe(view)}"
        if said != self._last:
            when = time.strftime("%H:%M:%S", time.gmtime(clock))
            end = f" | {foresee(forecast, clock)}" if forecast is not None and forecast.known else ""
            print(f"{when} {printable(said + end)}", file=self._out, flush=True)
        self._last = said


def frame(
    view: RunView,
    status: Status,
    clock: float,
    columns: int = 80,
    rows: int = 24,
    forecast: Forecast | None = None,
) -> list[str]:
    """What a terminal shows of a run: as many lines as fit, none longer than it is wide.

    Args:
        view: The run.
        status: How it stands.
        clock: The time, in seconds since 1970.
        columns: The width of the terminal. Defaults to 80.
        rows: How many lines there may be. Defaults to 24.
        forecast: When it will be done. Defaults to None: nothing is said of that.

    Returns:
        The lines.
    """
    end = [] if forecast is None else [f"Forecast: {foresee(forecast, clock)}"]
    head = [*_headline(view, status, clock), *end, ""]
    workers = ["", *(_worker(worker, clock) for worker in view.workers.values() if worker.up)]
    room = max(rows - len(head), 0)
    # Half of the room at least is for trials: there may be hundreds of workers.
    shown = workers if len(workers) <= room // 2 else [*workers[: max(room // 2 - 1, 0)], f"... {len(workers)} workers"]
    trials = list(_trials(view, max(room - len(shown), 0)))
    return [printable(line)[:columns] for line in [*head, *trials, *shown][:rows]]


def printable(text: str) -> str:
    """A text without what would move a cursor: params, hosts and errors are written by users.

    >>> printable("a\\x1b[2Jb")
    'a?[2Jb'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _headline(view: RunView, status: Status, clock: float) -> Iterator[str]:
    counts = view.counts()
    since = "" if view.started is None else f", {_span(clock - view.started)} since its start"
    yield f"Run {view.run} is {status}{since}"
    share = counts.units / counts.all_units if counts.all_units else 0.0
    full = int(share * _BAR)
    yield f"[{'#' * full}{'-' * (_BAR - full)}] {share:4.0%}  {counts.units}/{counts.all_units} units"
    yield describe(view)


def _trials(view: RunView, room: int) -> Iterator[str]:
    """The best trials, one line each, under a heading."""
    ranked = view.ranked()
    if room < 2 or not ranked:
        return
    metric = view.objective.metric if view.objective else ""
    yield f"{'trial':<8}{'status':<10}{'epochs':>8}  {metric or 'metric':<12}  params"
    fitting = ranked if len(ranked) < room else ranked[: room - 2]
    for trial in fitting:
        yield _trial(view, trial, metric)
    if len(fitting) < len(ranked):
        yield f"... and {len(ranked) - len(fitting)} more trials"


def _trial(view: RunView, trial: TrialId, metric: str) -> str:
    shown = view.trials[trial]
    value = shown.best.metrics.get(metric) if shown.best else None
    text = "" if value is None else f"{value:.6g}"
    return (
        f"{trial:<8}{view.status(trial):<10}{f'{shown.epochs}/{shown.until}':>8}  {text:<12}  {_params(shown.params)}"
    )


def _params(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={f'{v:.4g}' if isinstance(v, float) else v}" for name, v in params.items())


def _worker(worker: WorkerView, clock: float) -> str:
    since = "" if worker.since_clock is None else f" for {_span(clock - worker.since_clock)}"
    host = f" on {worker.host}" if worker.host else ""
    return f"{worker.id}{host}: {worker.activity}{since}"


def _span(seconds: float) -> str:
    """A length of time; a clock that went back counts as none.

    >>> _span(3725.9), _span(65), _span(-1)
    ('1:02:05', '1:05', '0:00')
    """
    minutes, rest = divmod(int(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
