"""The result of a comparison as a markdown table. It computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.harness import Row

COLUMNS = (
    "who", "wall s", "start s", "x the limit", "hops", "peak MB a worker", "data MB a worker", "MB read", "MB moved",
    "best loss", "mean loss",
)  # fmt: skip
LEGEND = """\
Wall time is from the call on prepared data to the result; a session or cluster that is started before it is "start".
The limit is that of the same framework. Peak: the largest worker process, seen from outside (VmHWM). Data: the arrays
of the worker that holds most. Read: files of data, all workers together, counted. Moved: checkpoints written and read,
counted; gradients or weights sent, 2(p-1) x their bytes an all-reduce. Losses: validation, after the last epoch, of the
best trial and the mean of all."""


def markdown(rows: Sequence[Row]) -> str:
    """One line a contender, in the order given."""
    head = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    return "\n".join([*head, *(f"| {' | '.join(cells(row))} |" for row in rows)])


def cells(row: Row) -> list[str]:
    return [
        row.contender.title,
        number(row.median("wall_s"), 1),
        number(row.median("start_s"), 1),
        number(row.ratio, 2),
        number(row.median("hops"), 0),
        megabytes(row.peak_bytes, 0),
        megabytes(row.median("data_bytes"), 1),
        megabytes(row.median("bytes_read"), 1),
        megabytes(row.median("bytes_moved"), 1),
        number(row.median("best_loss"), 4),
        number(row.median("mean_loss"), 4),
    ]


def number(value: float | None, digits: int) -> str:
    """
    >>> number(1.234, 1), number(None, 1)
    ('1.2', '-')
    """
    return "-" if value is None else f"{value:,.{digits}f}"


def megabytes(value: float | None, digits: int) -> str:
    """
    >>> megabytes(26_000_000, 1)
    '26.0'
    """
    return number(None if value is None else value / 1e6, digits)
