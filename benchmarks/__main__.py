"""Runs every benchmark in turn, one at a time, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NAMES = ("scheduler", "data", "unit", "engine", "transform", "reference")


def main() -> int:
    here = Path(__file__).parent
    failed = []
    for name in NAMES:
        if (here / f"{name}.py").exists():
            print(f"\n# {name}", flush=True)
            if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
                failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
