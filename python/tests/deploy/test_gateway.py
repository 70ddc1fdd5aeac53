"""The gateway itself: what its commands say, and that none of them outlives the tests."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gateway import Gateway


def test_output_and_environment(tmp_path: Path) -> None:
    said = Gateway(tmp_path / "home").run('echo "best $STORE"; echo aside >&2; ls examples', STORE="here")
    assert said.line("best") == "here"
    assert said.err == "aside\n"
    assert "spark_submit_job.py" in said.out


def test_a_failure_shows_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"code 3 from:\n(.|\n)*no such cluster"):
        Gateway(tmp_path / "home").run("echo no such cluster >&2; exit 3")


def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.3 s"):
        Gateway(tmp_path / "home").run("sleep 1000; true", timeout=0.3)


def test_a_command_and_its_children_die_with_the_tests(tmp_path: Path) -> None:
    """The end of the last of them closes the fifo, which is the event."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = f"sh -c 'echo up; exec sleep 1000' > {fifo}; true"
    code = f"import sys, pathlib; sys.path[:0] = {sys.path!r}; from gateway import Gateway;"
    code += f"Gateway(pathlib.Path({str(tmp_path / 'home')!r})).run({command!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as tests, open(fifo, "rb") as end:
        assert end.readline() == b"up\n"
        tests.send_signal(signal.SIGKILL)
        ready, _, _ = select.select([end], [], [], 300)
        assert ready, "a command outlived the tests"
        assert end.read() == b""
