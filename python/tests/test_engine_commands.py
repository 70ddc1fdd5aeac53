"""Commands on their way: from any thread into a run, its log, what it does, and what people see of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from wild_runs import ListedLog

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.codec import CodecError
from cerebro_spark.commands import Command
from cerebro_spark.engine import Engine, Observer
from cerebro_spark.errors import ConfigurationError, EventLogError, RunKilled, RunStalled
from cerebro_spark.events import (
    CommandAnswered,
    CommandReceived,
    Event,
    Settings,
    UnitFinished,
    WorkCommanded,
    WorkerJoined,
    WorkerRetiring,
)
from cerebro_spark.inbox import Inbox
from cerebro_spark.outcomes import view_of, with_outcomes
from cerebro_spark.run_view import RunView
from cerebro_spark.search import Done, FixedSearch, Search, Wait
from cerebro_spark.turns import Turn
from cerebro_spark.types import Objective, Partition, Report, Work

PARTITIONS = (Partition("p0"), Partition("p1"), Partition("v0", "validation"))
SETTINGS = Settings(PARTITIONS, workers=2, objective=Objective("val_loss", "min"), queue_ahead=1, keep_last=True)
ONE_SECOND = World(cost=lambda params: 1.0)


def grid(trials: int = 3, epochs: int = 2) -> FixedSearch:
    return FixedSearch([{"lr": 0.1 * number} for number in range(trials)], epochs)


def cluster(*commands: tuple[float, Command], patience: float = 0.0) -> SimulatedBackend:
    return SimulatedBackend([SimulatedWorker("w0"), SimulatedWorker("w1")], ONE_SECOND, 0, commands, patience)


def ran(*commands: tuple[float, Command], search: Search | None = None, log: ListedLog | None = None) -> list[Event]:
    """The log of a run with these commands."""
    log = log or ListedLog()
    Engine(search or grid(), SETTINGS, cluster(*commands), log).run()
    return log.events


def answers(events: list[Event]) -> dict[str, tuple[bool, str]]:
    return {event.command: (event.done, event.reason) for event in events if isinstance(event, CommandAnswered)}


def shown(events: list[Event]) -> RunView:
    return view_of([Turn(events)])


# -- how they come in


def test_a_command_is_logged_with_its_answer_in_one_turn() -> None:
    log = ListedLog()
    ran((2.5, Command("stop_trial", id="c1", by="ann", trial="t0")), log=log)
    (turn,) = (turn for turn in log.written if any(isinstance(event, CommandReceived) for event in turn.events))
    heard, answered = turn.events[:2]
    assert isinstance(heard, CommandReceived)
    assert (heard.at, heard.command.by) == (2.5, "ann")
    assert answered == CommandAnswered(2.5, "c1", True, "trial t0 ends with its running unit")


def test_a_command_that_comes_twice_is_obeyed_once() -> None:
    clone = Command("clone", id="c1", trial="t0", warm_start=False)
    events = ran((1.0, clone), (1.0, clone), (2.0, clone))
    assert sum(isinstance(event, CommandReceived) for event in events) == 1
    assert [event.work.trial for event in events if isinstance(event, WorkCommanded)] == ["t0-c1"]


class OnceThere:
    """An observer that calls something the first time that something is so."""

    def __init__(self, is_so: Callable[[Turn], bool], what: Callable[[], None]) -> None:
        self._is_so, self._what = is_so, what

    def __call__(self, turn: Turn) -> None:
        if self._what is not None and self._is_so(turn):
            what, self._what = self._what, None  # type: ignore[assignment]
            what()


def posted(engine_of: Callable[[Observer], Engine], is_so: Callable[[Turn], bool], *commands: Command) -> Engine:
    """Run an engine, to which another thread posts these commands once something is so."""
    engine: list[Engine] = []
    threads: list[threading.Thread] = []

    def post_all() -> None:
        for command in commands:
            engine[0].post(command)

    def begin() -> None:
        threads.append(threading.Thread(target=post_all))
        threads[0].start()

    engine.append(engine_of(OnceThere(is_so, begin)))
    engine[0].run()
    threads[0].join(60)
    return engine[0]


def test_another_thread_wakes_a_run_that_waits() -> None:
    """The run is paused by a script, and would wait for a minute."""
    log = ListedLog()

    def engine_of(observer: Observer) -> Engine:
        backend = cluster((1.5, Command("pause", id="c1")), patience=60.0)
        return Engine(grid(), SETTINGS, backend, log, observers=[observer])

    engine = posted(engine_of, lambda turn: "c1" in answers(list(turn.events)), Command("unpause", id="c2"))
    assert engine.scheduler.finished
    assert answers(log.events)["c2"] == (True, "the run goes on")


def test_two_people_at_once_are_both_heard_in_one_order() -> None:
    """The run is paused until both have said all."""
    log, engine = ListedLog(), list[Engine]()
    said = {
        who: [Command("stop_trial", by=who, trial=trial), Command("resume_trial", by=who, trial=trial, epochs=1)] * 3
        for who, trial in (("ann", "t0"), ("bob", "t1"))
    }
    said = {who: [replace(command, id=f"{who}{number}") for number, command in enumerate(said[who])] for who in said}
    threads: list[threading.Thread] = []

    def post(*commands: Command) -> None:
        for command in commands:
            engine[0].post(command)

    def all_say() -> None:
        people = [threading.Thread(target=post, args=commands) for commands in said.values()]
        for person in people:
            person.start()
        for person in people:
            person.join(60)
        post(Command("unpause", id="last"))

    def begin() -> None:
        threads.append(threading.Thread(target=all_say))
        threads[0].start()

    backend = cluster((1.5, Command("pause", id="c1")), patience=60.0)
    once = OnceThere(lambda turn: "c1" in answers(list(turn.events)), begin)
    engine.append(Engine(grid(), SETTINGS, backend, log, observers=[once]))
    engine[0].run()
    threads[0].join(60)
    heard = [event.command for event in log.events if isinstance(event, CommandReceived)]
    assert [command.id for command in heard if command.by == "ann"] == [f"ann{number}" for number in range(6)]
    assert [command.id for command in heard if command.by == "bob"] == [f"bob{number}" for number in range(6)]
    assert (heard[0].id, heard[-1].id) == ("c1", "last")
    assert [event.command for event in log.events if isinstance(event, CommandAnswered)] == [one.id for one in heard]
    assert all(done for done, _ in answers(log.events).values())


def test_what_waits_in_the_inbox_is_heard_in_the_order_in_which_it_came() -> None:
    log, inbox = ListedLog(), Inbox()
    for verb, name in (("pause", "c1"), ("unpause", "c2"), ("pause", "c3"), ("unpause", "c4")):
        inbox.post(Command(verb, id=name))  # type: ignore[arg-type]
    Engine(grid(), SETTINGS, cluster(), log, inbox=inbox).run()
    assert list(answers(log.events)) == ["c1", "c2", "c3", "c4"]
    assert all(done for done, _ in answers(log.events).values())


def test_what_is_posted_before_the_run_begins_is_its_first_command() -> None:
    log, inbox = ListedLog(), Inbox()
    inbox.post(Command("stop_trial", id="c1", trial="t0"))
    Engine(grid(), SETTINGS, cluster(), log, inbox=inbox).run()
    assert answers(log.events) == {"c1": (True, "trial t0 is stopped")}
    assert not any(isinstance(event, UnitFinished) and event.unit.trial == "t0" for event in log.events)
    inbox.post(Command("pause", id="c2"))
    assert "c2" not in answers(log.events), "the run is over"


def test_what_no_log_can_keep_is_refused_where_it_is_said() -> None:
    engine = Engine(grid(), SETTINGS, cluster(), ListedLog())
    with pytest.raises(ConfigurationError, match=r"'params.lr' holds a object, which cannot be logged"):
        engine.post(Command("clone", trial="t0", params={"lr": object()}))
    with pytest.raises(CodecError, match="is no str"):
        engine.post(Command("stop_trial", trial=7))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be a whole number of at least 1"):
        Command("resume_trial", trial="t0", epochs=1.5)  # type: ignore[arg-type]


# -- workers


def test_workers_come_and_go_by_command() -> None:
    add, remove = Command("add_workers", id="c1", workers=2), Command("remove_worker", id="c2", worker="w0")
    events = ran((1.2, add), (1.4, remove), (1.6, Command("remove_worker", id="c3", worker="w7")))
    assert answers(events) == {
        "c1": (True, "w2, w3 will join"),
        "c2": (True, "w0 leaves once its running unit has ended"),
        "c3": (False, "there is no worker 'w7': there are w1, w2, w3"),
    }
    assert [event.worker for event in events if isinstance(event, WorkerJoined)] == ["w0", "w1", "w2", "w3"]
    assert [event.worker for event in events if isinstance(event, WorkerRetiring)] == ["w0"]


def test_what_the_backend_of_a_dead_driver_was_to_do_is_answered_by_the_next_driver() -> None:
    events = ran((1.2, Command("add_workers", id="c1", workers=1)))
    heard = next(place for place, event in enumerate(events) if isinstance(event, CommandReceived))
    log = ListedLog()
    log.append(Turn(events[: heard + 1]))
    Engine(grid(), SETTINGS, cluster(), log).resume()
    assert answers(log.events) == {"c1": (False, "the driver ended before it was done: say it again")}


# -- kill and end


def test_a_killed_run_can_be_resumed() -> None:
    log = ListedLog()
    with pytest.raises(RunKilled, match=r"run run was killed by ann: resume it to go on"):
        ran((2.5, Command("kill", id="c1", by="ann")), log=log)
    assert answers(log.events)["c1"][0]
    engine = Engine(grid(), SETTINGS, cluster(), log)
    engine.resume()
    assert engine.scheduler.finished
    assert shown(log.events).counts().epochs == 6


def test_a_paused_run_is_still_paused_when_it_is_resumed() -> None:
    log = ListedLog()
    with pytest.raises(RunKilled):
        ran((1.5, Command("pause", id="c1")), (9.0, Command("kill", id="c2")), log=log)
    with pytest.raises(RunStalled):
        Engine(grid(), SETTINGS, cluster(), log).resume()
    engine = Engine(grid(), SETTINGS, cluster((1.0, Command("unpause", id="c3"))), log)
    engine.resume()
    assert engine.scheduler.finished


def test_an_ended_run_has_a_result_and_is_over() -> None:
    events = ran((4.6, Command("end", id="c1")))
    view = shown(events)
    assert view.finished
    assert view.best() is not None
    assert {view.status(trial) for trial in view.trials} <= {"finished", "stopped"}
    assert max(event.at for event in events) < 6.5
    log = ListedLog()
    log.append(Turn(events))
    Engine(grid(), SETTINGS, cluster(), log).resume()
    assert log.events == events, "there is nothing to resume"


def test_an_end_whose_answer_was_not_logged_is_answered_when_the_run_is_resumed() -> None:
    events = ran((0.0, Command("end", id="c1")))
    heard = next(place for place, event in enumerate(events) if isinstance(event, CommandReceived))
    log = ListedLog()
    log.append(Turn(events[: heard + 1]))
    Engine(grid(), SETTINGS, cluster(), log).resume()
    assert answers(log.events)["c1"][0]


def test_a_run_that_now_answers_otherwise_is_not_resumed() -> None:
    events = ran((1.5, Command("pause", id="c1")), (2.0, Command("unpause", id="c2")))
    log = ListedLog()
    forged = [CommandAnswered(e.at, e.command, False, "no") if isinstance(e, CommandAnswered) else e for e in events]
    log.append(Turn(forged[:-4]))
    with pytest.raises(EventLogError, match="but the log has CommandAnswered"):
        Engine(grid(), SETTINGS, cluster(), log).resume()


# -- time


class Timed(Search):
    """Asks for one epoch after another of one trial until so many seconds have passed."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._epoch, self.heard = seconds, 1, list[float]()

    def ask(self) -> Work | Wait | Done:
        if self.heard and self.heard[-1] >= self._seconds:
            return Done()
        return Wait() if len(self.heard) < self._epoch - 1 else self._next()

    def _next(self) -> Work:
        self._epoch += 1
        return Work("t0", {}, self._epoch - 1)

    def tell(self, report: Report) -> None:
        self.heard.append(report.at)


def test_the_time_of_a_search_stands_still_while_the_run_is_paused() -> None:
    plain, paused = Timed(12.0), Timed(12.0)
    without = ran(search=plain)
    commands = [(3.1, Command("pause", id="c1")), (503.1, Command("unpause", id="c2"))]
    events = ran(*commands, search=paused)
    assert len(paused.heard) == len(plain.heard)
    assert paused.heard == pytest.approx(plain.heard, abs=1.01)
    assert max(event.at for event in events) > 500
    assert max(event.at for event in without) < 20
    for cut in range(1, len(events)):
        again, log = Timed(12.0), ListedLog()
        log.append(Turn(events[:cut]))
        engine = Engine(again, SETTINGS, cluster(), log)
        with suppress(RunStalled):
            engine.resume()
        assert engine.scheduler.finished == (engine.scheduler.state.paused_at is None)
        told = sum(len(turn.reports) for turn in with_outcomes([Turn(events[:cut])]))
        assert again.heard[:told] == paused.heard[:told]


# -- what people see


def test_a_view_shows_commands_and_who_comes_from_whom() -> None:
    commands = [
        (6.0, Command("clone", id="c1", by="ann", trial="t0", epochs=1, params={"lr": 0.5})),
        (6.0, Command("clone", id="c2", by="bob", trial="t1", epochs=1, warm_start=False)),
        (6.0, Command("stop_trial", id="c3", trial="t9")),
    ]
    view = shown(ran(*commands, search=grid(3, 4)))
    assert [(one.command.by, one.done, one.made) for one in view.commands.values()] == [
        ("ann", True, "t0-c1"),
        ("bob", True, "t1-c1"),
        ("", False, ""),
    ]
    assert view.commands["c3"].reason.startswith("there is no trial 't9'")
    assert [(trial.parent, trial.commanded) for trial in view.trials.values()] == [
        *[(None, False)] * 3,
        ("t0", True),
        ("t1", True),
    ]
    assert view.trials["t0-c1"].params == {"lr": 0.5}
    assert view.status("t0-c1") == "finished"
    assert not view.errors


def test_a_view_knows_whether_the_run_is_paused() -> None:
    log = ListedLog()
    with pytest.raises(RunStalled):
        ran((2.0, Command("pause", id="c1")), log=log)
    assert shown(log.events).paused
    events = ran((2.0, Command("pause", id="c1")), (3.0, Command("unpause", id="c2")))
    assert not shown(events).paused


def test_a_unit_that_was_withdrawn_is_not_at_its_worker_any_more() -> None:
    view = RunView()

    def turns() -> Iterator[Turn]:
        log = ListedLog()
        with pytest.raises(RunStalled):
            ran((2.5, Command("pause", id="c1")), log=log)
        yield from log.written

    for turn in turns():
        view.apply(turn)
    assert [worker.queue for worker in view.workers.values()] == [(), ()]
