"""Runs every benchmark in turn, one at a time, each in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

# Those that are not there yet are left out. The peers come last: they take longest, and make environments first.
NAMES = ("scheduler", "data", "unit", "engine", "transform", "remote_bytes", "scaling", "claims", "reference", "peers")


def main() -> int:
    failed = []
    for name in NAMES:
        if importlib.util.find_spec(f"benchmarks.{name}") is not None:
            print(f"\n# {name}", flush=True)
            if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
                failed.append(name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
