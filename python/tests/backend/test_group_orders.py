"""Orders of groups at one worker, whose partners are not there: it waits, it leaves, and keeps nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_search import small_dataset, torch_model_fn

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wire.messages import MeetingAnswer, MeetingCall, Stop, UnitStarted
from cerebro_spark.backend.worker.worker import Worker
from cerebro_spark.events import AbandonUnit, GroupGaveUp, RunUnit, UnitFailed
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.group import GroupBroken, GroupRefused, GroupTrained, Seat
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Metrics, Unit

SECONDS = 30.0


class Waiting:
    """Stands for a trainer: it meets its partner, and does then what it is told to."""

    steps = "eager"

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self._then = then

    def build(self, *unit: Any) -> None:
        pass

    def train_in_group(self, unit: Unit, feed: Any, seat: Seat) -> GroupTrained:
        assert seat.meeting.get("partner") == b"here"
        self._then()
        return GroupTrained(Metrics(), 1.0, 0)


class Driven:
    """A worker in a thread, and what it says."""

    def __init__(self, folder: Path, trainer: Waiting) -> None:
        dataset = small_dataset(folder, rows=40, partitions=2)
        self.partitions = [partition.id for partition in dataset.train]
        self._said = threading.Condition()
        self.said: list[Any] = []
        job = Job("r1", LocalStore(folder / "runs"), dataset, TrainerSpec(Hooks(torch_model_fn), framework="torch"))
        self.worker = Worker("w1", job, self._hear)
        self.worker._units._trainer = trainer  # type: ignore[assignment]
        self._thread = threading.Thread(target=self.worker.work, daemon=True)

    def _hear(self, message: Any) -> None:
        with self._said:
            self.said.append(message)
            self._said.notify_all()

    def order(self, attempt: int) -> None:
        first, second = self.partitions
        unit = Unit("t0", 1, first, beside=(second,))
        self.worker.take(RunUnit("w0", unit, attempt, {"batch_size": 8}, partners=("w1",)))

    def begin(self) -> None:
        self._thread.start()

    def wait_for(self, kind: type, count: int = 1) -> Any:
        with self._said:
            assert self._said.wait_for(lambda: sum(isinstance(each, kind) for each in self.said) >= count, SECONDS)
            return [each for each in self.said if isinstance(each, kind)][-1]

    def meet(self, attempt: int) -> None:
        call = self.wait_for(MeetingCall)
        assert call.attempt == attempt
        self.worker.take(MeetingAnswer(attempt, call.number, "aGVyZQ=="))

    def end(self) -> None:
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()


def test_a_stop_ends_the_group_that_is_under_way_and_those_that_are_queued(tmp_path: Path) -> None:
    driven = Driven(tmp_path, Waiting())
    driven.order(1)
    driven.begin()
    driven.wait_for(MeetingCall)
    driven.order(2)  # behind it, and in front of the stop: its partners may have stopped already
    driven.worker.take(Stop())
    driven.end()
    assert [each.attempt for each in driven.said if isinstance(each, UnitStarted)] == [1, 2]
    assert not [each for each in driven.said if isinstance(each, GroupGaveUp | UnitFailed)]


def test_a_driver_that_is_gone_ends_a_group_that_begins_just_then(tmp_path: Path) -> None:
    driven = Driven(tmp_path, Waiting())
    driven.worker.abandon()
    driven.worker._groups.enter(RunUnit("w0", Unit("t0", 1, "p0", beside=("p1",)), 1, {}, partners=("w1",)))
    meeting = driven.worker._groups._meeting
    assert meeting is not None
    with pytest.raises(GroupBroken, match="told to leave"):
        meeting.get("partner")


def test_an_answer_to_an_attempt_that_was_left_is_none_of_the_next_one(tmp_path: Path) -> None:
    driven = Driven(tmp_path, Waiting())
    driven.order(1)
    driven.begin()
    late = driven.wait_for(MeetingCall)
    driven.worker.take(AbandonUnit("w1", 1))
    driven.order(2)
    driven.wait_for(MeetingCall, 2)
    driven.worker.take(MeetingAnswer(1, late.number, "d3Jvbmc="))
    driven.worker.take(AbandonUnit("w1", 1))
    driven.meet(2)
    driven.worker.take(Stop())
    driven.end()
    assert not [each for each in driven.said if isinstance(each, GroupGaveUp | UnitFailed)]


@pytest.mark.parametrize(
    ("error", "lasting"), [(GroupBroken("another member is gone"), False), (GroupRefused("it has no loss"), True)]
)
def test_why_a_group_gave_up_is_said_once(tmp_path: Path, error: Exception, lasting: bool) -> None:
    def fail() -> None:
        raise error

    driven = Driven(tmp_path, Waiting(fail))
    driven.order(1)
    driven.begin()
    driven.meet(1)
    said = driven.wait_for(GroupGaveUp)
    assert (said.worker, said.attempt, said.reason, said.lasting) == ("w1", 1, str(error), lasting)
    driven.worker.take(AbandonUnit("w1", 1))
    driven.worker.take(Stop())
    driven.end()
    assert sum(isinstance(each, GroupGaveUp | UnitFailed) for each in driven.said) == 1
