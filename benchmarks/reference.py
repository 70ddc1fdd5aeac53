"""Measures whole searches against the limit: two processes that train the same trials in plain loops, nothing else.

    python -m benchmarks.reference [--rounds 1] [--json FILE] [--only torch|keras] [--scale 1.0]

The work: 8 trials (an MLP 64-{128, 256}-64-1, Adam, four learning rates, batches of 256), 2 epochs, 100,000 rows of 64
float32, 20 % of them for validation after every epoch. Everybody gets the same arrays, already prepared: the limit as
.npy files, a search as two partitions with one replica, so that every trial hops. Wall time is from the start of the
work (for the limit: of its processes; for a search: of `fit`) to its end. Each contender runs in a process of its own,
one after another, and the rounds are interleaved. It shows where the time of a search goes; `benchmarks.peers` does the
same work with everybody else.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.harness import Row, compare
from benchmarks.peers.roster import LIMITS, OURS
from benchmarks.peers.works import WORKS, make_files

PARTS = ("training_s", "evaluation_s", "first_unit_at_s")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the rows, for a quick look")
    parser.add_argument("--only", choices=["torch", "keras"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {}
    failures: list[str] = []
    print(f"{'framework':10} {'who':12} {'wall s':>8} {'x limit':>8} {'train s':>8} {'eval s':>8} {'first unit s':>13}")
    for framework in [options.only] if options.only else ["torch", "keras"]:
        contenders = [each for each in (*LIMITS, *OURS) if each.framework == framework]
        with tempfile.TemporaryDirectory() as folder:
            make_files(WORKS["reference"], Path(folder), options.scale)
            rows, failed = compare(WORKS["reference"], contenders, Path(folder), options.rounds)
        failures += failed
        for row in rows:
            found[f"{framework}/{row.contender.how or 'limit'}"] = summary(row)
            print(line(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


def summary(row: Row) -> dict[str, float | None]:
    """The medians of one contender, with where its time went."""
    more = [each.report.more for each in row.rounds]
    parts = {key: statistics.median(each[key] for each in more) for key in PARTS if key in more[0]}
    return {"wall_s": row.median("wall_s"), "session_s": row.median("start_s"), "ratio": row.ratio, **parts}


def line(row: Row) -> str:
    found = summary(row)
    cells = [found.get(key) for key in ("wall_s", "ratio", *PARTS)]
    numbers = " ".join("       -" if cell is None else f"{cell:8.2f}" for cell in cells)
    return f"{row.contender.framework:10} {row.contender.how or 'limit':12} {numbers}"


if __name__ == "__main__":
    sys.exit(main())
