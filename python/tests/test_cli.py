"""The command line: what it prints, what it draws, and one clear line for what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from observing import each_event

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.cli import main
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, Settings, UnitFinished
from cerebro_spark.result.listing import listed
from cerebro_spark.search import FixedSearch
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.types import Objective, Partition

OBJECTIVE = Objective("val_loss", "min")
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


@pytest.mark.slow
def test_simulate_shows_what_training_together_gains(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("simulate", "--trials", "16", "--workers", "2", "--epochs", "2")
    alone = json.loads(run(capsys, *options, "--json")[1])
    fused = json.loads(run(capsys, *options, "--fuse", "8", "--fuse-gain", "2=2", "--fuse-gain", "8=4", "--json")[1])
    assert alone["makespan"][0] == pytest.approx(4 * fused["makespan"][0])
    assert "if every trial trains by itself" in run(capsys, *options, "--fuse", "8")[1]


def test_simulate_shows_what_workers_of_one_trial_gain(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("simulate", "--trials", "2", "--workers", "8", "--epochs", "2", "--known-costs")
    groups = ("--workers-per-trial", "auto", "--efficiency", "1,0.9,0.8,0.8")
    alone = json.loads(run(capsys, *options, "--json")[1])
    together = json.loads(run(capsys, *options, *groups, "--json")[1])
    assert alone["makespan"] == [16.0]
    assert together["makespan"] == [pytest.approx(16 / (4 * 0.8))], "four workers for each of the two"
    code, out, _ = run(capsys, *options, *groups)
    assert code == 0
    assert "groups of up to 8 workers" in out
    assert "lower bound   16.00 s if every unit has one worker" in out
    assert "groups" not in run(capsys, *options)[1]


def test_simulate_takes_groups_of_one_size(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("simulate", "--trials", "2", "--workers", "8", "--epochs", "2", "--workers-per-trial", "2")
    body = json.loads(run(capsys, *options, "--efficiency", "1,0.5", "--json")[1])
    assert body["makespan"] == [16.0], "half as efficient: pairs take as long as single workers"
    assert "groups of 2 workers" in run(capsys, *options)[1]


def test_a_chart_of_groups_is_a_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "groups.png"
    options = ("simulate", "--trials", "2", "--workers", "4", "--epochs", "1", "--workers-per-trial", "auto")
    assert run(capsys, *options, "--gantt", str(target))[0] == 0
    assert target.read_bytes().startswith(b"\x89PNG")


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
        (["--fuse", "0"], "`fuse` is 0, but must be at least 1"),
        (["--fuse-gain", "much"], "`fuse-gain` is 'much', but must be WIDTH=X"),
        (["--fuse-gain", "8=-1"], "`gain` has 8: -1.0"),
        (
            ["--workers-per-trial", "0"],
            "`workers-per-trial` is '0', but must be auto or a number of at least 1: 4 says",
        ),
        (["--workers-per-trial", "all"], "`workers-per-trial` is 'all', but must be auto or a number"),
        (["--workers-per-trial", "-2"], "`workers-per-trial` is '-2', but must be auto or a number"),
        (
            ["--workers-per-trial", "9"],
            "`workers-per-trial` is 9, but there are only 8 workers: use 8 at most, or auto",
        ),
        (["--workers-per-trial", "auto", "--workers", "0"], "`workers` is 0, but must be at least 1"),
        (
            ["--workers-per-trial", "auto", "--efficiency", "much"],
            "`efficiency` is 'much', but must be numbers above 0",
        ),
        (
            ["--workers-per-trial", "auto", "--efficiency", "1,0"],
            "1,0.9,0.8 says that two workers together do 1.8 times",
        ),
        (["--workers-per-trial", "auto", "--efficiency", "1,nan"], "`efficiency` is '1,nan'"),
        (["--workers-per-trial", "2", "--efficiency", "0.9,0.8"], "but must begin with 1, that of a single worker"),
        (["--efficiency", "1,0.9"], "every unit has one worker: add --workers-per-trial auto, or a number"),
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


# -- runs and show


def made_runs(folder: Path) -> LocalStore:
    """A finished run with a name of its own, one that was stopped, and one whose log somebody spoilt."""
    store = LocalStore(folder)
    make_run(store, "mine")
    make_run(store, "20261115-101112-0a1b2c", stop_after=3)
    store.write(paths.log_segment("spoilt", 0), b"this is no log")
    return store


def make_run(store: LocalStore, run: str, stop_after: int | None = None) -> None:
    partitions = tuple(Partition(f"train-{i}", "train", rows=10) for i in range(2))
    settings = Settings((*partitions, Partition("validation-0", "validation", rows=10)), 1, objective=OBJECTIVE)
    backend = SimulatedBackend([SimulatedWorker("w0")], World(cost=lambda params: params["lr"]))
    search = FixedSearch([{"lr": 1.0}, {"lr": 2.0}], epochs=2)
    seen: list[Event] = []

    @each_event
    def stop(event: Event) -> None:
        seen.append(event)
        if sum(isinstance(event, UnitFinished) for event in seen) == stop_after:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        Engine(search, settings, backend, EventLog(store, run), run, [stop]).run()


def test_runs_lists_the_runs_of_a_store(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made_runs(tmp_path)
    code, out, _ = run(capsys, "runs", str(tmp_path))
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split() == ["run", "when", "(UTC)", "trials", "best", "state"]
    assert re.fullmatch(r"20261115-101112-0a1b2c  2026-11-15 10:11 +2 +none +not finished", lines[1])
    assert re.fullmatch(r"mine +20\d\d-\d\d-\d\d \d\d:\d\d +2 +val_loss \S+ \(t\d\) +finished", lines[2])
    assert re.match(r"spoilt +20\d\d-.* \? +\? +unreadable: ", lines[3])
    assert len(lines) == 4


FOREIGN = {
    "an old field": b'{"n":%d,"event":"WorkerLost","at":1.0,"worker":"w0","colour":"red"}\n',
    "a lacking field": b'{"n":%d,"event":"WorkerLost","at":1.0}\n',
    "another type": b'{"n":%d,"event":"WorkerLost","at":"soon","worker":"w0"}\n',
    "another event": b'{"n":%d,"event":"Eclipse","at":1.0}\n',
    "no event": b'{"n":%d,"hello":"world"}\n',
}


@pytest.mark.parametrize("line", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_line_in_one_log_hides_no_other_run(
    line: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = LocalStore(tmp_path)
    make_run(store, "aaa")
    make_run(store, "bbb", stop_after=3)
    make_run(store, "ccc")
    end = len(list(EventLog(store, "bbb").read()))
    store.write(paths.log_segment("bbb", end), line % end)
    code, out, err = run(capsys, "runs", str(tmp_path))
    assert (code, err) == (0, "")
    aaa, bbb, ccc = out.splitlines()[1:]
    assert aaa.endswith("finished")
    assert ccc.endswith("finished")
    assert re.match(r"bbb .* \? +\? +unreadable: \S", bbb)
    code, out, err = run(capsys, "show", str(tmp_path), "bbb")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "log" in err


def test_whatever_else_is_wrong_with_a_run_hides_no_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    make_run(store, "mine")
    store.write("runs/no id/log/000000000000.jsonl", b"{}")
    store.write(paths.log_segment("utf16", 0), '{"n":0}'.encode("utf-16"))
    store.write("runs/notes/log/notes.txt", b"hello")
    (tmp_path / "runs/mine/log/000000000000.jsonl").rename(tmp_path / "runs/mine/log/gone.part")
    make_run(store, "zzz")
    code, out, _ = run(capsys, "runs", str(tmp_path))
    assert code == 0
    states = {line.split("  ")[0]: line for line in out.splitlines()[1:]}
    assert sorted(states) == ["mine", "no id", "notes", "utf16", "zzz"]
    assert states.pop("zzz").endswith(" finished")
    assert all("unreadable: " in line for line in states.values())


class Closed(LocalStore):
    """One run belongs to somebody else, who keeps it to himself."""

    def read(self, name: str) -> bytes:
        if name.startswith(paths.run_folder("theirs")):
            with self._errors(name):
                raise PermissionError(13, "Permission denied")
        return super().read(name)


def test_a_run_that_one_may_not_read_hides_no_other(tmp_path: Path) -> None:
    for name in ("mine", "theirs", "yours"):
        make_run(LocalStore(tmp_path), name)
    states = [line.state for line in listed(Closed(tmp_path))]
    assert states[0] == states[2] == "finished"
    assert states[1].startswith("unreadable: no permission")


def test_runs_of_an_empty_store(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, "runs", str(tmp_path)) == (0, f"no runs in {LocalStore(tmp_path).url} yet\n", "")


def test_show_says_what_each_worker_of_a_run_that_is_not_over_does(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    make_run(LocalStore(tmp_path), "cut", stop_after=3)
    make_run(LocalStore(tmp_path), "whole")
    code, out, _ = run(capsys, "show", str(tmp_path), "cut")
    assert code == 0
    clock = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
    head, worker = out.splitlines()[-2:]
    assert re.fullmatch(rf"Workers when the log was last written at {clock}:", head)
    assert re.fullmatch(rf"  w0 on w0: t\d/\d/\S+( \(eval\))?, since {clock}", worker)
    assert "Workers" not in run(capsys, "show", str(tmp_path), "whole")[1]


def test_show_prints_the_trials_and_draws_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = made_runs(tmp_path / "store")
    picture = tmp_path / "run.png"
    code, out, _ = run(capsys, "show", str(store.root), "mine", "--plot", str(picture))
    assert code == 0
    assert "Run mine: 2 trials (2 finished)" in out
    assert "param_lr" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "STORE", "yours"], "has no run 'yours': it has ['20261115-101112-0a1b2c', 'mine', 'spoilt']"),
        (["show", "STORE", "../x"], "the run id is '../x', but must be letters"),
        (["show", "STORE", "mine", "--plot", "/nowhere/at/all.png"], "cannot be written"),
        (["show", "STORE", "mine", "--plot", "run.txt"], "does not name a picture"),
        (["runs", "s4://me/x"], "'s4://me/x' cannot be opened"),
        (["runs", "/etc/hostname"], "is a file, but a store is a folder"),
    ],
)
def test_what_runs_and_show_refuse(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made_runs(tmp_path)
    code, out, err = run(capsys, *(str(tmp_path) if word == "STORE" else word for word in arguments))
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert message in err


def test_the_command_is_installed() -> None:
    command = Path(sys.executable).with_name("cerebro-spark")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.startswith("cerebro-spark 0.")
