"""Decide what each partition is made of, from row counts alone. PURE: reports in, pieces out; it never opens a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebro_spark.data.input.cells import Tally
from cerebro_spark.data.input.columns import Column
from cerebro_spark.data.partitioning.deal import deal, partition_sizes, validation_rows
from cerebro_spark.data.partitioning.staging import Chunk, Piece, SplitReport
from cerebro_spark.errors import DataError
from cerebro_spark.types import Split

Hands = dict[tuple[Split, int], list[Piece]]


def agree(reports: Sequence[SplitReport], others: Sequence[SplitReport] = ()) -> tuple[Column, ...]:
    """The columns that all splits have, `others` being those of a validation frame.

    DataError with everything that is wrong in any of them.
    """
    tallies, more = _sum(reports), _sum(others)
    problems = [problem for name, tally in tallies.items() for problem in tally.problems(name)]
    problems += [f"validation frame: {problem}" for name, tally in more.items() for problem in tally.problems(name)]
    if problems:
        raise DataError("; ".join(problems))
    columns = next((report.columns for report in reports if report.columns), None)
    if columns is None:
        raise DataError("the data has 0 rows: there is nothing to train on")
    held_out = next((report.columns for report in others if report.columns), None)
    if held_out is not None:
        _compare(columns, tallies, held_out, more)
    return columns


def _sum(reports: Sequence[SplitReport]) -> dict[str, Tally]:
    tallies: dict[str, Tally] = {}
    for report in reports:
        for name, tally in report.tallies.items():
            tallies.setdefault(name, Tally(tally.role)).add(tally)
    return tallies


def _compare(
    columns: Sequence[Column], tallies: Mapping[str, Tally], others: Sequence[Column], more: Mapping[str, Tally]
) -> None:
    """Raise DataError where the validation frame is stored otherwise than the data it stands beside."""
    problems: dict[str, str] = {}
    for column, other in zip(columns, others, strict=True):
        for source in column.sources:
            (kind, _), (found, _) = tallies[source].types.most_common()[0], more[source].types.most_common()[0]
            if (kind.shape, kind.codec) != (found.shape, found.codec):
                problems[source] = (
                    f"column {source!r} has rows of shape {kind.shape} in df, but {found.shape} in the validation"
                    " frame: pad or crop them to one shape, encoded in one way"
                )
            elif column.dtype != other.dtype:
                problems[source] = (
                    f"column {source!r} is {kind.dtype} in df, but {found.dtype} in the validation frame:"
                    " cast one of them to the type of the other"
                )
    if problems:
        raise DataError("; ".join(problems.values()))


def plan_fraction(reports: Sequence[SplitReport], fraction: float, partitions: int, seed: int) -> Hands:
    """Training and validation partitions out of one pile of rows; no validation where `fraction` is 0."""
    chunks = _chunks(reports)
    rows = sum(chunk.train for chunk in chunks)
    held_out = validation_rows(rows, fraction)
    if fraction and not held_out:
        raise DataError(f"validation is {fraction}, but that is 0 of {rows} rows: use a larger fraction")
    if rows and held_out == rows:
        raise DataError(
            f"validation is {fraction}, but that is all {rows} rows and leaves none to train on: use a smaller fraction"
        )
    train = _train_sizes(rows - held_out, partitions)
    hands = _pieces(
        chunks, [chunk.train for chunk in chunks], [], train + _validation_sizes(held_out, partitions), seed
    )
    return _named("train", hands[: len(train)]) | _named("validation", hands[len(train) :])


def plan_flag(reports: Sequence[SplitReport], partitions: int, seed: int) -> Hands:
    """Validation partitions out of the rows that a boolean column marks, training ones out of the others."""
    chunks = _chunks(reports)
    train = [chunk.train for chunk in chunks]
    marked = [chunk.held_out for chunk in chunks]
    if not sum(marked):
        raise DataError("the validation column is true in 0 rows: mark some, or pass a fraction")
    if not sum(train):
        raise DataError(
            f"the validation column is true in all {sum(marked)} rows, which leaves none to train on: mark fewer"
        )
    hands = _pieces(chunks, train, [], _train_sizes(sum(train), partitions), seed)
    others = _pieces(chunks, marked, train, _validation_sizes(sum(marked), partitions), seed)
    return _named("train", hands) | _named("validation", others)


def plan_frames(reports: Sequence[SplitReport], others: Sequence[SplitReport], partitions: int, seed: int) -> Hands:
    """Training partitions out of one pile of rows, validation ones out of another."""
    chunks = _chunks(others)
    counts = [chunk.train for chunk in chunks]
    if not sum(counts):
        raise DataError("the validation data has 0 rows: pass a DataFrame that has some, or a fraction")
    hands = _pieces(chunks, counts, [], _validation_sizes(sum(counts), partitions), seed)
    return plan_fraction(reports, 0.0, partitions, seed) | _named("validation", hands)


def _chunks(reports: Sequence[SplitReport]) -> list[Chunk]:
    return [chunk for report in sorted(reports, key=lambda report: report.split) for chunk in report.chunks]


def _named(split: Split, hands: Sequence[list[Piece]]) -> Hands:
    return {(split, number): hand for number, hand in enumerate(hands)}


def _train_sizes(rows: int, partitions: int) -> list[int]:
    if rows < partitions:
        raise DataError(
            f"partitions is {partitions}, but there are only {rows} rows to train on:"
            f" use partitions={max(1, rows)} or fewer"
        )
    return partition_sizes(rows, partitions)


def _validation_sizes(rows: int, partitions: int) -> list[int]:
    return partition_sizes(rows, min(rows, partitions)) if rows else []


def _pieces(
    chunks: Sequence[Chunk], counts: Sequence[int], starts: Sequence[int], sizes: Sequence[int], seed: int
) -> list[list[Piece]]:
    first = starts or [0] * len(chunks)
    hands = deal(counts, sizes, seed)
    return [[Piece(chunks[cut.chunk], first[cut.chunk] + cut.start, cut.rows) for cut in hand] for hand in hands]
