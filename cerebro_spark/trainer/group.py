"""The contract of a group: processes that train one unit of one trial together, each on its own partition.

It knows no framework and no driver. How members find each other is a Meeting, which the worker has; by which links they
add up and compare is a Group, which a framework brings along.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

from cerebro_spark.errors import CerebroError
from cerebro_spark.types import Metrics


class GroupBroken(CerebroError):
    """A group cannot go on: a member is gone, does not answer, or this one was told to leave."""


class GroupRefused(CerebroError):
    """No group can train this trial exactly. The message says why."""


class Meeting(ABC):
    """Where the members of a group find each other before they have links: a few small values that all of them see.

    Any thread may call it.

    Attributes:
        rank: The number of this member, from 0.
        size: How many members there are.
        address: The address of this machine at which the others reach it.
        left: Set when this member is to leave, or not to come. Whatever waits for other members then gives up.
    """

    rank: int
    size: int
    address: str
    left: threading.Event

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Let the others see a value."""

    @abstractmethod
    def get(self, key: str) -> bytes:
        """Wait until some member has set a value, and return it. Raises GroupBroken once this member is to leave."""

    @abstractmethod
    def add(self, key: str, amount: int) -> int:
        """Add to a number that all see, and that begins with 0; return the sum."""

    def tell_stalled(self, over: bool) -> None:  # noqa: B027 (not every meeting has somebody to tell)
        """Say that this member has waited for others for long, or that this is over: it is not to blame for that."""

    @abstractmethod
    def has(self, keys: Sequence[str]) -> bool:
        """Whether all of these values are set."""


class Group(ABC):
    """The links between the members of a group while they train a unit. One thread calls it.

    All members call the same methods in the same order; each waits for the others. A member that is gone is noticed at
    once, one that does not answer when this member is told to leave. Both raise GroupBroken, and then so does all else.

    Attributes:
        rank: The number of this member, from 0.
        size: How many members there are.
        exchanged: The bytes that all members together have sent each other so far, of collectives that ended: as many
            as in a ring, whatever way they took. Of n bytes, and g members, these are 2(g-1)n to add them up, (g-1)n
            to gather parts that have n bytes together, and (g-1)n to add them up if each member keeps a part. Links
            that do one of these by another count what they do. All members count the same.
    """

    rank: int
    size: int
    exchanged: int

    @abstractmethod
    def sum(self, values: Any) -> None:
        """Add up a tensor over all members, in place. All get the same bits."""

    @abstractmethod
    def gather(self, data: bytes) -> list[bytes]:
        """Return what each member gave, by rank."""

    @abstractmethod
    def close(self) -> None:
        """Give up the links. It never waits for another member, and may be called twice."""


@dataclass(frozen=True, slots=True)
class Seat:
    """The place of a trainer in a group.

    Attributes:
        meeting: Where it finds the others.
        rows: The rows of each member's partition, by rank.
        began: When this member began the unit, by `time.perf_counter`: building and loading count as its time.
        links: Closes the links to the others when it is left. Until then none of them notices if this member fails, so
            that what it has to say about it comes first.
    """

    meeting: Meeting
    rows: tuple[int, ...]
    began: float
    links: ExitStack

    @property
    def rank(self) -> int:
        return self.meeting.rank


class GroupTrained(NamedTuple):
    """What a group found while it trained a unit; all of its members return the same.

    Attributes:
        metrics: The metrics of all partitions together.
        seconds: How long it took, without the time that early members waited for late ones.
        exchanged: The bytes that all members sent each other, as a Group counts them: in steps, and at the end.
    """

    metrics: Metrics
    seconds: float
    exchanged: int
