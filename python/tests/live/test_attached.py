"""A run seen from another process: its log is followed, commands go through the mailbox, and who drives it is known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_driver import answered, beginning, ending, epoch_of_t0
from run_elsewhere import Elsewhere

from cerebro_spark.commands import Command
from cerebro_spark.errors import CerebroError, CommandRefused, ConfigurationError, NoAnswerYet, NotFoundInStore
from cerebro_spark.eventlog import EventLog
from cerebro_spark.following import LogFollower
from cerebro_spark.forecast.files import ForecastFolder
from cerebro_spark.forecast.values import Forecast
from cerebro_spark.live.attached import AttachedRun
from cerebro_spark.mailbox import MailboxPoller
from cerebro_spark.outcomes import view_of
from cerebro_spark.store import paths
from cerebro_spark.turns import Turn, events_of

RESULT: Any = "the result of r1"


@pytest.fixture
def driver(tmp_path: Path) -> Elsewhere:
    made = Elsewhere(tmp_path)
    made.beat()
    made.says(beginning())
    return made


def letters(driver: Elsewhere) -> list[str]:
    return driver.store.list(paths.mailbox("r1"))


# -- what is seen


def test_a_run_is_seen_as_it_goes_on(driver: Elsewhere) -> None:
    run = driver.attach()
    assert (run.id, run.status, run.error, run.result) == ("r1", "running", None, None)
    assert run.driver == "process 7 on mars, who holds it since noon"
    assert (run.best, len(run.history)) == (None, 0)
    driver.says(epoch_of_t0())
    assert run.best is not None
    assert run.best.id == "t0"
    assert run.history["loss"].tolist() == [0.5]
    assert repr(run) == "Run r1 (running): 2 running, 0 done | 1/4 epochs | 1 worker | best loss 0.5 (t0)"
    driver.says(ending())
    driver.sign_off()
    assert (run.status, run.result) == ("done", RESULT)


def test_a_run_that_has_not_begun_is_starting_while_somebody_drives_it(tmp_path: Path) -> None:
    driver = Elsewhere(tmp_path)
    driver.beat()
    assert driver.attach().status == "starting"


def test_a_run_that_is_not_there_is_named_with_those_that_are(driver: Elsewhere) -> None:
    with pytest.raises(NotFoundInStore, match=r"has no run 'r2': it has \['r1'\]"):
        AttachedRun(driver.store, "r2")
    with pytest.raises(ConfigurationError, match=r"the run id is '\.\./r1'"):
        AttachedRun(driver.store, "../r1")


def test_a_driver_that_signed_off_drives_no_more(driver: Elsewhere) -> None:
    run = driver.attach()
    driver.sign_off()
    assert (run.status, run.driver) == ("stopped", "")


def test_a_driver_that_was_killed_is_missed_after_a_while(driver: Elsewhere) -> None:
    run = driver.attach()
    driver.now = 29.0
    assert run.status == "running"
    driver.beat()
    assert run.status == "running"
    driver.now = 58.0
    assert run.status == "running", "half a minute counts from the last beat"
    driver.now = 59.5
    assert (run.status, run.driver) == ("stopped", "")


def test_a_log_of_before_there_were_outcomes_is_seen_too(tmp_path: Path) -> None:
    driver = Elsewhere(tmp_path)
    driver.says(Turn(events_of([beginning()])))
    run = driver.attach()
    assert list(run.trials["trial"]) == ["t0", "t1"]
    assert run.status == "stopped"


def test_no_turn_of_a_mixed_log_is_taken_in_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning has no outcomes, its tail has, and it comes in parts."""
    monkeypatch.setattr(LogFollower.read, "__defaults__", (1,))
    driver = Elsewhere(tmp_path)
    driver.says(Turn(events_of([beginning(epochs=1)])))
    driver.says(answered(Command("pause", id="c1")), answered(Command("unpause", id="c2")))
    run = driver.attach()
    log = EventLog(driver.store, "r1")
    assert run.snapshot().events == len(list(log.read()))
    driver.says(answered(Command("pause", id="c3")))
    assert list(run.snapshot().commands) == ["c1", "c2", "c3"]
    assert run.snapshot() == replace(view_of(log.turns()), timeline=run.snapshot().timeline)


# -- forecasts


def test_there_is_a_forecast_while_somebody_drives_the_run(driver: Elsewhere) -> None:
    forecast = Forecast(1.0, 3, 300.0, 200.0, 400.0)
    run = driver.attach()
    assert run.forecast is None
    ForecastFolder(driver.store, "r1").write(forecast)
    assert run.forecast == forecast
    driver.now = 31.0
    assert (run.status, run.forecast) == ("stopped", None), "what a dead driver foresaw does not come true"
    driver.beat()
    assert run.forecast == forecast
    driver.says(ending())
    assert (run.status, run.forecast) == ("done", None)


def test_what_nobody_can_foresee_is_said_at_once_and_not_asked(driver: Elsewhere) -> None:
    run = driver.attach()
    driver.says(answered(Command("pause")))
    with pytest.raises(NoAnswerYet, match="'stop_trial t0' has no forecast: the run is paused, so ask again"):
        run.what_if("stop_trial", trial="t0")
    with pytest.raises(NoAnswerYet, match="'unpause' has no forecast after 1 s"):
        run.what_if("unpause", timeout=1)
    driver.sign_off()
    with pytest.raises(NoAnswerYet, match="'unpause' has no forecast: run r1 is stopped, and nobody"):
        run.what_if("unpause")
    assert driver.store.list(paths.questions("r1")) == []


# -- waiting


def test_wait_follows_the_run_to_its_end(driver: Elsewhere) -> None:
    driver.acts = [lambda: driver.says(epoch_of_t0()), lambda: driver.says(ending())]
    assert driver.attach().wait() == RESULT
    assert driver.now == 2.0


def test_wait_has_a_limit(driver: Elsewhere) -> None:
    driver.acts = [driver.beat] * 9
    with pytest.raises(NoAnswerYet, match="run r1 is not done after 5 s: it is running"):
        driver.attach().wait(5)


def test_wait_for_a_run_that_nobody_drives_says_how_to_go_on(driver: Elsewhere) -> None:
    driver.acts = [driver.sign_off]
    with pytest.raises(CerebroError, match=r"run r1 is not done, and nobody drives it now: .*cs\.resume"):
        driver.attach().wait()


# -- commands


def test_a_command_goes_through_the_mailbox_and_its_answer_through_the_log(driver: Elsewhere) -> None:
    run = driver.attach()
    driver.acts = [lambda: None, lambda: driver.answer(reason="units end")]
    answer = run.pause()
    assert (answer.done, answer.said) == (True, "units end")
    assert run.status == "paused"
    assert driver.now < 2.0


def test_a_refusal_from_afar_says_why(driver: Elsewhere) -> None:
    driver.acts = [lambda: driver.answer(done=False, reason="it is finished")]
    with pytest.raises(CommandRefused, match="stop_trial t0 was refused: it is finished"):
        driver.attach().stop_trial("t0")


def test_an_unknown_trial_is_refused_here(driver: Elsewhere) -> None:
    with pytest.raises(ConfigurationError, match="has no trial 't9'"):
        driver.attach().stop_trial("t9")
    assert letters(driver) == []


def test_a_driver_that_does_not_answer_is_named(driver: Elsewhere) -> None:
    driver.acts = [driver.beat] * 99
    with pytest.raises(NoAnswerYet, match=r"pause was not answered after 5 s by process 7 on mars.*may still be"):
        driver.attach().pause(timeout=5)
    assert len(letters(driver)) == 1


def test_while_nobody_drives_a_run_commands_are_refused_with_the_way_out(driver: Elsewhere) -> None:
    driver.sign_off()
    with pytest.raises(CommandRefused, match=r"pause was not sent: nobody drives it now.*cs\.resume.*leave=True"):
        driver.attach().pause()
    assert letters(driver) == []


def test_they_are_left_for_the_next_driver_if_that_is_wanted(driver: Elsewhere) -> None:
    driver.sign_off()
    answer = driver.attach(leave=True).stop_trial("t1")
    assert (answer.done, str(answer)) == (False, "stop_trial t1: waits (for the next driver of the run)")
    heard: list[Command] = []
    MailboxPoller(driver.store, "r1", heard.append).look()
    assert heard == [answer.command]


def test_they_are_left_too_if_the_driver_was_killed_and_seemed_alive_for_a_while(driver: Elsewhere) -> None:
    answer = driver.attach(leave=True).pause()
    assert (answer.done, str(answer)) == (False, "pause: waits (for the next driver of the run)")
    assert driver.now >= 30.0
    (letter,) = letters(driver)
    assert answer.command.id in letter


def test_a_command_that_its_driver_did_not_live_to_hear_is_withdrawn(driver: Elsewhere) -> None:
    driver.acts = [driver.sign_off]
    with pytest.raises(CommandRefused, match="pause was not answered, and is withdrawn: nobody drives it now"):
        driver.attach().pause()
    assert letters(driver) == []


def test_a_run_that_ends_first_has_not_heard_the_command(driver: Elsewhere) -> None:
    run = driver.attach()
    driver.acts = [lambda: driver.says(ending())]
    with pytest.raises(CommandRefused, match="end was not heard: run r1 is done"):
        run.end()
    with pytest.raises(CommandRefused, match="end was not sent: run r1 is done"):
        run.end()


def test_an_answer_in_the_last_turn_of_a_driver_is_heard(driver: Elsewhere) -> None:
    def kill() -> None:
        driver.answer(reason="at once")
        driver.sign_off()

    driver.acts = [kill]
    assert driver.attach().kill().said == "at once"
