"""The findings as SVG files: the same numbers give the same file. It only draws."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COLOURS = ["#1f4e9c", "#7fa7d9", "#4f9d69", "#d9822b", "#b3323b"]
STYLES = ["-", "--", ":", "-", "-"]


def curves(found: Mapping[str, Any], folder: Path) -> Path:
    """Figure 7B: the mean over seeds as a line, lowest to highest as a band."""
    figure, axes = _figure()
    for at, (name, several) in enumerate(found["curves"].items()):
        by_epoch = [[point.loss for point in points] for points in zip(*several, strict=True)]
        epochs = range(1, len(by_epoch) + 1)
        means = [statistics.fmean(values) for values in by_epoch]
        axes.plot(epochs, means, color=COLOURS[at], linestyle=STYLES[at], label=name, linewidth=1.8)
        lows, highs = [min(values) for values in by_epoch], [max(values) for values in by_epoch]
        axes.fill_between(epochs, lows, highs, color=COLOURS[at], alpha=0.15, linewidth=0)
    axes.set_yscale("log")
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation loss")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize=8)
    return _save(figure, axes, "Digits, 8 partitions: learning curves", folder / "claims-curves.svg")


def sweep(found: Mapping[str, Any], folder: Path) -> Path:
    """Figure 9B: the lowest error against the batch size a worker takes."""
    figure, axes = _figure()
    batches = [row["batch"] for row in found["table"]]
    for at, (who, name) in zip((0, 3), (("mop", "MOP"), ("ddp", "DDP, batch x p")), strict=True):
        values = [[100 * error for error in row[who]] for row in found["table"]]
        axes.plot(batches, list(map(statistics.fmean, values)), color=COLOURS[at], marker="o", label=name)
        axes.fill_between(batches, list(map(min, values)), list(map(max, values)), color=COLOURS[at], alpha=0.15)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_xlabel("batch size a worker")
    axes.set_ylabel("lowest validation error, %")
    axes.legend(frameon=False, fontsize=8)
    return _save(figure, axes, "Digits, 8 partitions: batch sizes", folder / "claims-batch-sizes.svg")


def contest(found: Mapping[str, Any], folder: Path) -> Path:
    """Wall time and best loss of every seed, both ways."""
    from benchmarks.claims.tables import TITLES

    figure, axes = _figure()
    for at, (who, several) in zip((3, 0), found["runs"].items(), strict=True):
        walls, best = [run["wall_s"] for run in several], [run["best"] for run in several]
        axes.scatter(walls, best, color=COLOURS[at], label=TITLES[who])
    axes.set_xlim(left=0)
    axes.set_xlabel("wall seconds")
    axes.set_ylabel("best validation loss")
    axes.legend(frameon=False, fontsize=8)
    return _save(figure, axes, "The same Hyperopt search, a dot a seed", folder / "claims-fmin.svg")


def _figure() -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    return figure, figure.add_subplot()


def _save(figure: Any, axes: Any, title: str, file: Path) -> Path:
    import matplotlib

    axes.set_title(title, loc="left", fontsize=10)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    file.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": title}):
        figure.savefig(file, metadata={"Date": None})
    return file
