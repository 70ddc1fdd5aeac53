"""Compares this system with its peers and with the limit, on the same work side by side.

    python -m benchmarks.peers [--work reference|cnn|fifth] [--only NAME ...] [--rounds N] [--scale F] [--json FILE]
                               [--picture FOLDER]

Each contender runs in a process and an environment of its own, one after another; all get the same arrays, the same
models and one thread a process, and the rounds are interleaved. Environments are made on first use, in .bench.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.circumstances import circumstances
from benchmarks.peers.contender import Contender
from benchmarks.peers.harness import Row, compare
from benchmarks.peers.picture import draw
from benchmarks.peers.roster import ROSTER
from benchmarks.peers.table import LEGEND, markdown
from benchmarks.peers.works import WORKS, make_files


def main() -> int:
    given = _arguments().parse_args()
    if unknown := set(given.only) - {each.name for name in given.work for each in ROSTER[name]}:
        known = sorted({each.name for name in given.work for each in ROSTER[name]})
        print(
            f"--only {' '.join(sorted(unknown))}: nobody is called that; there are {', '.join(known)}", file=sys.stderr
        )
        return 2
    found: dict[str, Any] = {**circumstances("benchmarks.peers"), "scale": given.scale, "works": {}}
    failures: list[str] = []
    for name in given.work:
        rows, failed = run(name, _chosen(name, given.only), given.rounds, given.scale, given.picture)
        found["works"][name] = {row.contender.name: as_json(row) for row in rows}
        failures += failed
        if given.json:
            given.json.write_text(json.dumps(found, indent=1))
    print(LEGEND)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def run(
    name: str, contenders: list[Contender], rounds: int, scale: float, picture: Path | None
) -> tuple[list[Row], list[str]]:
    """One work: make its files, let everybody do it, print the table."""
    work = WORKS[name]
    rows = int(work.rows * scale)
    with tempfile.TemporaryDirectory() as folder:
        make_files(work, Path(folder), scale)
        found, failures = compare(work, contenders, Path(folder), rounds)
    told = f"{name}: {work.title}, {rows:,} rows, {len(work.trials)} trials, {work.epochs} epochs"
    print(f"\n{told}; rounds: {rounds}\n\n{markdown(found)}\n", flush=True)
    if picture:
        draw(found, told, picture / f"benchmark-{name}.svg")
    return found, failures


def as_json(row: Row) -> dict[str, Any]:
    return {
        "title": row.contender.title,
        "ratio": row.ratio,
        "wall_s": row.median("wall_s"),
        "rounds": [each.to_json() for each in row.rounds],
    }


def _chosen(work: str, only: list[str]) -> list[Contender]:
    return [each for each in ROSTER[work] if not only or each.name in only]


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of the contenders, these")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the rows, for a quick look")
    parser.add_argument("--json", type=Path, help="write the raw numbers of all rounds there")
    parser.add_argument("--picture", type=Path, metavar="FOLDER", help="write benchmark-<work>.svg there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
