"""What each command does to a run, in examples."""

from __future__ import annotations

from typing import Any

import pytest
from bundle_play import TWO, Play

from cerebro_spark.commands import Command
from cerebro_spark.events import (
    AnswerCommand,
    CarryOut,
    CommandReceived,
    DeleteCheckpoint,
    FinishRun,
    RunUnit,
    SearchEnded,
    TellSearch,
    TrialStopped,
    UnitFailed,
    UnitWithdrawn,
    WithdrawUnit,
    WorkAdded,
    WorkCommanded,
)
from cerebro_spark.types import ENDED_BY_A_PERSON, Objective, Partition, Work

EVALUATED = (*TWO, Partition("v0", "validation"))


class Steered(Play):
    """A play with people in it; the engine's part is played, too."""

    def __init__(self, trials: int, **settings: Any) -> None:
        super().__init__(trials, **{"fuse": 1, "keep_last": True, **settings})

    def say(self, verb: Any, trial: str = "", **more: Any) -> AnswerCommand:
        """Give a command; return the answer, after what the answer asks for was begun."""
        before = len(self.actions)
        self.feed(CommandReceived(self.now, Command(verb, trial=trial, **more)))
        (answer,) = (action for action in self.actions[before:] if isinstance(action, AnswerCommand))
        if answer.work is not None:
            self.feed(WorkCommanded(self.now, answer.work, command=answer.command))
        return answer

    def refuses(self, verb: Any, trial: str = "", **more: Any) -> str:
        answer = self.say(verb, trial, **more)
        assert not answer.done
        assert answer.work is None
        return answer.reason

    def heard(self) -> list[tuple[str, int, str | None]]:
        """What the search was told."""
        told = [action for action in self.actions if isinstance(action, TellSearch) and action.heard]
        return [(one.report.trial, one.report.epoch, one.report.error) for one in told]

    def go(self) -> None:
        """Let all that is under way end, again and again."""
        while self.orders:
            self.finish(self.orders[min(self.orders)])

    def withdrawn(self) -> list[int]:
        return [action.attempt for action in self.actions if isinstance(action, WithdrawUnit)]

    def give_back(self, attempt: int) -> list[RunUnit]:
        order = self.orders.pop(attempt)
        return self.feed(UnitWithdrawn(self.now, order.worker, order.unit, attempt))

    def of(self, trial: str) -> list[RunUnit]:
        return [order for order in self.told if order.unit.trial == trial]

    def visits(self, trial: str) -> list[tuple[int, str]]:
        done = [unit for unit in self.auditor.finished if unit.trial == trial and unit.kind == "train"]
        return sorted((unit.epoch, unit.partition) for unit in done)

    def status(self, trial: str) -> str:
        return self.scheduler.state.trials[trial].status


def whole(epochs: int) -> list[tuple[int, str]]:
    return [(epoch, partition.id) for epoch in range(1, epochs + 1) for partition in TWO]


# -- stop


def test_a_stopped_trial_ends_with_its_running_unit_and_the_search_hears_of_it_at_once() -> None:
    play = Steered(2, workers=2)
    answer = play.say("stop_trial", "t0")
    assert (answer.done, answer.reason) == (True, "trial t0 ends with its running unit")
    assert play.heard() == [("t0", 0, ENDED_BY_A_PERSON)]
    play.go()
    assert len(play.of("t0")) == 1
    assert play.visits("t1") == whole(2)
    assert [trial for trial, _, error in play.heard() if error is None] == ["t1", "t1"]
    assert play.status("t0") == "stopped"


def test_a_trial_that_waits_is_stopped_at_once() -> None:
    play = Steered(2, workers=1)
    waiting = next(trial for trial in ("t0", "t1") if not play.of(trial))
    assert play.say("stop_trial", waiting).reason == f"trial {waiting} is stopped"
    play.go()
    assert play.of(waiting) == []


def test_nothing_more_of_a_stopped_trial_is_evaluated_before_it_goes_on() -> None:
    play = Steered(1, partitions=EVALUATED, epochs=1)
    play.finish(play.orders[min(play.orders)])
    play.say("stop_trial", "t0")
    play.go()
    assert [order.unit.kind for order in play.told] == ["train", "train"]
    play.feed(SearchEnded(play.now))
    assert play.scheduler.finished, "nobody waits for it"


def test_evaluations_of_a_stopped_trial_go_on_with_it() -> None:
    play = Steered(2, partitions=EVALUATED, epochs=1)
    play.finish(play.orders[min(play.orders)])
    play.finish(play.orders[min(play.orders)])
    first = next(trial for trial in ("t0", "t1") if len(play.visits(trial)) >= 1)
    play.say("stop_trial", first)
    play.go()
    assert play.say("resume_trial", first, epochs=1).done
    play.go()
    record = play.scheduler.state.trials[first]
    assert not record.evaluations
    assert record.reported is not None


def test_a_trial_that_lacks_only_its_evaluation_gets_it_without_further_epochs() -> None:
    play = Steered(1, partitions=EVALUATED, epochs=1)
    play.finish(play.orders[min(play.orders)])
    play.say("stop_trial", "t0")
    play.go()
    assert play.visits("t0") == whole(1)
    answer = play.say("resume_trial", "t0")
    assert (answer.done, answer.work) == (True, None)
    assert answer.reason == "trial t0 has trained all its 1 epochs, and is evaluated now"
    play.go()
    assert [order.unit.kind for order in play.told] == ["train", "train", "eval"]
    record = play.trial("t0")
    assert (record.status, record.evaluations, record.reported) == ("paused", {}, record.latest)
    assert play.heard() == [("t0", 0, ENDED_BY_A_PERSON)], "it is a person's"
    assert "say how many `epochs` more" in play.refuses("resume_trial", "t0")
    assert "has finished, so there is nothing to stop" in play.refuses("stop_trial", "t0")
    play.feed(SearchEnded(play.now))
    assert play.scheduler.finished


def test_a_trial_that_lacks_its_evaluation_can_be_stopped_once_more() -> None:
    play = Steered(2, partitions=EVALUATED, epochs=1, workers=1)
    while play.visits("t0") != whole(1):
        play.finish(play.orders[min(play.orders)])
    assert play.trial("t0").evaluations
    assert play.say("stop_trial", "t0").done
    assert play.say("resume_trial", "t0").done
    assert play.say("stop_trial", "t0").done
    play.go()
    assert play.status("t0") == "stopped"
    assert play.say("resume_trial", "t0", epochs=1).work is not None, "more epochs are more work"
    play.go()
    assert play.visits("t0") == whole(2)
    assert play.trial("t0").evaluations == {}


@pytest.mark.parametrize("begun", [False, True])
def test_a_unit_that_waits_behind_another_is_withdrawn_unless_it_has_begun(begun: bool) -> None:
    play = Steered(2, workers=1, queue_ahead=1)
    first, second = (play.orders[attempt] for attempt in sorted(play.orders))
    play.say("stop_trial", second.unit.trial)
    assert play.withdrawn() == [second.attempt]
    assert len(play.auditor.outstanding) == 2, "it is under way until the worker has said something"
    if begun:
        play.finish(first)
        play.finish(second)
    else:
        play.give_back(second.attempt)
        play.finish(first)
    play.go()
    assert len(play.visits(second.unit.trial)) == (1 if begun else 0)
    assert play.visits(first.unit.trial) == whole(2)


def test_the_running_unit_is_not_withdrawn() -> None:
    play = Steered(2, workers=1, queue_ahead=1)
    play.say("stop_trial", play.orders[min(play.orders)].unit.trial)
    assert play.withdrawn() == []


@pytest.mark.parametrize("leaves", [0, 1])
def test_of_a_bundle_that_waits_only_the_stopped_member_is_withdrawn(leaves: int) -> None:
    play = Steered(4, workers=1, queue_ahead=1, fuse=2)
    waiting = [order for order in play.told if order.others][-1]
    leaving, staying = (waiting.members[leaves], waiting.members[1 - leaves])
    play.say("stop_trial", leaving.unit.trial)
    assert play.withdrawn() == [leaving.attempt]
    play.give_back(leaving.attempt)
    play.go()
    assert play.visits(leaving.unit.trial) == []
    assert play.visits(staying.unit.trial) == whole(2)


def test_a_stopped_trial_keeps_its_last_checkpoint_until_the_run_ends() -> None:
    play = Steered(2, workers=1, keep_last=False)
    play.finish(play.orders[min(play.orders)])
    (begun,) = (trial for trial in ("t0", "t1") if play.visits(trial))
    play.say("stop_trial", begun)
    play.go()
    last = play.scheduler.state.trials[begun].latest
    assert last is not None
    assert last in play.scheduler.state.retention
    play.feed(SearchEnded(play.now))
    assert DeleteCheckpoint(last) in play.actions
    assert play.scheduler.finished


# -- resume


def test_a_trial_that_was_stopped_in_the_middle_of_an_epoch_goes_on_there() -> None:
    play = Steered(1, epochs=2)
    (order,) = play.orders.values()
    play.say("stop_trial", "t0")
    play.finish(order)
    answer = play.say("resume_trial", "t0")
    assert answer.reason == "trial t0 goes on until epoch 2"
    play.go()
    assert play.visits("t0") == whole(2)
    assert play.heard() == [("t0", 0, ENDED_BY_A_PERSON)], "it is a person's"


def test_a_trial_that_is_taken_up_again_while_its_unit_still_runs_goes_on() -> None:
    play = Steered(1, epochs=2)
    play.say("stop_trial", "t0")
    play.say("resume_trial", "t0", epochs=3)
    play.go()
    assert play.visits("t0") == whole(3)


def test_a_finished_trial_does_more_epochs_and_the_search_is_told_that_it_is_gone() -> None:
    play = Steered(1, epochs=1)
    play.go()
    assert play.say("resume_trial", "t0", epochs=2).reason == "trial t0 goes on until epoch 3"
    play.go()
    assert play.visits("t0") == whole(3)
    assert play.heard() == [("t0", 1, None), ("t0", 1, ENDED_BY_A_PERSON)]


def test_a_trial_that_trains_does_more_epochs_than_it_was_to_do() -> None:
    play = Steered(1, epochs=1)
    assert play.say("resume_trial", "t0", epochs=2).done
    play.go()
    assert play.visits("t0") == whole(3)


def test_what_a_search_asks_of_a_trial_that_is_a_persons_is_refused() -> None:
    play = Steered(1, epochs=1)
    play.say("stop_trial", "t0")
    play.work("t0", 3)
    assert play.heard() == [("t0", 0, ENDED_BY_A_PERSON)] * 2
    play.go()
    assert len(play.visits("t0")) == 1


# -- clone


def test_a_clone_begins_with_the_weights_of_the_last_reported_epoch_and_its_own_params() -> None:
    play = Steered(1, epochs=1)
    play.go()
    source = play.scheduler.state.trials["t0"].reported
    answer = play.say("clone", "t0", params={"lr": 0.7}, epochs=2)
    assert answer.reason == "trial t0-c1 trains 2 epochs, from epoch 1 of t0"
    first = play.of("t0-c1")[0]
    assert (first.parent, first.rebased, dict(first.params)) == (source, True, {"lr": 0.7})
    play.go()
    assert play.visits("t0-c1") == whole(2)
    assert all(trial == "t0" for trial, _, _ in play.heard())


@pytest.mark.parametrize("units", [3, 4])
def test_a_clone_begins_with_the_last_reported_epoch_neither_the_best_one_nor_a_part_of_the_next(units: int) -> None:
    """All epochs measure the same, so the first one stays the best."""
    play = Steered(1, epochs=3, objective=Objective("loss", "min"))
    for _ in range(units):
        play.finish(play.orders[min(play.orders)])
    record = play.trial("t0")
    assert (record.best.epoch, record.reported.epoch, record.latest.epoch) == (1, units // 2, 2)
    source = record.reported
    assert play.say("clone", "t0", epochs=1).done
    play.go()
    assert play.of("t0-c1")[0].parent == source


def test_a_clone_from_the_beginning_goes_as_far_as_the_trial_was_to_go() -> None:
    play = Steered(1, epochs=2)
    play.say("clone", "t0", warm_start=False)
    assert play.scheduler.state.trials["t0-c1"].latest is None
    play.go()
    assert play.visits("t0-c1") == whole(2)


def test_params_that_a_person_changes_keep_their_types() -> None:
    """A page sends JSON, which has no tuples, and a person writes 2 for 2.0; trials of other types are no kin."""
    play = Steered(1, epochs=1)
    play.feed(WorkAdded(play.now, Work("t1", {"lr": 0.1, "sizes": (64, 32), "batch": 8}, 1)))
    play.say("clone", "t1", params={"lr": 2, "sizes": [16, 8], "batch": 4}, warm_start=False)
    params = play.trial("t1-c1").params
    assert params == {"lr": 2.0, "sizes": (16, 8), "batch": 4}
    assert [type(value) for value in params.values()] == [float, tuple, int]


def test_clones_of_clones_have_short_names_of_their_own() -> None:
    play = Steered(1, epochs=1)
    for source in ("t0", "t0", "t0-c1", "t0-c2"):
        play.say("clone", source, warm_start=False)
    assert list(play.scheduler.state.trials) == ["t0", "t0-c1", "t0-c2", "t0-c3", "t0-c4"]


# -- the whole run


def test_a_paused_run_gives_out_nothing_and_goes_on_later() -> None:
    play = Steered(3, workers=2, queue_ahead=1, epochs=1)
    assert play.say("pause").done
    (behind,) = play.withdrawn()
    play.give_back(behind)
    for attempt in sorted(play.orders):
        assert play.finish(play.orders[attempt]) == []
    play.feed(SearchEnded(play.now))
    assert not play.scheduler.finished
    assert play.say("unpause").done
    play.go()
    assert [play.visits(f"t{i}") for i in range(3)] == [whole(1)] * 3
    assert play.scheduler.finished


def test_a_paused_run_waits_for_people_even_if_nothing_is_left() -> None:
    play = Steered(1, epochs=1)
    play.feed(SearchEnded(play.now))
    play.finish(play.orders[min(play.orders)])
    play.say("pause")
    play.go()
    assert play.visits("t0") == whole(1)
    assert not play.scheduler.finished
    play.say("unpause")
    assert play.scheduler.finished


def test_the_end_comes_with_the_running_units() -> None:
    play = Steered(3, workers=2, queue_ahead=1, epochs=2)
    assert play.say("end").done
    assert not play.scheduler.finished
    (behind,) = play.withdrawn()
    play.give_back(behind)
    play.go()
    assert play.scheduler.finished
    assert {play.status(f"t{i}") for i in range(3)} == {"stopped"}
    assert play.scheduler.state.retention.kept() == {}


def test_a_run_in_which_nothing_runs_ends_at_once() -> None:
    play = Steered(1, epochs=1)
    play.go()
    play.say("end")
    assert isinstance(play.actions[-1], (FinishRun, AnswerCommand))
    assert play.scheduler.finished


@pytest.mark.parametrize("verb", ["add_workers", "remove_worker", "kill"])
def test_what_is_for_others_is_passed_on(verb: Any) -> None:
    play = Steered(1)
    command = Command(verb, workers=1, worker="w0")
    play.feed(CommandReceived(play.now, command))
    assert CarryOut(command) in play.actions


# -- refusals


def test_what_cannot_be_done_is_refused_with_the_way_out() -> None:
    play = Steered(2, workers=2, epochs=1)
    assert play.refuses("stop_trial", "t9") == "there is no trial 't9': there are t0, t1"
    assert "wait" not in play.refuses("clone", "t0")
    assert play.refuses("clone", "t0").endswith("has not been evaluated after a whole epoch yet: use warm_start=False")
    assert play.refuses("unpause") == "the run is not paused: it goes on by itself"
    assert (
        play.refuses("resume_trial", "t0") == "trial t0 goes on until epoch 1: say how many `epochs` it shall do more"
    )
    assert play.refuses("clone", "t0", params={"lrr": 1.0}, warm_start=False) == (
        "`params` has 'lrr', but trials have lr: a clone can change these"
    )
    play.say("stop_trial", "t0")
    assert play.refuses("stop_trial", "t0") == "trial t0 is stopped already: resume_trial lets it go on"
    play.go()
    play.feed(SearchEnded(play.now))
    assert play.refuses("pause") == "the run is over: start another one"


def test_what_has_finished_needs_a_number_of_epochs() -> None:
    play = Steered(1, epochs=1)
    play.go()
    assert "has done all 1 epochs that it was to do: say how many `epochs` more" in play.refuses("resume_trial", "t0")
    assert "say how many `epochs`, or warm_start=False" in play.refuses("clone", "t0")
    play.say("resume_trial", "t0", epochs=1)
    play.go()
    assert "has finished, so there is nothing to stop" in play.refuses("stop_trial", "t0")


def test_a_failed_trial_neither_stops_nor_goes_on_but_can_be_tried_anew() -> None:
    play = Steered(1)
    (order,) = play.orders.values()
    play.orders.clear()
    play.feed(UnitFailed(play.now, order.worker, order.unit, order.attempt, "boom"))
    assert "has failed, so there is nothing to stop" in play.refuses("stop_trial", "t0")
    assert "has failed, so it cannot go on" in play.refuses("resume_trial", "t0", epochs=1)
    assert play.refuses("clone", "t0") == "trial t0 has failed: use warm_start=False"
    assert play.say("clone", "t0", warm_start=False, params={"batch_size": 8}).done


def test_in_a_run_that_is_about_to_end_only_a_kill_is_left() -> None:
    play = Steered(1)
    play.say("end")
    for verb in ("pause", "end", "stop_trial"):
        assert play.refuses(verb, "t0").startswith("the run is about to end")
    assert play.say("kill").done


def test_a_run_of_an_earlier_version_has_no_last_checkpoint_of_a_finished_trial() -> None:
    play = Steered(1, epochs=1, keep_last=False)
    play.work("t1", 9, lr=0.5)
    play.feed(SearchEnded(play.now))
    while play.status("t0") == "training":
        play.finish(play.orders[min(play.orders)])
    assert "begun by an earlier version: clone it with warm_start=False" in play.refuses("resume_trial", "t0", epochs=1)
    assert "begun by an earlier version: use warm_start=False" in play.refuses("clone", "t0")


def test_a_trial_that_has_lost_the_checkpoint_that_it_was_to_begin_from_does_not_begin_without() -> None:
    play = Steered(1, epochs=1, keep_last=False)
    play.work("t1", 9, lr=0.5)
    while play.status("t0") == "training":
        play.finish(play.orders[min(play.orders)])
    assert play.say("clone", "t0", epochs=1).done
    play.feed(TrialStopped(play.now, "t0-c1"))
    assert "begun by an earlier version: clone it with warm_start=False" in play.refuses("resume_trial", "t0-c1")


def test_a_trial_of_an_earlier_version_that_has_not_begun_goes_on_from_the_beginning() -> None:
    play = Steered(2, workers=1, keep_last=False)
    waiting = next(trial for trial in ("t0", "t1") if not play.of(trial))
    play.feed(TrialStopped(play.now, waiting))
    assert play.say("resume_trial", waiting).done
    play.go()
    assert play.visits(waiting) == whole(2)
