"""Runs every benchmark in turn, one at a time, each in a process of its own.

    python -m benchmarks [--only NAME ...] [--out FOLDER]

Tables are printed; raw numbers go to FOLDER/<name>.json and pictures beside them (build/bench if not given). One that
fails does not keep the others from running. The goal of `click_to_stop` is about HDFS: it uses that if there is Java.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

# The peers come last: they take longest, and make environments first.
NAMES = (
    "scheduler",
    "groups",
    "result",
    "dashboard",
    "data",
    "unit",
    "bundles",
    "engine",
    "dashboard_load",
    "click_to_stop",
    "start",
    "transform",
    "remote_bytes",
    "forecast",
    "scaling",
    "claims",
    "reference",
    "fused",
    "group_trial",
    "peers",
)
WITH_PICTURES = ("remote_bytes", "scaling", "claims", "peers")


def command(name: str, out: Path) -> list[str]:
    """How one of them is run.

    >>> command("data", Path("out"))[1:]
    ['-m', 'benchmarks.data', '--json', 'out/data.json']
    """
    asked = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(out / f"{name}.json")]
    if name in WITH_PICTURES:
        asked += ["--picture", str(out)]
    if name == "click_to_stop":
        asked += ["--store", "hdfs" if shutil.which("java") else "local"]
    return asked


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--out", type=Path, default=Path("build/bench"), metavar="FOLDER")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in options.only:
        print(f"\n# {name}", flush=True)
        began = time.monotonic()
        if subprocess.run(command(name, options.out), check=False).returncode:
            failed.append(name)
        print(f"({name} took {time.monotonic() - began:.0f} s)", flush=True)
    print(f"\nraw numbers and pictures: {options.out}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
