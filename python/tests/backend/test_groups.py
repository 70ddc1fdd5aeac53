"""Groups of real workers, driven by hand: how they train together, and how they come apart."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from group_orders import BATCH, DeadlyStore, Hand, paced_model_fn
from kept_workers import KeptWorkers
from small_search import FEATURES, small_dataset

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.events import AbandonUnit, GroupGaveUp, LimitOrder, UnitFailed, UnitFinished, WorkerLost
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.trainer.torch.model import TorchModel

pytestmark = pytest.mark.slow
Drive = Callable[..., Hand]
SHARE_OF_TWO, SHARE_OF_THREE = 16, 11
LIMIT = 2.5


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("data"), partitions=3)


@pytest.fixture
def drive(kept_backend: KeptWorkers, dataset: Dataset, tmp_path: Path) -> Iterator[Drive]:
    """Begins a run of three workers, each with a partition; in the test, since workers know the environment."""
    backend = kept_backend(3)

    def begin(model_fn: Any = paced_model_fn, store: Store | None = None, strategy: Any = "auto") -> Hand:
        return Hand(backend, dataset, model_fn, tmp_path, store, strategy)

    yield begin
    if backend._current is not None:
        pool = backend._run.pool
        with pool.lock:
            assert all(not handle.orders for handle in pool.handles.values() if handle.peer is not None)


def test_two_and_three_train_together_and_one_goes_on(drive: Drive) -> None:
    hand = drive()
    two = hand.finish(hand.order(["w0", "w1"]))
    assert two.metrics.weights == {"loss": 300.0}
    assert two.steps == "eager"
    assert two.values is not None
    assert two.values == two.metrics.values()
    three = hand.finish(hand.order(["w2", "w0", "w1"], two.checkpoint))
    assert three.metrics.weights == {"loss": 450.0}
    alone = hand.finish(hand.order(["w1"], three.checkpoint))
    assert (alone.metrics.weights, alone.partners) == ({"loss": 150.0}, ())
    weights = 4 * (FEATURES * 8 + 8 + 8 + 1)
    assert two.exchanged > 2 * weights * (300 // BATCH)
    assert three.exchanged > 2 * 2 * weights * (450 // BATCH)
    assert alone.exchanged == 0
    again = hand.finish(hand.order(["w0", "w2"], alone.checkpoint))
    assert again.metrics.values()["loss"] < two.metrics.values()["loss"]
    written = hand.job.store.list(paths.checkpoint_folder(hand.job.run))
    reported = [event.checkpoint for event in (two, three, alone, again)]
    assert {paths.checkpoint(hand.job.run, each) for each in reported if each is not None} <= set(written)
    assert hand.heard == [], "nobody but rank 0 has said anything"


@pytest.mark.parametrize("strategy", ["auto", "shard"])
def test_a_killed_member_is_noticed_and_the_others_go_on(drive: Drive, strategy: str) -> None:
    hand = drive(strategy=strategy)
    order = hand.order(["w0", "w1", "w2"], pause=0.02, share=SHARE_OF_THREE)
    hand.wait_until_training(order)
    hand.strike("w1", signal.SIGKILL)
    assert hand.take(WorkerLost).running == order.attempt
    gave_up = [hand.take(GroupGaveUp) for _ in range(2)]
    assert {(event.worker, event.attempt, event.lasting) for event in gave_up} == {("w0", 1, False), ("w2", 1, False)}
    assert all("another member is gone" in event.reason for event in gave_up)
    for worker in ("w0", "w2"):
        hand.submit(AbandonUnit(worker, order.attempt))
    done = hand.finish(hand.order(["w0", "w2"]))
    assert (done.metrics.weights, done.strategy) == ({"loss": 300.0}, "shard" if strategy == "shard" else "")


@pytest.mark.parametrize("strategy", ["auto", "shard"])
def test_a_frozen_member_keeps_nobody_who_is_told_to_leave(drive: Drive, strategy: str) -> None:
    hand = drive(strategy=strategy)
    order = hand.order(["w0", "w1", "w2"], pause=0.02, share=SHARE_OF_THREE)
    hand.wait_until_training(order)
    hand.strike("w1", signal.SIGSTOP)
    # Behind it already: they are carried out as soon as the group is left.
    behind = [hand.order([worker]) for worker in ("w0", "w2")]
    for worker in ("w0", "w2"):
        hand.submit(AbandonUnit(worker, order.attempt))
    assert {hand.take(UnitFinished).attempt for _ in behind} == {each.attempt for each in behind}
    assert hand.finish(hand.order(["w2", "w0"])).metrics.weights == {"loss": 300.0}
    assert hand.heard == [], "who was told to leave says nothing"
    hand.strike("w1", signal.SIGKILL)
    assert hand.take(WorkerLost).worker == "w1"


def test_a_unit_that_waits_for_its_turn_is_abandoned(drive: Drive) -> None:
    hand = drive()
    busy = hand.order(["w0"], pause=0.1, share=32)
    hand.wait_until_training(busy)
    group = hand.order(["w0", "w1"])  # w0 has it in its queue, and w1 waits for w0
    last = hand.order(["w1"])
    for worker in ("w0", "w1"):
        hand.submit(AbandonUnit(worker, group.attempt))
    assert [hand.take(UnitFinished).attempt for _ in range(2)] == [last.attempt, busy.attempt]
    hand.submit(AbandonUnit("w0", busy.attempt))  # it is over
    hand.submit(AbandonUnit("w0", 99))
    assert hand.finish(hand.order(["w0", "w1"])).partners == ("w1",)
    assert hand.heard == []


def test_an_exception_of_the_trial_is_its_own_and_no_fault_of_the_group(drive: Drive, tmp_path: Path) -> None:
    hand = drive()
    (tmp_path / f"m1-fails-{hand.pid('w1')}").touch()
    order = hand.order(["w0", "w1"], share=SHARE_OF_TWO, failing=True)
    first, second = hand.take(UnitFailed, GroupGaveUp), hand.take(UnitFailed, GroupGaveUp)
    assert isinstance(first, UnitFailed), "the reason comes before what follows from it"
    assert (first.worker, first.blame) == ("w1", "trial")
    assert "ValueError: this member fails" in first.error
    assert isinstance(second, GroupGaveUp)
    assert (second.worker, second.lasting) == ("w0", False)
    hand.submit(AbandonUnit("w0", order.attempt))
    assert hand.finish(hand.order(["w0", "w1"])).attempt == 2


def test_the_order_of_a_group_reaches_those_who_are_there(drive: Drive) -> None:
    hand = drive()
    hand.strike("w1", signal.SIGKILL)
    hand.take(WorkerLost)
    order = hand.order(["w0", "w1", "w2"])
    for worker in ("w0", "w2"):
        hand.submit(AbandonUnit(worker, order.attempt))
    assert hand.finish(hand.order(["w0", "w2"])).attempt == 2
    assert not [event for event in hand.heard if isinstance(event, GroupGaveUp | UnitFailed | UnitFinished)]


def test_a_member_that_is_stuck_is_lost_and_not_the_one_that_waits_for_it(drive: Drive) -> None:
    hand = drive()
    order = hand.order(["w0", "w1"], share=SHARE_OF_TWO, stuck=hand.pid("w1"))
    hand.wait_until_training(order)
    hand.submit(LimitOrder("w0", LIMIT, order.attempt))
    lost = hand.take(WorkerLost)
    assert (lost.worker, lost.running) == ("w1", order.attempt)
    assert f"in a group of 2 workers took longer than {LIMIT:g} s" in lost.reason
    hand.submit(AbandonUnit("w0", order.attempt))
    assert hand.finish(hand.order(["w0", "w2"])).metrics.weights == {"loss": 300.0}
    assert not [event for event in hand.heard if isinstance(event, WorkerLost)]


def test_what_rank_0_saved_and_could_not_report_is_trained_again_and_deleted(
    drive: Drive, tmp_path: Path, kept_backend: KeptWorkers
) -> None:
    store = DeadlyStore(tmp_path / "runs")
    hand = drive(store=store)
    order = hand.order(["w0", "w1"])
    assert hand.take(WorkerLost).worker == "w0"
    (left,) = store.list(paths.checkpoint_folder(hand.job.run))
    hand.submit(AbandonUnit("w1", order.attempt))
    done = hand.finish(hand.order(["w1", "w2"]))
    assert done.checkpoint is not None
    kept = paths.checkpoint(hand.job.run, done.checkpoint)
    assert kept != left
    kept_backend().close()
    assert store.list(paths.checkpoint_folder(hand.job.run)) == [kept]


def normalized_model_fn(params: Any) -> TorchModel:
    import torch
    from torch import nn

    module = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, 1), nn.Flatten(0))
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())


def test_what_no_group_trains_is_refused_by_every_member(drive: Drive) -> None:
    hand = drive(normalized_model_fn)
    order = hand.order(["w0", "w1"])
    refused = [hand.take(GroupGaveUp) for _ in range(2)]
    assert {event.worker for event in refused} == {"w0", "w1"}
    assert {(event.attempt, event.lasting) for event in refused} == {(order.attempt, True)}
    (reason,) = {event.reason for event in refused}
    assert reason.startswith("no group can train trial t0 exactly: its BatchNorm1d '0' takes the statistics of a batch")
    assert hand.finish(hand.order(["w0"])).steps == "eager"
