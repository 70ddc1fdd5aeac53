"""The handle of a run of this process: it returns at once, shows the run, takes commands, and gives what it came to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_driver import FakeDriver, beginning, refusing

from cerebro_spark.commands import VERBS, Command
from cerebro_spark.engine import Observer
from cerebro_spark.errors import BackendError, CommandRefused, ConfigurationError, NoAnswerYet
from cerebro_spark.live import run as live_runs
from cerebro_spark.live.run import Run
from cerebro_spark.relay import Relay
from cerebro_spark.store.opening import open_store

STORE = open_store("memory://handles")
RESULT: Any = "the result"


@pytest.fixture(autouse=True)
def _nothing_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that tests these runs does not wait for them."""
    monkeypatch.setattr("cerebro_spark.live.run._wait_at_exit_for", lambda run: None)


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    made = FakeDriver()
    yield made
    made.stop()


def started(driver: Any) -> Run:
    run = Run(STORE, "r1", driver).start()
    # The first command is answered after the run has begun.
    if isinstance(driver, FakeDriver):
        run._live.wait_for_answer(Command("pause"), lambda: bool(run._live.snapshot().epochs), 60)
    return run


def test_a_run_is_shown_while_it_goes_on(driver: FakeDriver) -> None:
    run = started(driver)
    assert (run.id, run.status, run.error, run.result) == ("r1", "running", None, None)
    assert run.trials[["trial", "status", "epochs"]].values.tolist() == [["t0", "running", 1], ["t1", "running", 0]]
    assert run.history.values.tolist() == [["t0", 1, 2.0, 0.5]]
    assert run.best is not None
    assert (run.best.id, run.best.metrics, run.best.epoch) == ("t0", {"loss": 0.5}, 1)
    assert run.workers.values.tolist() == [["w0", "mars", True, "idle", 2.0, 0]]
    assert (run.progress.units, run.progress.all_units, run.progress.workers) == (1, 4, 1)
    assert repr(run) == "Run r1 (running): 2 running, 0 done | 1/4 epochs | 1 worker | best loss 0.5 (t0)"
    shown = run._repr_html_()
    assert "<table" in shown
    assert "Run r1 (running)" in shown


def test_before_there_is_a_best_trial_there_is_none() -> None:
    run = Run(STORE, "r1", FakeDriver())
    assert (run.best, run.status, len(run.trials), len(run.workers)) == (None, "starting", 0, 0)
    assert repr(run) == "Run r1 (starting): 0 running, 0 done | 0/0 epochs | 0 workers"


def test_wait_gives_the_result(driver: FakeDriver) -> None:
    run = started(driver)
    driver.stop()
    assert run.wait(60) == RESULT
    assert (run.status, run.result, run.error) == ("done", RESULT, None)
    assert run.wait() == RESULT


def test_wait_in_vain_says_that_the_run_goes_on(driver: FakeDriver) -> None:
    run = started(driver)
    with pytest.raises(NoAnswerYet, match=r"run r1 is not done after 0.01 s: it is running") as caught:
        run.wait(0.01)
    assert isinstance(caught.value, TimeoutError)


def test_what_ended_the_run_is_raised_where_it_is_waited_for() -> None:
    driver = FakeDriver(finish=BackendError("all workers are gone"))
    run = started(driver)
    driver.stop()
    with pytest.raises(BackendError, match="all workers are gone"):
        run.wait(60)
    assert run.status == "failed"
    assert isinstance(run.error, BackendError)
    assert run.result is None
    assert repr(run).endswith(" | best loss 0.5 (t0) | BackendError: all workers are gone")
    assert "all workers are gone" in run._repr_html_()


def test_a_run_can_be_driven_in_the_callers_thread() -> None:
    driver = FakeDriver()
    driver.stop()
    run = Run(STORE, "r1", driver)
    assert run.drive() == RESULT
    assert run.wait() == RESULT
    failing = FakeDriver(finish=BackendError("gone"))
    failing.stop()
    with pytest.raises(BackendError):
        Run(STORE, "r1", failing).drive()


# -- commands


def test_every_command_is_sent_as_it_was_said_and_answered(driver: FakeDriver) -> None:
    run = started(driver)
    answers = [
        run.stop_trial("t0"),
        run.resume_trial("t0", epochs=3),
        run.clone("t1", params={"lr": 0.2}, warm_start=False, epochs=1),
        run.add_workers(2),
        run.remove_worker("w0"),
        run.pause(),
        run.unpause(),
        run.end(),
        run.kill(),
    ]
    assert [answer.command for answer in answers] == driver.heard
    assert [(c.verb, c.trial, c.epochs, dict(c.params), c.warm_start, c.workers, c.worker) for c in driver.heard] == [
        ("stop_trial", "t0", None, {}, True, 0, ""),
        ("resume_trial", "t0", 3, {}, True, 0, ""),
        ("clone", "t1", 1, {"lr": 0.2}, False, 0, ""),
        ("add_workers", "", None, {}, True, 2, ""),
        ("remove_worker", "", None, {}, True, 0, "w0"),
        *((verb, "", None, {}, True, 0, "") for verb in ("pause", "unpause", "end", "kill")),
    ]
    assert {c.verb for c in driver.heard} == set(VERBS)
    assert all("@" in c.by for c in driver.heard)
    assert all(answer.done and answer.said == "as you say" for answer in answers)
    assert answers[2].trial == "t9"


def test_the_status_is_what_the_run_was_told(driver: FakeDriver) -> None:
    run = started(driver)
    seen = []
    for tell in (run.pause, run.unpause, run.end):
        tell()
        seen.append(run.status)
    assert seen == ["paused", "running", "ending"]


def test_a_run_that_was_killed_is_stopped() -> None:
    driver = FakeDriver(finish=BackendError("a person killed it"))
    run = started(driver)
    run.kill()
    driver.stop()
    with pytest.raises(BackendError):
        run.wait(60)
    assert run.status == "stopped"


def test_a_refusal_says_why() -> None:
    driver = FakeDriver(refusing)
    run = started(driver)
    with pytest.raises(CommandRefused, match="stop_trial t0 was refused: it is finished: clone it instead"):
        run.stop_trial("t0")
    driver.stop()
    run.wait(60)


@pytest.mark.parametrize(
    ("tell", "message"),
    [
        (lambda run: run.stop_trial("t7"), r"run r1 has no trial 't7': it has \['t0', 't1'\]"),
        (lambda run: run.resume_trial("t0", epochs=0), "`epochs` is 0, but must be at least 1"),
        (lambda run: run.resume_trial("t0", epochs=1.5), "`epochs` is 1.5, but must be a whole number"),
        (lambda run: run.clone("t0", params=["lr"]), "`params` is .'lr'., but must be a dict"),
        (lambda run: run.clone("t0", params={"lr": object()}), "holds a object, which cannot be logged"),
        (lambda run: run.clone("t0", params={3: 1}), "keys are strings"),
        (lambda run: run.clone("t0", warm_start="yes"), "`warm_start` is 'yes'"),
        (lambda run: run.add_workers(0), "`workers` is 0, but must be at least 1"),
        (lambda run: run.add_workers(True), "`workers` is True, but must be a whole number"),
        (lambda run: run.remove_worker("w9"), r"run r1 has no worker 'w9': it has \['w0'\]"),
        (lambda run: run.pause(timeout=0), "`timeout` is 0, but must be a number of seconds above 0"),
    ],
)
def test_what_cannot_be_right_is_refused_before_it_is_sent(tell: Any, message: str, driver: FakeDriver) -> None:
    run = started(driver)
    with pytest.raises(ConfigurationError, match=message):
        tell(run)
    assert driver.heard == []


def test_a_run_that_is_over_hears_nothing() -> None:
    driver = FakeDriver(finish=BackendError("gone"))
    run = started(driver)
    driver.stop()
    with pytest.raises(BackendError):
        run.wait(60)
    with pytest.raises(CommandRefused, match=r"pause was not heard: run r1 is failed: continue it with cs\.resume"):
        run.pause()


def test_a_run_that_never_began_is_not_to_be_resumed() -> None:
    def failing(relay: Relay, observer: Observer) -> Any:
        raise BackendError("no such cluster")

    run = Run(STORE, "r1", failing).start()
    with pytest.raises(BackendError):
        run.wait(60)
    with pytest.raises(CommandRefused) as caught:
        run.pause()
    assert str(caught.value) == "pause was not heard: run r1 is failed"


def test_a_program_does_not_keep_runs_that_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    kept = live_runs._waited_for
    driver = FakeDriver()
    run = Run(STORE, "r1", driver).start()
    assert run in kept
    driver.stop()
    run.wait(60)
    assert run._thread is not None
    run._thread.join(60)
    assert run not in kept
    failing = FakeDriver(finish=BackendError("gone"))
    failing.stop()
    broken = Run(STORE, "r1", failing).start()
    assert broken._thread is not None
    broken._thread.join(60)
    assert broken in kept, "nobody knows what happened to it"
    assert broken.error is not None
    assert broken not in kept


def test_a_command_that_the_end_of_the_run_outran_is_refused() -> None:
    heard = threading.Event()

    def deaf(relay: Relay, observer: Observer) -> Any:
        with relay.connected(lambda command: heard.set()):
            observer(beginning())
            assert heard.wait(60)
        return "the result"

    run = Run(STORE, "r1", deaf).start()
    with pytest.raises(CommandRefused, match="end was not heard: run r1 is done"):
        run.end()


def test_a_command_without_an_answer_is_not_withdrawn() -> None:
    free = threading.Event()

    def slow(relay: Relay, observer: Observer) -> Any:
        assert free.wait(60)
        return "the result"

    run = Run(STORE, "r1", slow).start()
    with pytest.raises(NoAnswerYet, match=r"pause was not answered after 0.01 s: run r1 is starting.*may still be"):
        run.pause(timeout=0.01)
    free.set()
    run.wait(60)


def test_nobody_waits_for_a_run_in_the_thread_that_drives_it() -> None:
    said: list[str] = []
    runs: list[Run] = []

    def tracked(relay: Relay, observer: Observer) -> Any:
        for call in (runs[0].wait, runs[0].pause):
            with pytest.raises(ConfigurationError) as caught:
                call()
            said.append(str(caught.value))
        return "the result"

    runs.append(Run(STORE, "r1", tracked))
    runs[0].start().wait(60)
    assert len(said) == 2
    assert all("would wait for itself" in each for each in said)


# -- Ctrl-C


class InterruptedWait(threading.Event):
    """An event whose first wait without a limit is interrupted, as by Ctrl-C."""

    interrupted = False

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None and not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt
        return super().wait(60)


def test_ctrl_c_stops_a_run_that_has_begun_by_a_command_that_wakes_it() -> None:
    driver = FakeDriver()
    run = Run(STORE, "r1", driver)
    run._ended = InterruptedWait()
    run.start()
    run._live.wait_for_answer(Command("pause"), lambda: bool(run._live.snapshot().epochs), 60)
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    assert [command.verb for command in driver.heard] == ["kill"]
    assert driver.heard[0].by.startswith("Ctrl-C of ")
    assert run.status == "stopped"
    assert isinstance(run.error, KeyboardInterrupt)


def test_ctrl_c_tells_how_the_run_is_resumed() -> None:
    def noted(relay: Relay, observer: Observer) -> Any:
        try:
            return driver(relay, observer)
        except KeyboardInterrupt as error:
            error.add_note("run r1 can be resumed: cs.resume(...)")
            raise

    driver = FakeDriver()
    run = Run(STORE, "r1", noted)
    run._ended = InterruptedWait()
    run.start()
    run._live.wait_for_answer(Command("pause"), lambda: bool(run._live.snapshot().epochs), 60)
    with pytest.raises(KeyboardInterrupt) as caught:
        run.wait()
    assert caught.value.__notes__ == ["run r1 can be resumed: cs.resume(...)"]


@pytest.mark.parametrize("where", ["_keep_outcome", "_end"])
def test_an_interrupt_at_an_awkward_moment_lets_nobody_wait_for_ever(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is raised in place of the first call of a method, as if it came just then."""
    method, came = getattr(Run, where), threading.Event()

    def interrupted(run: Run) -> Any:
        if not came.is_set():
            came.set()
            raise KeyboardInterrupt
        return method(run)

    monkeypatch.setattr(Run, where, interrupted)
    driver = FakeDriver()
    driver.stop()
    run = Run(STORE, "r1", driver).start()
    if where == "_end":
        assert run.wait(60) == RESULT
    else:
        with pytest.raises(KeyboardInterrupt):
            run.wait(60)
    assert run.status == ("done" if where == "_end" else "stopped")


def test_ctrl_c_before_the_run_has_begun_is_raised_where_it_is_started() -> None:
    begun = threading.Event()

    def starting(relay: Relay, observer: Observer) -> Any:
        begun.set()
        while True:  # Python code, as most of what a backend does while it starts
            begun.wait(0.001)

    run = Run(STORE, "r1", starting)
    run._ended = InterruptedWait()
    run.start()
    assert begun.wait(60)
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    assert (run.status, type(run.error)) == ("stopped", KeyboardInterrupt)
