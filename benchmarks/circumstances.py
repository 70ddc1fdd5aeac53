"""When, where and how something was measured. It measures nothing itself."""

from __future__ import annotations

import datetime
import os
import platform
import sys
from pathlib import Path
from typing import Any


def circumstances(module: str) -> dict[str, Any]:
    """What to keep beside the numbers of a benchmark, run as this module.

    >>> sorted(circumstances("benchmarks.peers"))
    ['command', 'date', 'load', 'machine', 'python']
    """
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": f"{len(os.sched_getaffinity(0))} cores, {_processor()} ({platform.machine()})",
        "load": os.getloadavg(),
        "python": platform.python_version(),
        "command": " ".join([f"python -m {module}", *sys.argv[1:]]),
    }


def _processor() -> str:
    described = Path("/proc/cpuinfo")
    lines = described.read_text().splitlines() if described.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
