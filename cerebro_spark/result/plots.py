"""Draws the charts of a result: learning curves, parallel coordinates, and the units of each worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from cerebro_spark import gantt
from cerebro_spark.checks import is_number
from cerebro_spark.errors import CerebroError, ConfigurationError
from cerebro_spark.run_view import RunView

_MAX_NAMES = 20
_MAX_TICKS = 8
_WIDTH = 12.0
_LOGARITHMIC_RATIO = 30.0


def plot(view: RunView, kind: str | None) -> Any:
    """Return a matplotlib figure with the chart of this kind, or with all of them, one below the other."""
    figure_class, _ = gantt.matplotlib_parts()
    if kind is not None and kind not in _CHARTS:
        raise ConfigurationError(f"`kind` is {kind!r}, but must be one of {list(_CHARTS)}, or None for all of them")
    kinds = [name for name in _CHARTS if kind in (None, name)]
    heights = [gantt.height(view.timeline) if name == "gantt" else 4.2 for name in kinds]
    figure = figure_class(figsize=(_WIDTH, sum(heights)), dpi=100, layout="constrained")
    parts = [figure] if len(kinds) == 1 else figure.subfigures(len(kinds), 1, height_ratios=heights)
    for name, part in zip(kinds, parts, strict=True):
        _CHARTS[name](view, part)
    return figure


def _draw_curves(view: RunView, figure: Any) -> None:
    """Draw the metric of the search, epoch by epoch; the best epoch of the best trial has a star."""
    metric = _choose_metric(view)
    axes = figure.add_subplot()
    trials = view.ranked()
    # The colours of the Gantt chart.
    shades = {trial: gantt.colour(index) for index, trial in enumerate(sorted({unit.trial for unit in view.units}))}
    for index, trial in enumerate(trials):
        rows = sorted((row for row in view.epochs.values() if row.trial == trial), key=lambda row: row.epoch)
        if not rows:
            continue
        values = [row.metrics.get(metric, float("nan")) for row in rows]
        shade = {"color": shades[trial], "label": trial, "zorder": 3 if index == 0 else 2}
        axes.plot([row.epoch for row in rows], values, marker="o", markersize=3, linewidth=2.2 - (index > 0), **shade)
    best = view.best_epoch(trials[0]) if trials else None
    if best is not None and metric in best.metrics:
        star = {"marker": "*", "markersize": 15, "color": shades[best.trial], "markeredgecolor": "black", "zorder": 4}
        axes.plot([best.epoch], [best.metrics[metric]], **star)
    _style(axes, f"{metric} by epoch")
    axes.set_xlabel("epoch")
    axes.set_ylabel(metric)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if 0 < len(trials) <= _MAX_NAMES:
        figure.legend(loc="outside right center", frameon=False, fontsize=8, title="trial, best first")


def _draw_parallel(view: RunView, figure: Any) -> None:
    """Draw a line for each trial through its params to its best value, dark if good; leave out constant params."""
    metric = _choose_metric(view)
    rows = [row for trial in view.ranked() if (row := view.best_epoch(trial)) is not None]
    names = list(dict.fromkeys(name for row in rows for name in row.params))
    varied = [name for name in names if len({repr(row.params.get(name)) for row in rows}) > 1]
    scales = [_Scale([row.params.get(name) for row in rows]) for name in varied]
    scales.append(_Scale([row.metrics.get(metric) for row in rows]))
    axes = figure.add_subplot()
    for rank, row in reversed(list(enumerate(rows))):
        cells = [*(row.params.get(name) for name in varied), row.metrics.get(metric)]
        heights = [scale.place(cell) for scale, cell in zip(scales, cells, strict=True)]
        good = 1.0 - rank / max(1, len(rows) - 1)
        axes.plot(range(len(heights)), heights, color=(0.1, 0.3, 0.6), alpha=0.3 + 0.7 * good**2, linewidth=1 + good)
    for at, scale in enumerate(scales):
        axes.axvline(at, color="#888888", linewidth=0.8, zorder=1)
        for height, text in scale.ticks():
            axes.text(at, height, f" {text}", fontsize=7, va="center", color="#333333", zorder=5)
    _style(axes, f"params and {metric} of {len(rows)} trials, the better the darker")
    axes.set_xticks(range(len(scales)), [*varied, metric])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlim(-0.05, max(len(scales) - 1, 0) * 1.1 + 0.05)


def _draw_gantt(view: RunView, figure: Any) -> None:
    share = view.timeline.utilisation()
    gantt.draw_on(figure, view.timeline, f"run {view.run}: {share:.0%} of the workers' time went into units")


_CHARTS: dict[str, Callable[[RunView, Any], None]] = {
    "curves": _draw_curves,
    "parallel": _draw_parallel,
    "gantt": _draw_gantt,
}


class _Scale:
    """Where values are on a vertical axis from 0 to 1: numbers by size, others in the order in which they occur.

    Positive numbers are placed by their logarithms if the largest is thirty times the smallest.

    >>> _Scale([1, 3]).place(2), _Scale(["relu", "tanh"]).place("tanh")
    (0.5, 1.0)
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._numbers = all(is_number(value) and value == value for value in values)
        finite = [float(value) for value in values if is_number(value) and abs(value) < float("inf")]
        self._low, self._high = min(finite, default=0.0), max(finite, default=1.0)
        self._names = list(dict.fromkeys(map(repr, values)))

    def place(self, value: Any) -> float:
        if not self._numbers:
            return self._names.index(repr(value)) / max(1, len(self._names) - 1)
        if self._high == self._low:
            return 0.5
        place = min(max(float(value), self._low), self._high)
        if self._low > 0 and self._high >= _LOGARITHMIC_RATIO * self._low:
            return math.log(place / self._low) / math.log(self._high / self._low)
        return (place - self._low) / (self._high - self._low)

    def ticks(self) -> list[tuple[float, str]]:
        if self._numbers:
            return [(0.0, f"{self._low:.4g}"), (1.0, f"{self._high:.4g}")] if self._high > self._low else []
        last = max(1, len(self._names) - 1)
        return [(index / last, name[:20]) for index, name in enumerate(self._names[:_MAX_TICKS])]


def _choose_metric(view: RunView) -> str:
    if not view.epochs:
        raise CerebroError(f"run {view.run} has no evaluated epoch yet, so there is nothing to draw of its metrics")
    if view.objective is not None:
        return view.objective.metric
    names = [name for row in view.epochs.values() for name in row.metrics]
    return "val_loss" if "val_loss" in names else names[0]


def _style(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
