"""Runs the units that a worker trains together with others. It decides nothing.

What went wrong is reported before the links to the others are closed: by then they notice that a member is gone, and
what they say of that comes after the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.metric_states import load_states, store_large_states
from cerebro_spark.backend.wire.messages import FromWorker, MeetingAnswer, UnitStarted
from cerebro_spark.backend.worker.meeting import RelayedMeeting
from cerebro_spark.backend.worker.units import UNKNOWN_TIME, Parent, UnitRunner
from cerebro_spark.events import GroupGaveUp, RunUnit, UnitFinished
from cerebro_spark.trainer.group import GroupBroken, GroupRefused, GroupTrained, Seat
from cerebro_spark.types import Metrics, WorkerId


class GroupRunner:
    """Runs the group units of one worker, one at a time.

    The listener calls `answer`, `leave` and `close`, the thread that works the rest.

    Args:
        name: The worker's name.
        job: What it works on.
        units: Runs its other units, and knows how to load, save and report.
        report: Sends a message to the driver; called from several threads.
        address: The worker's address, at which other workers reach it.
    """

    def __init__(
        self, name: WorkerId, job: Job, units: UnitRunner, report: Callable[[FromWorker], None], address: str
    ) -> None:
        self._name = name
        self._job = job
        self._units = units
        self._report = report
        self._address = address
        self._lock = threading.Lock()
        self._meeting: RelayedMeeting | None = None
        self._closed = False

    def enter(self, order: RunUnit) -> None:
        """Begin with an order: from now on it can be left. Once this is closed it is left at once."""
        with self._lock:
            self._meeting = RelayedMeeting(order, self._name, self._address, self._report)
            if self._closed:
                self._meeting.leave()

    def answer(self, message: MeetingAnswer) -> None:
        """Take in what the driver says to a member."""
        with self._lock:
            if self._meeting is not None:
                self._meeting.answer(message)

    def leave(self, attempt: int) -> None:
        """Leave the unit with this attempt, if that is under way."""
        with self._lock:
            if self._meeting is not None and attempt == self._meeting.attempt:
                self._meeting.leave()

    def close(self) -> None:
        """Wait for no other member any more, in the unit that is under way or in any after it."""
        with self._lock:
            self._closed = True
            if self._meeting is not None:
                self._meeting.leave()

    def run(self, order: RunUnit, parent: Future[Parent] | None) -> None:
        """Run the unit of the order that was entered; `parent` is the checkpoint that it starts from."""
        meeting = self._meeting
        assert meeting is not None, "it was entered"
        self._report(UnitStarted(order.attempt))
        with ExitStack() as links:
            try:
                self._perform(order, parent, meeting, links)
            except Exception as error:
                if not meeting.left.is_set():  # else the unit was given up, and nobody wants to hear of it
                    self._tell(order, error)
        with self._lock:
            self._meeting = None

    def _perform(
        self, order: RunUnit, parent: Future[Parent] | None, meeting: RelayedMeeting, links: ExitStack
    ) -> None:
        began = time.perf_counter()
        units, unit, rank = self._units, order.unit, meeting.rank
        trainer = units.trainer()
        units.make_current(trainer, order, parent)
        own = replace(order, unit=unit._replace(partition=unit.partitions[rank], beside=()))
        feed = units.make_feed(own)
        rows = tuple(units.count_rows(order, partition) for partition in unit.partitions)
        units.note_begun()
        done = trainer.train_in_group(unit, feed, Seat(meeting, rows, began, links))
        units.note_computed()
        if rank == 0 and not meeting.left.is_set():
            self._finish(order, done)

    def _finish(self, order: RunUnit, done: GroupTrained) -> None:
        """Save and report a unit, for all of its members."""
        trainer, metrics, values = self._units.trainer(), done.metrics, None
        if order.final:
            carry = load_states(order.carry, self._job.store)
            values = trainer.finish(Metrics.merge([part for part in (carry, metrics) if part is not None]))
        stored = store_large_states(metrics, self._job, order.unit.trial, order.attempt, final=order.final)
        report = UnitFinished(
            UNKNOWN_TIME,
            self._name,
            order.unit,
            order.attempt,
            done.seconds,
            metrics=stored,
            values=values,
            waited=self._units.waited,
            steps=trainer.steps,
            strategy=trainer.strategy,
            partners=order.partners,
            exchanged=done.exchanged,
        )
        self._units.finish(order, report)

    def _tell(self, order: RunUnit, error: Exception) -> None:
        """Report why a unit did not come to its end."""
        if isinstance(error, GroupRefused | GroupBroken):
            lasting = isinstance(error, GroupRefused)
            self._report(GroupGaveUp(UNKNOWN_TIME, self._name, order.unit, order.attempt, str(error), lasting))
        else:
            self._units.blame(order, error)
