"""The way of commands to an engine: one order for all who post, each once, none lost before the engine is there."""

from __future__ import annotations

import threading

import pytest

from cerebro_spark.commands import Command
from cerebro_spark.errors import CommandRefused
from cerebro_spark.relay import Relay


def test_several_who_post_at_once_are_all_heard_each_in_its_own_order() -> None:
    relay = Relay()
    heard: list[Command] = []
    barrier = threading.Barrier(5)

    def person(name: str) -> None:
        barrier.wait(30)
        for number in range(20):
            relay.post(Command("pause", id=f"{name}-{number:02d}"))

    people = [threading.Thread(target=person, args=(name,)) for name in "abcd"]
    for each in people:
        each.start()
    barrier.wait(30)
    with relay.connected(heard.append):
        for each in people:
            each.join(30)
    ids = [command.id for command in heard]
    assert len(ids) == 80
    for name in "abcd":
        assert [i for i in ids if i.startswith(name)] == [f"{name}-{number:02d}" for number in range(20)]


def test_after_the_end_commands_are_refused() -> None:
    relay = Relay()
    with relay.connected(lambda command: None):
        pass
    with pytest.raises(CommandRefused, match="pause was not heard: the run is over"):
        relay.post(Command("pause"))


def test_a_run_that_fails_before_its_engine_is_there_refuses_too() -> None:
    relay = Relay()
    relay.post(Command("pause"))
    relay.close()
    with pytest.raises(CommandRefused):
        relay.post(Command("end"))
