"""Asks whether what the paper claims of accuracy holds here, in small. It prints what it finds, good or bad.

    python -m benchmarks.claims [--only curves|batches|fmin ...] [--json FILE] [--picture FOLDER] [--small]

- curves: validation loss by epoch of MOP (trained by this system on two worker processes), sequential SGD, synchronous
  data parallelism and model averaging, on the same eight partitions from the same initial weights (Figure 7B);
- batches: the lowest validation error against the batch size (Figure 9);
- fmin: a Hyperopt search by CerebroTrials, with twice as many trials under way as workers, and by SparkTrials.

Ends with 1 if a claim does not hold; in small that means nothing, and is said but not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.circumstances import circumstances
from benchmarks.claims import contest, figures, pictures, tables

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Part:
    """One claim to look into: how to measure it, and how to show what was found."""

    title: str
    run: Callable[[bool], dict[str, Any]]
    table: Callable[[Mapping[str, Any]], str]
    picture: Callable[[Mapping[str, Any], Path], Path]


def fmin(small: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return contest.compare(contest.SMALL if small else contest.Contest(), Path(folder), _note)


def curves(small: bool) -> dict[str, Any]:
    return figures.figure_7b(figures.SMALL if small else figures.Size())


def batches(small: bool) -> dict[str, Any]:
    return figures.figure_9(figures.SMALL if small else figures.Size())


PARTS = {
    "curves": Part("Learning curves (Figure 7B)", curves, tables.curves, pictures.curves),
    "batches": Part("Batch sizes (Figure 9)", batches, tables.sweep, pictures.sweep),
    "fmin": Part("CerebroTrials and SparkTrials", fmin, tables.contest, pictures.contest),
}


def main() -> int:
    given = _arguments().parse_args()
    # Worker processes find these modules, and nobody has more threads than another.
    os.environ["PYTHONPATH"] = str(ROOT)
    _one_thread()
    found: dict[str, Any] = {**circumstances("benchmarks.claims"), "small": given.small}
    for name in given.only or PARTS:
        part = PARTS[name]
        began = time.perf_counter()
        found[name] = part.run(given.small)
        found[name]["seconds"] = time.perf_counter() - began
        print(f"\n## {part.title}\n\n{part.table(found[name])}\n\n{tables.claims(found[name])}\n", flush=True)
        _note(f"{name}: {found[name]['seconds']:.0f} s")
        if given.picture:
            _note(f"drawn: {part.picture(found[name], given.picture)}")
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))
    return 0 if given.small or all(all(found[name]["claims"].values()) for name in given.only or PARTS) else 1


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _note(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="python -m benchmarks.claims"
    )
    parser.add_argument("--only", nargs="+", choices=list(PARTS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path, help="a folder for pictures")
    parser.add_argument("--small", action="store_true", help="only to see that it runs; claims need the full size")
    return parser


if __name__ == "__main__":
    sys.exit(main())
