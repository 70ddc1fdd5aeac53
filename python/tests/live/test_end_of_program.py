"""A program that comes to its end waits for its run, shows what nobody has seen, and can be interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import cerebro_spark as cs
from cerebro_spark.errors import NotFoundInStore
from cerebro_spark.live import AttachedRun

TESTS = Path(__file__).resolve().parents[1]


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parents[1]), str(TESTS)])}


def ended(how: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TESTS / "live" / "ended_program.py"), how],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("how", ["done", "failed"])
def test_a_program_waits_for_its_run_which_can_use_pools_until_then(how: str) -> None:
    said = ended(how)
    assert said.stdout.splitlines() == ["the program came to its end", "the run came to its end"], said.stderr
    assert ("BackendError: all workers are gone" in said.stderr) == (how == "failed")


def test_ctrl_c_at_the_end_of_a_program_stops_its_run() -> None:
    said = ended("interrupted")
    assert "run r1 ended early" in said.stderr
    assert "KeyboardInterrupt" in said.stderr


def attached_once_it_trains(folder: Path, program: subprocess.Popen[str]) -> AttachedRun:
    while program.poll() is None:
        try:
            run = cs.attach(str(folder), "mine", leave=True)
            if run.progress.units > 3:
                return run
        except NotFoundInStore:
            pass
        threading.Event().wait(0.2)
    raise AssertionError(program.communicate()[1])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ctrl_c_stops_a_run_on_real_workers_which_is_then_ended_by_what_was_left_in_its_mailbox(tmp_path: Path) -> None:
    """The terminal sends Ctrl-C to everybody in the group, workers included."""
    command = [sys.executable, str(TESTS / "live" / "interrupted_program.py"), str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True, process_group=0) as program:
        try:
            run = attached_once_it_trains(tmp_path, program)
            os.killpg(program.pid, signal.SIGINT)
            said = program.communicate(timeout=300)[1]
        finally:
            program.kill()
    assert "KeyboardInterrupt" in said
    assert "run mine can be resumed: cs.resume(" in said
    assert (run.status, run.driver) == ("stopped", "")
    assert not run.end().done
    result = cs.resume(str(tmp_path), "mine", backend=cs.LocalBackend(1, threads=1))
    assert result.finished
    assert run.status == "done"
