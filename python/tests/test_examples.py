"""The examples run as they are, as a user would start them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = ["flights.py", "--rows", "20000", "--trials", "3", "--epochs", "1", "--out", "flights"]
EXAMPLES = [
    pytest.param([*FLIGHTS, "--framework", "torch"], "'accuracy': 0.", marks=pytest.mark.jvm, id="flights-torch"),
    pytest.param([*FLIGHTS, "--framework", "keras"], "'auc': 0.", marks=pytest.mark.jvm, id="flights-keras"),
    pytest.param(["digits.py", "--trials", "2", "--epochs", "2"], "digits it never saw: 0.", id="digits"),
    pytest.param(["sequences.py", "--trials", "2", "--epochs", "1"], "waves it never saw: ", id="sequences"),
]


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize(("command", "expected"), EXAMPLES)
def test_an_example_runs(command: list[str], expected: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / command[0]), *command[1:]],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert expected in done.stdout
