"""A worker's side of a meeting: where it finds the other members of its group. The driver relays what they say."""

from __future__ import annotations

import base64
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Literal

from cerebro_spark.backend.wire.messages import FromWorker, GroupStalled, MeetingAnswer, MeetingCall
from cerebro_spark.events import RunUnit
from cerebro_spark.trainer.group import GroupBroken, Meeting
from cerebro_spark.types import WorkerId


class RelayedMeeting(Meeting):
    """The meeting of one attempt.

    The listener calls `answer` and `leave`, any other thread the rest.

    Args:
        order: The order of the group.
        worker: The name of this worker.
        address: Its address, at which other workers reach it.
        send: Says something to the driver.
    """

    def __init__(self, order: RunUnit, worker: WorkerId, address: str, send: Callable[[FromWorker], None]) -> None:
        self.rank, self.size = order.workers.index(worker), len(order.workers)
        self.address = address
        self.left = threading.Event()
        self.attempt = order.attempt
        self._send = send
        self._numbers = itertools.count(1)
        self._calls: dict[int, Future[str]] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes) -> None:
        encoded = base64.b64encode(value).decode()
        self._send(MeetingCall(self.attempt, next(self._numbers), "set", key, encoded))

    def get(self, key: str) -> bytes:
        return base64.b64decode(self._ask("get", key))

    def add(self, key: str, amount: int) -> int:
        return int(self._ask("add", key, str(amount)))

    def has(self, keys: Sequence[str]) -> bool:
        return all(self._ask("has", key) == "1" for key in keys)

    def tell_stalled(self, over: bool) -> None:
        self._send(GroupStalled(self.attempt, over))

    def answer(self, message: MeetingAnswer) -> None:
        """Take in what the driver says; what is late is of no use."""
        call = self._calls.pop(message.number, None) if message.attempt == self.attempt else None
        if call is not None:
            call.set_result(message.value)

    def leave(self) -> None:
        """Wait for nothing any more."""
        with self._lock:
            self.left.set()
            calls, self._calls = self._calls, {}
        for call in calls.values():
            call.set_exception(GroupBroken("this member was told to leave"))

    def _ask(self, verb: Literal["get", "add", "has"], key: str, value: str = "") -> str:
        number, answer = next(self._numbers), Future[str]()
        with self._lock:
            if self.left.is_set():
                raise GroupBroken("this member was told to leave")
            self._calls[number] = answer
        self._send(MeetingCall(self.attempt, number, verb, key, value))
        return answer.result()
