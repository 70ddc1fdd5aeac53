"""A test run ends, whatever its tests leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_RUN = """
import sys
import pytest
import end_of_run
end_of_run.SECONDS = float(sys.argv[2])
# No settings of folders above the test's.
sys.exit(pytest.main(["-q", "-c", "/dev/null", "-p", "end_of_run", "-p", "no:cacheprovider", sys.argv[1]]))
"""
_LEAVES_A_THREAD = """
import threading
def wait_for_ever():
    threading.Event().wait()
def test_that_passes():
    threading.Thread(target=wait_for_ever).start()
"""
_LEAVES_NOTHING = "def test_that_passes(): pass"


@pytest.mark.slow
@pytest.mark.parametrize(("code", "status"), [(_LEAVES_A_THREAD, 1), (_LEAVES_NOTHING, 0)])
def test_a_run_that_hangs_at_its_end_is_ended_and_says_where(tmp_path: Path, code: str, status: int) -> None:
    file = tmp_path / "test_left_behind.py"
    file.write_text(code)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    run = subprocess.run(
        [sys.executable, "-c", _RUN, str(file), "1" if status else "120"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert b"1 passed" in run.stdout
    assert run.returncode == status, run.stderr.decode()
    assert (b"wait_for_ever" in run.stderr) == (status == 1)
