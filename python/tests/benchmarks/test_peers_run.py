"""The comparison as a command, with the limit and this system on a fiftieth of the rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def command(*more: str) -> subprocess.CompletedProcess[str]:
    said = [sys.executable, "-m", "benchmarks.peers", "--work", "reference", *more]
    return subprocess.run(said, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
@pytest.mark.rare
def test_the_limit_and_this_system_do_the_same_work(tmp_path: Path) -> None:
    done = command(
        "--only", "limit-torch", "local-torch", "--scale", "0.02", "--json", str(tmp_path / "found.json"),
        "--picture", str(tmp_path / "images"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| cerebro_spark, PyTorch, LocalBackend |" in done.stdout
    assert (tmp_path / "images" / "benchmark-reference.svg").exists()
    found = json.loads((tmp_path / "found.json").read_text())["works"]["reference"]
    (limit,), (ours,) = found["limit-torch"]["rounds"], found["local-torch"]["rounds"]
    assert found["limit-torch"]["ratio"] == 1.0
    assert found["local-torch"]["ratio"] == pytest.approx(ours["wall_s"] / limit["wall_s"])
    assert set(ours["losses"]) == set(limit["losses"])
    for trial, loss in limit["losses"].items():
        assert ours["losses"][trial] == pytest.approx(loss, abs=0.15), trial
    assert limit["workers"] == ours["workers"] == 2
    assert 0 < ours["hops"] <= 8 * 3, "four units a trial: three moves at most"
    assert limit["data_bytes"] == 2_000 * 65 * 4
    assert ours["data_bytes"] == limit["data_bytes"] // 2
    assert ours["bytes_moved"] > limit["bytes_moved"] == 0
    assert ours["peak_bytes"] > 50_000_000


@pytest.mark.slow
def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    done = command("--only", "nobody")
    assert done.returncode == 2
    assert "nobody is called that; there are averaging, ddp" in done.stderr
