"""How one batch of a trial is tried on the first worker there, before a run begins. It decides nothing.

The rehearsal is an order and an event like all others, but never logged. Events that come meanwhile stay in the queue.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from cerebro_spark.backend.driver.event_queue import EventQueue, WakeUp
from cerebro_spark.backend.driver.pool import WorkerPool
from cerebro_spark.backend.driver.switchboard import Session
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.wire.messages import RehearseTrial, TrialRehearsed
from cerebro_spark.events import WorkerLost
from cerebro_spark.types import WorkerId

_SECONDS_TO_END = 10.0
_SECONDS_TO_ESTIMATE = 10.0


class Rehearsals:
    """The rehearsals of one run. Called by the engine's thread, which takes from the queue later; `skip` by any.

    Args:
        pool: The run's workers.
        session: The way to them.
        events: The queue in which their answers and their losses come.
        timeout: Seconds that one batch may take; None for as long as it takes.
    """

    def __init__(self, pool: WorkerPool, session: Session, events: EventQueue, timeout: float | None) -> None:
        self._pool = pool
        self._session = session
        self._events = events
        self._timeout = timeout
        self._count = 0
        self._skipped = False

    def skip(self) -> None:
        """Have all rehearsals return at once from now on, as if they had gone well."""
        self._skipped = True
        self._events.put(WakeUp())

    def rehearse(self, params: Mapping[str, Any]) -> str | None:
        """Try one batch; return None if it went well, else what went wrong. Raises BackendError if the run failed."""
        last_words = ""
        # A worker may be taken away at just this moment; if the next one dies too, the trial kills them.
        for _ in range(2):
            handle = self._first_worker()
            answer = None if handle is None else self._try_on(handle, params)
            if handle is None or self._skipped:
                return None
            if answer is not None:
                return answer.error
            handle.ended.wait(_SECONDS_TO_END)
            died = f"worker {handle.name} on {handle.host} died; its last words:"
            last_words = last_words or "\n".join([died, *handle.words])
        return last_words

    def estimate(self, configurations: Sequence[Mapping[str, Any]]) -> list[float | None]:
        """Have some batches of each configuration timed, by a worker each that is there; see `Backend.estimate`.

        What is not known after some seconds, or for which there is no worker, is None.
        """
        seconds: list[float | None] = [None] * len(configurations)
        open_ones: dict[int, tuple[int, WorkerId]] = {}
        for index, (params, handle) in enumerate(zip(configurations, self._pool.connected(), strict=False)):
            number, self._count = self._count, self._count + 1
            handle.tried = True
            self._session.send(handle.peer or 0, RehearseTrial(params, number, timed=True))
            open_ones[number] = index, handle.name
        deadline = time.monotonic() + _SECONDS_TO_ESTIMATE
        while open_ones and not self._skipped:
            news = self._events.peek(max(0.0, deadline - time.monotonic()))
            for item in news:
                if isinstance(item, TrialRehearsed) and item.number in open_ones:
                    index, _ = open_ones.pop(item.number)
                    seconds[index] = item.seconds
            lost = {item.worker for item in news if isinstance(item, WorkerLost)}
            open_ones = {number: (index, name) for number, (index, name) in open_ones.items() if name not in lost}
            if not news:
                break
        return seconds

    def _first_worker(self) -> WorkerHandle | None:
        """Wait until a worker is there, or nobody wants one; if none can come any more, the queue raises the reason."""
        while not (connected := self._pool.connected()) and not self._skipped:
            self._events.peek()
        return None if self._skipped else connected[0]

    def _try_on(self, handle: WorkerHandle, params: Mapping[str, Any]) -> TrialRehearsed | None:
        """Have a worker try one batch; return its answer, None if it died or nobody wants an answer any more."""
        number, self._count = self._count, self._count + 1
        handle.tried = True
        self._session.send(handle.peer or 0, RehearseTrial(params, number))
        told = {handle.name}
        deadline = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            if number == 0:
                self._warm_up_others(params, told)
            news = self._events.peek(None if deadline is None else max(0.0, deadline - time.monotonic()))
            for item in news:
                if isinstance(item, TrialRehearsed) and item.number == number:
                    return item
                if isinstance(item, WorkerLost) and item.worker == handle.name:
                    return None
            if self._skipped:
                return None
            if not news:
                return self._give_up(handle, number)

    def _warm_up_others(self, params: Mapping[str, Any], told: set[str]) -> None:
        """Have idle workers build the same meanwhile: else they would do so in their first unit."""
        for other in self._pool.connected():
            if other.name not in told:
                told.add(other.name)
                self._session.send(other.peer or 0, RehearseTrial(params))

    def _give_up(self, handle: WorkerHandle, number: int) -> TrialRehearsed:
        error = f"one batch took longer than {self._timeout:g} s"
        self._session.lose(handle.peer or 0, error)
        return TrialRehearsed(number, error)
