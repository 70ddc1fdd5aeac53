"""A bar chart of wall times, one bar a contender, the limits as lines. It shows the rows as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.harness import Row

_COLOURS = {"torch": "#4c72b0", "keras": "#dd8452"}


def draw(rows: Sequence[Row], title: str, file: Path) -> None:
    """Write the chart as SVG; its folder is made where it is missing."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shown = list(rows)[::-1]
    walls = [row.median("wall_s") or 0.0 for row in shown]
    starts = [row.median("start_s") or 0.0 for row in shown]
    figure, axes = plt.subplots(figsize=(9, 0.45 * len(shown) + 1.2))
    colours = [_COLOURS[row.contender.framework] for row in shown]
    axes.barh([row.contender.title for row in shown], walls, color=colours)
    axes.barh([row.contender.title for row in shown], starts, left=walls, color=colours, alpha=0.3)
    for place, (row, wall, start) in enumerate(zip(shown, walls, starts, strict=True)):
        said = f" {wall:.1f} s" + ("" if row.ratio is None else f", {row.ratio:.2f} x")
        axes.text(wall + start, place, said, va="center", fontsize=8)
        if row.contender.name == row.contender.limit:
            axes.axvline(wall, color=_COLOURS[row.contender.framework], linewidth=0.8, linestyle=":")
    axes.margins(x=0.2)
    axes.set_xlabel("wall seconds (pale: start of a session before it); x: against the limit of the same framework")
    axes.set_title(title, fontsize=10)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    file.parent.mkdir(parents=True, exist_ok=True)
    # No date, no random names: the same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": title}):
        figure.savefig(file, metadata={"Date": None})
    plt.close(figure)
