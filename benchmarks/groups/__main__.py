"""Measures groups of workers in virtual time: how good their sizes are, and what others published.

    python -m benchmarks.groups [rule] [fleet] [thesis] [hyperband] [--json FILE]

The real engine and scheduler run on made-up clusters; a group takes as long as its efficiency says. It takes one core.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.groups import fleet, hyperband, rule, thesis

SECTIONS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "rule": rule.run,
    "fleet": fleet.run,
    "thesis": thesis.run,
    "hyperband": hyperband.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of {', '.join(SECTIONS)}; all if none")
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    options = parser.parse_args()
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"there is no section {unknown[0]!r}: use some of {', '.join(SECTIONS)}")
    results = {}
    for name in options.sections or SECTIONS:
        began = time.monotonic()
        results[name] = SECTIONS[name]()
        print(f"({name} took {time.monotonic() - began:.0f} s)", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
