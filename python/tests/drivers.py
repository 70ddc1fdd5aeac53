"""Drivers as processes of their own: a signal that comes a moment too late ends them, and not the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent


def started_driver(script: str, folder: Path) -> subprocess.Popen[str]:
    """A Python process that runs `script` with `folder` as its argument, and finds the package and what tests share."""
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parents[1]), str(TESTS)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
