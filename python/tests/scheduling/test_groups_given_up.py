"""Groups whose members cannot reach each other: how often that is tried, in an epoch and in a run."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace

import pytest
from bundle_play import Play

from cerebro_spark.actions import Action
from cerebro_spark.events import (
    Event,
    GroupGaveUp,
    LoadPartition,
    PartitionLoaded,
    RunUnit,
    SearchEnded,
    Settings,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.types import Checkpoint, Metrics, Partition, Work

PARTITIONS = tuple(Partition(f"p{number}", rows=10) for number in range(8))
LOSS = {"loss": 1.0}


def train(auto: bool, epochs: int, good: int = 0) -> Counter[int]:
    """Train a trial with two workers of whom only the first `good` groups can meet; return who gave up, by epoch."""
    scheduler = MopScheduler(Settings(PARTITIONS, workers=2, group=2, group_auto=auto))
    waiting: deque[Action] = deque()
    gave_up: Counter[int] = Counter()
    now = 0.0

    def tell(event: Event) -> None:
        waiting.extend(scheduler.handle(event))

    tell(WorkAdded(now, Work("t0", {}, epochs)))
    tell(SearchEnded(now))
    for worker in ("w0", "w1"):
        tell(WorkerJoined(now, worker, host=worker))
    while waiting:
        action = waiting.popleft()
        now += 1.0
        if isinstance(action, LoadPartition):
            tell(PartitionLoaded(now, action.worker, action.partition))
        if not isinstance(action, RunUnit):
            continue
        if action.partners and not good:
            gave_up[action.unit.epoch] += 1
            tell(GroupGaveUp(now, action.worker, action.unit, action.attempt, "they cannot reach each other"))
            continue
        good -= bool(action.partners)
        left = Checkpoint("t0", action.unit.epoch, action.step, action.attempt)
        values = LOSS if action.final else None
        done = UnitFinished(now, action.worker, action.unit, action.attempt, 1.0, left, Metrics(LOSS, LOSS), values)
        tell(replace(done, partners=action.partners))
    assert scheduler.finished
    return gave_up


@pytest.mark.parametrize("auto", [False, True])
def test_after_two_groups_a_trial_is_trained_by_single_workers_until_its_epoch_ends(auto: bool) -> None:
    gave_up = train(auto, epochs=3, good=1)
    assert gave_up
    assert max(gave_up.values()) <= 2


@pytest.mark.parametrize("auto", [False, True])
def test_where_no_group_ever_met_none_is_tried_any_more(auto: bool) -> None:
    assert sum(train(auto, epochs=9).values()) == 4


@pytest.mark.parametrize("auto", [False, True])
def test_what_no_group_can_train_is_never_grouped_again_nor_are_its_kin(auto: bool) -> None:
    play = Play(2, workers=4, epochs=4, partitions=PARTITIONS, fuse=1, group=2, group_auto=auto, efficiency=(1.0, 0.9))
    play.feed(SearchEnded(play.now))
    gave_up = 0
    while play.orders:
        order = play.orders[min(play.orders)]
        if not order.partners:
            play.finish(order)
            continue
        gave_up += 1
        del play.orders[order.attempt]
        reason = "its loss is no mean over rows"
        play.feed(GroupGaveUp(play.now, order.worker, order.unit, order.attempt, reason, lasting=True))
    assert play.scheduler.finished
    assert 1 <= gave_up <= 2, "the second one was under way when the first one found it"
    play.auditor.complete({"t0": 4, "t1": 4})
