"""Where the members of a group meet, driven by hand: who is answered what, what is refused, that nothing is kept."""

from __future__ import annotations

import base64
from typing import Literal

import pytest

from cerebro_spark.backend.driver.meetings import Meetings
from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.wire.messages import MeetingAnswer, MeetingCall
from cerebro_spark.events import RunUnit
from cerebro_spark.types import Unit

GLOO_ADDRESS = 140


def meet(size: int, there: int | None = None) -> tuple[Meetings, list[str]]:
    workers = [f"w{rank}" for rank in range(size)]
    unit = Unit("t0", 1, "p0", beside=tuple(f"p{rank}" for rank in range(1, size)))
    meetings = Meetings()
    order = RunUnit("w0", unit, 7, {}, partners=tuple(workers[1:]))
    meetings.open(order, workers[:there])
    return meetings, workers


@pytest.mark.parametrize("size", [2, 16, 400])
def test_as_many_members_as_there_are_find_each_other_as_gloo_has_them(size: int) -> None:
    """Each sets what it computes on and an address for each of the others, and waits for those of all others."""
    meetings, workers = meet(size)
    addresses = base64.b64encode(b"x" * GLOO_ADDRESS * size).decode()
    answered, number = 0, 0
    for rank, worker in enumerate(workers):
        for other in range(size):
            if other != rank:
                number += 1
                answered += len(meetings.call(worker, MeetingCall(7, number, "get", str(other))))
        answered += len(meetings.call(worker, MeetingCall(7, 0, "set", f"gpu/{rank}")))
        answered += len(meetings.call(worker, MeetingCall(7, 0, "set", str(rank), addresses)))
    assert answered == size * (size - 1)


@pytest.mark.parametrize("verb", ["set", "get"])
def test_a_member_that_floods_a_meeting_is_refused(verb: Literal["set", "get"]) -> None:
    meetings, _ = meet(2)
    calls = [MeetingCall(7, number, verb, str(number)) for number in range(1000)]
    with pytest.raises(WireError, match="fills the meeting of attempt 7 with more than any group needs"):
        list(map(meetings.call, ["w1"] * len(calls), calls))
    with pytest.raises(WireError, match="more than any group needs"):
        meet(2)[0].call("w1", MeetingCall(7, 1, "set", "x", "y" * 10_000))


def test_only_members_take_part_and_what_is_late_is_not_answered() -> None:
    meetings, _ = meet(2)
    with pytest.raises(WireError, match="in which it takes no part"):
        meetings.call("w9", MeetingCall(7, 1, "get", "x"))
    assert meetings.call("w9", MeetingCall(6, 1, "get", "x")) == [], "of an attempt that is over"
    assert meetings.call("w0", MeetingCall(7, 1, "add", "sum", "3"))[0].answer == MeetingAnswer(7, 1, "3")
    with pytest.raises(WireError, match="which is no whole number"):
        meetings.call("w0", MeetingCall(7, 2, "add", "sum", "x"))
    assert meetings.close(7) == ("w0", "w1")
    assert meetings.call("w0", MeetingCall(7, 3, "get", "sum")) == []
    assert meetings.close(7) == ()


def test_a_meeting_whose_members_are_all_gone_is_forgotten() -> None:
    meetings, workers = meet(3, there=2)  # the third was gone before it was told
    for worker in workers[:2]:
        assert meetings.workers_of(7) == tuple(workers)
        meetings.lose(worker)
    assert meetings.workers_of(7) == ()
