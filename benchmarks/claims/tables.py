"""The findings as Markdown tables. It says what was found, and nothing about what should have been."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.claims.contest import CONTENDERS
from benchmarks.claims.spread import Spread

TITLES = {"sparktrials": "SparkTrials, 2 at a time", "ours": "CerebroTrials, 4 at a time on 2 workers"}


def curves(found: Mapping[str, Any]) -> str:
    """Validation losses after some epochs, and the error after the last."""
    ways = found["curves"]
    epochs = len(next(iter(ways.values()))[0])
    shown = sorted({min(epochs, number) for number in (1, 2, 5, 10, epochs)})
    heads = [f"loss, epoch {number}" for number in shown[:-1]] + [f"loss, epoch {epochs} (over seeds)", "error %"]
    lines = _head("way", *heads)
    for name, several in ways.items():
        means = [f"{statistics.fmean(points[number - 1].loss for points in several):.4f}" for number in shown[:-1]]
        last = Spread.of([points[-1].loss for points in several])
        errors = statistics.fmean(points[-1].error for points in several)
        lines.append(_row(name, *means, last, f"{100 * errors:.1f}"))
    return "\n".join(lines)


def sweep(found: Mapping[str, Any]) -> str:
    """A line a batch size."""
    lines = _head(
        "batch a worker", "MOP error %", "DDP error %", "MOP training s an epoch", "MOP kB an epoch", "DDP kB an epoch"
    )
    for row in found["table"]:
        errors = [_percent(row[who]) for who in ("mop", "ddp")]
        moved = [f"{row[who] / 1e3:,.0f}" for who in ("mop_bytes", "ddp_bytes")]
        lines.append(_row(row["batch"], *errors, f"{row['mop_unit_s']:.3f}", *moved))
    return "\n".join(lines)


def contest(found: Mapping[str, Any]) -> str:
    """A line a contender."""
    lines = _head("who", "wall s, median", "wall s of each seed", "training s in all, median", "best loss (over seeds)")
    for who in CONTENDERS:
        several = found["runs"][who]
        walls = [run["wall_s"] for run in several]
        each = ", ".join(f"{wall:.1f}" for wall in walls)
        best = Spread.of([run["best"] for run in several])
        training = statistics.median(run["training_s"] for run in several)
        lines.append(_row(TITLES[who], f"{statistics.median(walls):.1f}", each, f"{training:.1f}", best))
    return "\n".join(lines)


def claims(found: Mapping[str, Any]) -> str:
    """Each claim, and whether it held."""
    return "\n".join(f"- {'holds' if held else 'DOES NOT HOLD'}: {claim}" for claim, held in found["claims"].items())


def _percent(values: list[float]) -> str:
    of = Spread.of([100 * value for value in values])
    return f"{of.mean:.2f} ({of.low:.2f} - {of.high:.2f})"


def _head(*names: str) -> list[str]:
    return [_row(*names), "|---" * len(names) + "|"]


def _row(*cells: Any) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"
