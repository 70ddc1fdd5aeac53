"""Where the members of a group find each other: a few small values that the driver keeps while a unit is under way.

It never waits: what cannot be answered yet is answered when it can. Only the workers of an order take part in its
meeting, and with the unit all of it is forgotten.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.wire.messages import MeetingAnswer, MeetingCall
from cerebro_spark.events import RunUnit
from cerebro_spark.types import WorkerId

# By member, how many values there may be, and how many of its calls may wait for one; gloo and NCCL need a few.
_MOST_VALUES = 20
# By member, the characters of a value: gloo tells every other member an address, of some 140 bytes.
_MOST_CHARACTERS = 1024
_LEAST = 100


class Reply(NamedTuple):
    """An answer, and who is to have it."""

    worker: WorkerId
    answer: MeetingAnswer


@dataclass(slots=True)
class _Meeting:
    """The meeting of one attempt.

    `waiting` are the calls that wait for a key: by whom, and their number; there are `waits` of them. `gone` are
    workers that were lost.
    """

    workers: tuple[WorkerId, ...]
    values: dict[str, str] = field(default_factory=dict)
    waiting: defaultdict[str, list[tuple[WorkerId, int]]] = field(default_factory=lambda: defaultdict(list))
    gone: set[WorkerId] = field(default_factory=set)
    waits: int = 0

    def takes(self, call: MeetingCall) -> bool:
        """Whether this is no more than a group of so many may need."""
        size = len(self.workers)
        # Each member waits for what each other one says.
        most = _LEAST + size * max(_MOST_VALUES, size)
        return (
            len(self.values) + self.waits < most and len(call.key) + len(call.value) <= _LEAST + size * _MOST_CHARACTERS
        )


class Meetings:
    """The meetings of one run. Its caller holds the pool's lock.

    >>> from cerebro_spark.types import Unit
    >>> meetings = Meetings()
    >>> meetings.open(RunUnit("w0", Unit("t0", 1, "p0", beside=("p1",)), 7, {}, partners=("w1",)), {"w0", "w1"})
    >>> meetings.call("w0", MeetingCall(7, 1, "get", "address"))
    []
    >>> meetings.call("w1", MeetingCall(7, 1, "set", "address", "aGVyZQ=="))
    [Reply(worker='w0', answer=MeetingAnswer(attempt=7, number=1, value='aGVyZQ=='))]
    >>> meetings.close(7)
    ('w0', 'w1')
    """

    def __init__(self) -> None:
        self._meetings: dict[int, _Meeting] = {}

    def open(self, order: RunUnit, there: Collection[WorkerId]) -> None:
        """Begin the meeting of the workers of an order, if there are several.

        Args:
            order: The order.
            there: Those of its workers that are there.
        """
        if order.partners:
            gone = {worker for worker in order.workers if worker not in there}
            self._meetings[order.attempt] = _Meeting(order.workers, gone=gone)

    def workers_of(self, attempt: int) -> tuple[WorkerId, ...]:
        """Return the workers of a group by rank; none if there is no meeting of that attempt."""
        meeting = self._meetings.get(attempt)
        return () if meeting is None else meeting.workers

    def close(self, attempt: int) -> tuple[WorkerId, ...]:
        """Forget a meeting, and what waits in it; return the workers that took part."""
        meeting = self._meetings.pop(attempt, None)
        return () if meeting is None else meeting.workers

    def lose(self, worker: WorkerId) -> None:
        """Take notice that a worker is gone; a meeting whose workers all are is forgotten."""
        for attempt, meeting in list(self._meetings.items()):
            if worker in meeting.workers:
                meeting.gone.add(worker)
                if len(meeting.gone) == len(meeting.workers):
                    self.close(attempt)

    def call(self, worker: WorkerId, call: MeetingCall) -> list[Reply]:
        """Take in what a worker asks; return what can be answered now.

        Args:
            worker: The worker.
            call: What it asks. It may be late: of a meeting that is over nothing is answered.

        Raises:
            WireError: The worker takes no part in that meeting, or fills it with what no group needs.
        """
        meeting = self._meetings.get(call.attempt)
        if meeting is None:
            return []
        if worker not in meeting.workers:
            raise WireError(f"it asks for the meeting of attempt {call.attempt}, in which it takes no part")
        if not meeting.takes(call):
            raise WireError(f"it fills the meeting of attempt {call.attempt} with more than any group needs")
        return [
            Reply(to, MeetingAnswer(call.attempt, number, value)) for to, number, value in _take(meeting, worker, call)
        ]


def _take(meeting: _Meeting, worker: WorkerId, call: MeetingCall) -> list[tuple[WorkerId, int, str]]:
    """Carry out a call; return whom to answer, by which number, and what."""
    key, values = call.key, meeting.values
    match call.verb:
        case "set":
            values[key] = call.value
            answered = meeting.waiting.pop(key, [])
            meeting.waits -= len(answered)
            return [(to, number, call.value) for to, number in answered]
        case "add":
            values[key] = str(_number(values.get(key, "0")) + _number(call.value))
            return [(worker, call.number, values[key])]
        case "has":
            return [(worker, call.number, "1" if key in values else "0")]
        case "get":
            if key in values:
                return [(worker, call.number, values[key])]
            meeting.waiting[key].append((worker, call.number))
            meeting.waits += 1
            return []


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise WireError(f"it adds {text!r:.40} in a meeting, which is no whole number") from None
