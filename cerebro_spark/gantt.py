"""Draws a run: a lane a worker, a colour a trial, failures marked. It reads nothing but a timeline.

Units that were computed together are one bar, in the colour of the first trial, with the number of trials on it.
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
    """A bar of the chart: a unit, or units of several trials that were computed together."""

    start: float
    end: float
    trial: str
    kind: str
    width: int = 1

    @property
    def label(self) -> str:
        return self.trial if self.width == 1 else f"{self.width} trials"


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
    """One collection a lane: thousands of bars as single shapes would take minutes."""
    edge = 0.6 if len(timeline.units) <= 4000 else 0.0
    for worker, lane in lanes.items():
        bars = bars_of([unit for unit in timeline.units if unit.worker == worker])
        spans = [(bar.start, bar.end - bar.start) for bar in bars]
        colours = [(*colour(trials[bar.trial]), 1.0 if bar.kind == "train" else 0.5) for bar in bars]
        axes.broken_barh(spans, (lane - 0.38, 0.76), facecolors=colours, edgecolor="white", linewidth=edge)
        if len(timeline.units) <= _MOST_LABELS:
            for bar in bars:
                axes.text((bar.start + bar.end) / 2, lane, bar.label, **_LABEL)


def bars_of(units: list[UnitRow]) -> list[Bar]:
    """Return the bars of one worker's units."""
    together: dict[int, list[UnitRow]] = {}
    for unit in units:
        together.setdefault(unit.bundle if unit.width > 1 else -unit.attempt, []).append(unit)
    return [
        Bar(min(u.start for u in rows), max(u.end for u in rows), rows[0].trial, rows[0].kind, len(rows))
        for rows in together.values()
    ]


def _draw_absences(axes: Any, timeline: Timeline, lanes: dict[str, int]) -> None:
    for worker, start, end in timeline.absences:
        until = timeline.end if end is None else min(end, timeline.end)
        axes.broken_barh([(start, until - start)], (lanes[worker] - 0.38, 0.76), **_ABSENCE)
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
