"""The command line: what it prints, what it draws, and one clear line for what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cerebro_spark.cli import main

KEYS = {"makespan", "lower_bound", "ratio", "utilisation", "units_rerun", "bytes_hopped"}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_simulate_prints_what_a_person_wants_to_know(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "simulate", "--trials", "4", "--workers", "2", "--epochs", "2")
    assert code == 0
    for word in ("makespan", "lower bound", "ratio", "utilisation", "units lost", "units re-run", "bytes hopped"):
        assert word in out


def test_simulate_prints_one_json_object_with_a_value_a_seed(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--trials", "6", "--workers", "3", "--heterogeneous", "--jitter", "0.1", "--known-costs", "--json"]
    code, out, _ = run(capsys, "simulate", *options, "--seeds", "3", "--failure-rate", "0.02", "--replicas", "2")
    body = json.loads(out)
    assert code == 0
    assert set(body) == KEYS
    assert all(len(values) == 3 for values in body.values())
    assert all(ratio >= 1 - 1e-9 for ratio in body["ratio"])


def test_the_same_seed_gives_the_same_run(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("simulate", "--jitter", "0.1", "--failure-rate", "0.05", "--policy", "random", "--json")
    assert run(capsys, *options) == run(capsys, *options)


def test_gantt_is_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "chart.png"
    code, _, _ = run(capsys, "simulate", "--trials", "4", "--failure-rate", "0.1", "--gantt", str(target))
    assert code == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert target.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0"], "`workers` is 0, but must be at least 1"),
        (["--trials", "0"], "`trials` is 0"),
        (["--epochs", "-1"], "`epochs` is -1"),
        (["--partitions", "0"], "`partitions` is 0"),
        (["--partitions", "3", "--workers", "4"], "at least one partition for each"),
        (["--replicas", "0"], "`replicas` is 0"),
        (["--replicas", "9", "--workers", "8"], "only 8 workers"),
        (["--cost", "-2"], "`cost` is -2.0, but a unit must cost more than 0 seconds, and end"),
        (["--policy", "best"], "policy 'best' is unknown: use one of hopper"),
        (["--jitter", "1.5"], "`jitter` is 1.5"),
        (["--failure-rate", "-0.1"], "`failure_rate` is -0.1"),
        (["--bandwidth-mb", "0"], "`bandwidth-mb` is 0.0"),
        (["--seeds", "0"], "`seeds` is 0"),
        (["--model-mb", "nan"], "`model-mb` is nan"),
        (["--model-mb", "-1"], "`model-mb` is -1.0"),
        (["--cost", "inf"], "`cost` is inf"),
        (["--gantt", "/nowhere/at/all.png"], "cannot be written"),
        (["--gantt", "chart.txt"], "does not name a picture"),
    ],
)
def test_bad_input_gets_one_clear_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    code, out, err = run(capsys, "simulate", *arguments)
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


@pytest.mark.slow
def test_demo_draws_pictures(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "demo", "--out", str(tmp_path / "pictures"))
    assert code == 0
    assert "hopper" in out
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 5


def test_demo_says_where_it_cannot_write(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "demo", "--out", "/proc/nowhere")
    assert code == 2
    assert "/proc/nowhere" in err
    assert err.count("\n") == 1


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("cerebro-spark")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("cerebro-spark 0.")
