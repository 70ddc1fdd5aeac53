"""The commands for live runs: what they print, what they send, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fake_driver import answered, beginning, ending, epoch_of_t0
from run_elsewhere import Elsewhere

from cerebro_spark import mailbox
from cerebro_spark.cli import main
from cerebro_spark.commands import Command
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def driver(tmp_path: Path) -> Elsewhere:
    made = Elsewhere(tmp_path)
    made.beat()
    made.says(beginning())
    return made


def answering(driver: Elsewhere, monkeypatch: pytest.MonkeyPatch, done: bool, reason: str) -> list[Command]:
    """Have commands answered as soon as they are sent."""
    heard: list[Command] = []
    sent = mailbox.send

    def send(store: Store, run: str, command: Command) -> str:
        name = sent(store, run, command)
        heard.append(command)
        driver.says(answered(command, done, reason))
        return name

    monkeypatch.setattr("cerebro_spark.live.attached.mailbox.send", send)
    return heard


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["stop-trial", "t1"], {"verb": "stop_trial", "trial": "t1"}),
        (["resume-trial", "t1", "--epochs", "3"], {"verb": "resume_trial", "trial": "t1", "epochs": 3}),
        (["resume-trial", "t1"], {"verb": "resume_trial", "trial": "t1", "epochs": None}),
        (
            ["clone", "t1", "--param", "lr=0.01", "--param", "net=[64, 32]", "--param", "kind=cnn", "--cold"],
            {"verb": "clone", "params": {"lr": 0.01, "net": [64, 32], "kind": "cnn"}, "warm_start": False},
        ),
        (["clone", "t1", "--epochs", "2"], {"verb": "clone", "params": {}, "warm_start": True, "epochs": 2}),
        (["pause"], {"verb": "pause"}),
        (["unpause"], {"verb": "unpause"}),
        (["end"], {"verb": "end"}),
        (["kill"], {"verb": "kill"}),
        (["add-workers", "2"], {"verb": "add_workers", "workers": 2}),
        (["remove-worker", "w0"], {"verb": "remove_worker", "worker": "w0"}),
    ],
)
def test_a_command_is_sent_and_its_answer_printed(
    words: list[str],
    expected: dict[str, Any],
    driver: Elsewhere,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    heard = answering(driver, monkeypatch, True, "as you say")
    name, *rest = words
    code, out, err = run(capsys, name, str(driver.store.root), "r1", *rest)
    assert (code, err) == (0, "")
    [command] = heard
    assert {key: getattr(command, key) for key in expected} == expected
    about = command.trial or command.worker or command.workers
    assert out == f"{command.verb}{f' {about}' if about else ''}: done (as you say)\n"


def test_a_refused_command_has_an_exit_code_of_its_own(
    driver: Elsewhere, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering(driver, monkeypatch, False, "it is finished")
    code, out, err = run(capsys, "stop-trial", str(driver.store.root), "r1", "t0")
    assert (code, out) == (1, "")
    assert err == "cerebro-spark: stop_trial t0 was refused: it is finished\n"


def test_a_command_without_an_answer_has_one_too(driver: Elsewhere, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "pause", str(driver.store.root), "r1", "--timeout", "0.01")
    assert code == 3
    assert "pause was not answered after 0.01 s by process 7 on mars" in err


def test_a_run_that_nobody_drives_refuses_or_keeps_the_command(
    driver: Elsewhere, capsys: pytest.CaptureFixture[str]
) -> None:
    driver.sign_off()
    code, _, err = run(capsys, "end", str(driver.store.root), "r1")
    assert code == 1
    assert "nobody drives it now" in err
    code, out, _ = run(capsys, "end", str(driver.store.root), "r1", "--leave")
    assert (code, out) == (0, "end: waits (for the next driver of the run)\n")
    [name] = driver.store.list(paths.mailbox("r1"))
    assert json.loads(driver.store.read(name))["verb"] == "end"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["stop-trial", "r1", "t9"], "run r1 has no trial 't9'"),
        (["clone", "r1", "t0", "--param", "lr"], "`param` is 'lr', but must be NAME=VALUE"),
        (["resume-trial", "r1", "t0", "--epochs", "0"], "`epochs` is 0"),
        (["remove-worker", "r1", "w9"], "run r1 has no worker 'w9'"),
        (["add-workers", "r1", "0"], "`workers` is 0"),
        (["pause", "r2"], "has no run 'r2'"),
        (["watch", "r2"], "has no run 'r2'"),
    ],
)
def test_mistakes_get_one_line(
    words: list[str], message: str, driver: Elsewhere, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, words[0], str(driver.store.root), *words[1:])
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_watch_shows_a_run_that_is_over(driver: Elsewhere, capsys: pytest.CaptureFixture[str]) -> None:
    driver.says(epoch_of_t0(), ending())
    driver.sign_off()
    code, out, err = run(capsys, "watch", str(driver.store.root), "r1")
    assert (code, err) == (0, "")
    assert "done: 2 running, 0 done | 1/4 epochs" in out


def test_watch_tells_of_a_run_that_nobody_drives(driver: Elsewhere, capsys: pytest.CaptureFixture[str]) -> None:
    driver.sign_off()
    code, out, err = run(capsys, "watch", str(driver.store.root), "r1")
    assert code == 1
    assert "stopped: 2 running" in out
    assert "cs.resume continues it" in err
