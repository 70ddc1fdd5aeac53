"""Draws a run: a lane a worker, a colour a trial, failures marked. It reads nothing but a timeline.

Units that were computed together are one bar, with a stripe for each trial and their number on it.
"""

from __future__ import annotations

import colorsys
import os
from pathlib import Path
from typing import Any, NamedTuple

from cerebro_spark.errors import ConfigurationError, MissingDependency
from cerebro_spark.timeline import Timeline, UnitRow

_MOST_NAMES = 20
_MOST_LABELS = 240
_LABEL = {"ha": "center", "va": "center", "fontsize": 6.5, "color": "white", "clip_on": True}
_ABSENCE = {"facecolor": "#f4f4f4", "edgecolor": "#b9b9b9", "hatch": "////", "linewidth": 0.4, "zorder": 2}
_DEATH = {"marker": "X", "color": "#d62728", "markersize": 9, "markeredgecolor": "white", "zorder": 4}


class Bar(NamedTuple):
    """A bar of the chart: a unit of one trial, or units of several trials that were computed together."""

    start: float
    end: float
    trials: tuple[str, ...]
    kind: str

    @property
    def width(self) -> int:
        return len(self.trials)

    @property
    def label(self) -> str:
        return self.trials[0] if self.width == 1 else f"{self.width} trials"


def draw(timeline: Timeline, path: str | os.PathLike[str], title: str) -> None:
    """Write the chart to `path`; the ending of its name chooses the format (png, svg, pdf)."""
    figure_class, _ = matplotlib_parts()
    figure = figure_class(figsize=(12, height(timeline)), dpi=160, layout="constrained")
    draw_on(figure, timeline, title)
    figure.savefig(path)


def height(timeline: Timeline) -> float:
    """How high the chart wants to be, in inches."""
    return max(2.6, min(0.42 * len(timeline.joined), 14.0) + 1.6)


def draw_on(figure: Any, timeline: Timeline, title: str) -> None:
    """Draw the chart on a figure, or a part of one, of matplotlib's; it needs a constrained layout."""
    _, rectangle = matplotlib_parts()
    lanes = {worker: index for index, worker in enumerate(timeline.joined)}
    trials = {trial: index for index, trial in enumerate(sorted({unit.trial for unit in timeline.units}))}
    axes = figure.add_subplot()
    _draw_bars(axes, timeline, lanes, trials)
    _draw_absences(axes, timeline, lanes)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.set_xlabel("seconds")
    axes.set_ylabel("worker")
    axes.set_xlim(0, timeline.end * 1.002 if timeline.end else 1)
    axes.set_ylim(len(lanes) - 0.45, -0.55)
    every = max(1, len(lanes) // 32)
    axes.set_yticks([i for i in lanes.values() if i % every == 0], [w for w, i in lanes.items() if i % every == 0])
    axes.tick_params(length=0, labelsize=9)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    if len(trials) <= _MOST_NAMES:
        handles = [rectangle((0, 0), 1, 1, color=colour(index)) for index in trials.values()]
        figure.legend(handles, list(trials), loc="outside right center", frameon=False, fontsize=8, title="trial")


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise ConfigurationError before any work is done if a chart could not be written there."""
    matplotlib_parts()
    target = Path(path)
    known = {".png", ".svg", ".pdf"}
    if target.suffix.lower() not in known:
        raise ConfigurationError(f"{str(path)!r} does not name a picture: use an ending of {', '.join(sorted(known))}")
    new = not target.exists()
    try:
        with open(target, "ab"):
            pass
    except OSError as error:
        raise ConfigurationError(f"{str(path)!r} cannot be written ({error.strerror}): choose another path") from error
    if new:
        target.unlink()


def _draw_bars(axes: Any, timeline: Timeline, lanes: dict[str, int], trials: dict[str, int]) -> None:
    edge = 0.6 if len(timeline.units) <= 4000 else 0.0
    for worker, lane in lanes.items():
        bars = bars_of([unit for unit in timeline.units if unit.worker == worker])
        for width in sorted({bar.width for bar in bars}):
            _draw_stripes(axes, [bar for bar in bars if bar.width == width], lane, trials)
        axes.broken_barh(_spans(bars), (lane - 0.38, 0.76), facecolor="none", edgecolor="white", linewidth=edge)
        if len(timeline.units) <= _MOST_LABELS:
            for bar in bars:
                axes.text((bar.start + bar.end) / 2, lane, bar.label, **_LABEL)


def _draw_stripes(axes: Any, bars: list[Bar], lane: int, trials: dict[str, int]) -> None:
    """Draw bars of one width, a collection for each stripe: thousands of bars as single shapes would take minutes."""
    width, spans = bars[0].width, _spans(bars)
    for stripe in range(width):
        colours = [(*colour(trials[bar.trials[stripe]]), 1.0 if bar.kind == "train" else 0.5) for bar in bars]
        low = lane - 0.38 + 0.76 * stripe / width
        axes.broken_barh(spans, (low, 0.76 / width), facecolors=colours, edgecolor="none")


def _spans(bars: list[Bar]) -> list[tuple[float, float]]:
    return [(bar.start, bar.end - bar.start) for bar in bars]


def bars_of(units: list[UnitRow]) -> list[Bar]:
    """Return the bars of one worker's units."""
    orders: dict[int, list[UnitRow]] = {}
    for unit in units:
        orders.setdefault(unit.bundle or unit.attempt, []).append(unit)
    return [bar for rows in orders.values() for bar in _bars_of_order(rows)]


def _bars_of_order(rows: list[UnitRow]) -> list[Bar]:
    """Return one bar for units that were computed together, and one for each that was not.

    All units of an order may be reported at its end. Then those before the last one end where the next one begins.
    """
    bars: list[Bar] = []
    together = [row for row in rows if row.width > 1]
    parts = [[row] for row in rows if row.width == 1] + ([together] if together else [])
    for part in reversed(parts):
        end = min([max(row.end for row in part), *(bar.start for bar in bars)])
        lasted = max([sum(row.seconds for row in part), *(row.end - row.start for row in part)])
        bars.insert(0, Bar(end - lasted, end, tuple(row.trial for row in part), part[0].kind))
    return bars


def _draw_absences(axes: Any, timeline: Timeline, lanes: dict[str, int]) -> None:
    for worker, start, end, retired in timeline.absences:
        until = timeline.end if end is None else min(end, timeline.end)
        axes.broken_barh([(start, until - start)], (lanes[worker] - 0.38, 0.76), **_ABSENCE)
        if not retired:
            axes.plot([start], [lanes[worker]], **_DEATH)


def colour(index: int) -> tuple[float, float, float]:
    """Neighbouring trials get hues far apart; lightness varies too, for those who do not see hues."""
    hue = (index * 0.61803398875) % 1.0
    lightness = 0.40 + 0.16 * ((index * 7) % 3) / 2
    return colorsys.hls_to_rgb(hue, lightness, 0.55)


def matplotlib_parts() -> tuple[Any, Any]:
    """The classes Figure and Rectangle, or MissingDependency: matplotlib is loaded when a chart is wanted."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError as error:
        raise MissingDependency("charts need matplotlib: pip install 'cerebro-spark[plot]'") from error
    return Figure, Rectangle
