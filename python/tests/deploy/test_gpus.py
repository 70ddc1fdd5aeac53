"""docs/deploy/gpus.md: its settings and its discovery script, with an nvidia-smi that only says there were two GPUs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pages
import pytest
from gateway import Gateway

JOB = Path(__file__).with_name("gpu_job.py")
NVIDIA_SMI = """#!/bin/sh
test "$*" = "--query-gpu=index --format=csv,noheader" || exit 9
printf '0\\n1\\n'
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The page's script, which finds its nvidia-smi in the folder beside it."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for place, code in (
        (tools / "nvidia-smi", NVIDIA_SMI),
        (tmp_path / "gpus.sh", pages.block("gpus", "bash", under="The discovery script")),
    ):
        place.write_text(code)
        place.chmod(0o755)
    return tmp_path / "gpus.sh"


def test_the_script_prints_what_spark_reads(script: Path) -> None:
    path = f"{script.parent / 'bin'}:/usr/bin:/bin"
    done = subprocess.run([script], env={"PATH": path}, capture_output=True, text=True, timeout=300, check=True)
    assert json.loads(done.stdout) == {"name": "gpu", "addresses": ["0", "1"]}


def test_the_script_fails_where_there_is_no_gpu(script: Path) -> None:
    (script.parent / "bin" / "nvidia-smi").write_text("#!/bin/sh\necho 'no devices were found' >&2\nexit 6\n")
    path = f"{script.parent / 'bin'}:/usr/bin:/bin"
    done = subprocess.run([script], env={"PATH": path}, capture_output=True, timeout=300, check=False)
    assert done.returncode == 6
    assert done.stdout == b""


@pytest.mark.jvm
@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.timeout(900)
def test_each_worker_sees_its_own_gpu(script: Path, tmp_path: Path) -> None:
    """One executor with four cores and two GPUs: two workers, each with one."""
    gateway = Gateway(tmp_path / "home")
    settings = pages.filled(pages.block("gpus", "properties", under="The settings"), SCRIPT=script)
    gateway.configure(f"{settings}\nspark.ui.enabled false\nspark.master local-cluster[1,4,1024]\n")
    path = f"{script.parent / 'bin'}:{gateway.path}"
    told = gateway.run(f"spark-submit {JOB} {tmp_path}", PATH=path, PYSPARK_PYTHON=gateway.python)
    assert told.line("workers") == "2", "GPUs are fewer than cores"
    assert told.line("expected") == "2", "there is nobody more to wait for"
    assert told.line("trials") == "3"
    pairs = {tuple(line.split()) for line in (tmp_path / "seen").read_text().splitlines()}
    seen = [gpus for process, gpus in pairs if process != told.line("driver")]
    assert sorted(seen) == ["0", "1"], "one process for each GPU, and none that sees both"
