"""People who command a run on processes of this machine: it obeys, survives its driver, and can be repeated."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from small_driver import small_recipe
from small_search import small_dataset

from cerebro_spark import runs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.commands import Command
from cerebro_spark.engine import Engine
from cerebro_spark.errors import RunKilled
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import CommandAnswered, UnitFinished
from cerebro_spark.inbox import Inbox
from cerebro_spark.outcomes import view_of
from cerebro_spark.turns import Turn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class People:
    """Observers of a run who say something after so many units, and unpause it as soon as it is paused."""

    def __init__(self, inbox: Inbox, script: dict[int, list[Command]]) -> None:
        self._inbox, self._script = inbox, script
        self._units = 0

    def __call__(self, turn: Turn) -> None:
        for event in turn.events:
            if isinstance(event, UnitFinished):
                self._units += 1
                for command in self._script.pop(self._units, []):
                    self._inbox.post(command)
            elif isinstance(event, CommandAnswered) and event.command == "pause":
                self._inbox.post(Command("unpause", id="unpause", by="bob"))


def said(verb: str, **fields: object) -> Command:
    return Command(verb, id=verb, by="ann", **fields)  # type: ignore[arg-type]


def test_a_run_with_every_command_killed_and_resumed_in_between_is_repeated_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, inbox = small_dataset(tmp_path), Inbox()
    monkeypatch.setattr("cerebro_spark.driver.Engine", partial(Engine, inbox=inbox))
    script: dict[int, list[Command]] = {
        2: [said("stop_trial", trial="t0")],
        4: [said("clone", trial="t1", params={"lr": 0.02}, warm_start=False, epochs=2)],
        6: [said("pause")],
        8: [said("resume_trial", trial="t0", epochs=2), said("add_workers", workers=1)],
        12: [said("kill")],
    }
    then: dict[int, list[Command]] = {
        2: [said("kill"), Command("clone", id="warm", trial="t1", epochs=1)],
        4: [said("remove_worker", worker="w0")],
        8: [said("end")],
    }
    with pytest.raises(RunKilled, match="killed by ann"):
        runs.execute(
            small_recipe(dataset, 3),
            dataset.store,
            LocalBackend(2, threads=1),
            "r1",
            [People(inbox, dict(script))],
            False,
        )
    runs.resume(dataset.store, "r1", LocalBackend(2, threads=1), [People(inbox, dict(then))], False)
    view = view_of(EventLog(dataset.store, "r1").turns())
    assert view.finished
    answers = {name: one.done for name, one in view.commands.items()}
    assert next(iter(answers)) == "stop_trial"
    assert {*ids_of(script), *ids_of(then), "unpause"} == set(answers)
    assert all(done for name, done in answers.items() if name != "warm"), view.commands
    assert view.trials["t1-c1"].parent == "t1"
    monkeypatch.undo()
    again = runs.replay(dataset.store, "r1", LocalBackend(2, threads=1), "r2", progress=False)
    assert view_of(EventLog(dataset.store, again).turns()).counts().units > 0


def ids_of(script: dict[int, list[Command]]) -> list[str]:
    return [command.id for commands in script.values() for command in commands]
