"""What can be seen of a run while it goes on: snapshots, phases, and answers to commands."""

from __future__ import annotations

import threading

import pytest
from fake_driver import answered, beginning, ending, epoch_of_t0, turn

from cerebro_spark.commands import Command, Verb
from cerebro_spark.errors import CommandRefused
from cerebro_spark.events import CommandReceived, GatheringBegan, WorkAdded, WorkCommanded
from cerebro_spark.live.live_view import Answer, LiveView
from cerebro_spark.types import Work


def test_a_snapshot_does_not_change() -> None:
    live = LiveView()
    live(beginning())
    before = live.snapshot()
    live(epoch_of_t0())
    assert before.best() is None
    assert (before.trials["t0"].epochs, len(before.epochs), before.workers["w0"].activity) == (0, 0, "t0/1/p0")
    after = live.snapshot()
    assert (after.trials["t0"].epochs, after.workers["w0"].activity) == (1, "idle")


def told(live: LiveView, verb: Verb, done: bool = True) -> None:
    live(answered(Command(verb, trial="t0"), done, "because"))


def test_the_phase_follows_what_was_answered() -> None:
    live = LiveView()
    seen = [live.phase]
    live(beginning())
    seen.append(live.phase)
    for verb, done in (("pause", False), ("pause", True), ("stop_trial", True), ("unpause", True), ("end", False)):
        told(live, verb, done)  # type: ignore[arg-type]
        seen.append(live.phase)
    told(live, "end")
    seen.append(live.phase)
    live(ending())
    seen.append(live.phase)
    assert seen == [
        *("starting", "running", "running", "paused", "paused", "running", "running"),
        *("ending", "done"),
    ]


def test_a_run_that_was_killed_runs_again_when_another_driver_goes_on_with_it() -> None:
    live = LiveView()
    live(beginning())
    told(live, "kill", done=False)
    assert (live.phase, live.killed) == ("running", False)
    told(live, "kill")
    assert (live.phase, live.killed) == ("ending", True)
    live(turn(GatheringBegan(3.0, 1)))
    assert (live.phase, live.killed) == ("running", False)
    told(live, "kill")
    assert live.phase == "ending", "the next driver can be killed, too"


def test_a_run_that_was_ended_stays_so_when_another_driver_goes_on_with_it() -> None:
    live = LiveView()
    live(beginning())
    told(live, "end")
    live(turn(GatheringBegan(3.0, 1)))
    assert live.phase == "ending"


def test_a_command_that_is_not_answered_yet_has_no_answer() -> None:
    live, command = LiveView(), Command("pause")
    live(beginning())
    assert live.answer(command) is None
    live(turn(CommandReceived(1.0, command)))
    assert (live.answer(command), live.phase) == (None, "running")


def test_an_answer_says_what_was_said_and_a_refusal_raises() -> None:
    live, done, refused = LiveView(), Command("pause"), Command("stop_trial", trial="t0")
    live(beginning())
    live(answered(done, True, "units end"))
    live(answered(refused, False, "it has finished"))
    assert live.answer(done) == Answer(done, True, "units end")
    with pytest.raises(CommandRefused, match="stop_trial t0 was refused: it has finished"):
        live.answer(refused)


def test_the_answer_to_a_clone_names_the_new_trial() -> None:
    live, clone = LiveView(), Command("clone", trial="t0")
    live(beginning())
    new = WorkCommanded(2.0, Work("t0-c1", {"lr": 1.0}, 3), command=clone.id)
    live(answered(clone, True, "", new, WorkAdded(2.0, Work("t5", {}, 1))))
    answer = live.answer(clone)
    assert answer is not None
    assert (answer.trial, str(answer)) == ("t0-c1", "clone t0: done, as t0-c1")


def test_who_waits_for_an_answer_gets_it_from_another_thread() -> None:
    live, command = LiveView(), Command("pause")
    live(beginning())
    later = threading.Timer(0.01, live, [answered(command)])
    later.start()
    answer = live.wait_for_answer(command, lambda: False, 60)
    assert answer is not None
    assert answer.done
    later.join()


def test_who_waits_is_told_when_no_answer_can_come() -> None:
    live, over = LiveView(), threading.Event()

    def end() -> None:
        over.set()
        live.wake()

    later = threading.Timer(0.01, end)
    later.start()
    assert live.wait_for_answer(Command("pause"), over.is_set, 60) is None
    later.join()


def test_an_interrupt_is_raised_where_the_run_is_driven_once_the_turn_is_taken_in() -> None:
    live = LiveView()
    live(beginning())
    live.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        live(epoch_of_t0())
    assert live.snapshot().trials["t0"].epochs == 1
    assert live.killed
