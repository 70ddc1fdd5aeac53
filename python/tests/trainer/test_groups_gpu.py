"""On a GPU: groups whose members share it, linked by gloo, and NCCL as far as one GPU goes. Skipped without one."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

if not Path("/dev/nvidia0").exists():
    pytest.skip("needs an NVIDIA GPU, and this machine has none", allow_module_level=True)

import group_models as models
import numpy as np
import shard_models
import torch
from group_members import Members, say
from group_runs import GroupRun, Outcome, train_alone, train_member

from cerebro_spark.trainer.group import GroupBroken

GPU = {"device": "cuda", "compile": False}
# cuDNN multiplies in TF32, and in another order for another number of rows.
ROUNDING = {"cnn": 2e-3, "recurrent": 2e-3, "adam": 1e-4}
LOADED = ("group_runs", "group_models", "shard_models", "cerebro_spark.trainer.torch.trainer")


@pytest.fixture(scope="module")
def members() -> Iterator[Members]:
    torch.set_num_threads(1)
    made = Members(3, LOADED)
    yield made
    made.close()


def on_gpu(run: GroupRun, **more: Any) -> GroupRun:
    return replace(run, resources={**GPU, **more})


def trained(members: Members, run: GroupRun) -> list[Outcome]:
    outcomes = members.run(train_member, run, size=len(run.rows))
    assert all(isinstance(outcome, Outcome) for outcome in outcomes), outcomes
    assert len({outcome.digest for outcome in outcomes}) == 1
    return outcomes


@pytest.mark.parametrize("case", sorted(models.EXACT))
def test_a_group_trains_what_one_process_trains(members: Members, case: str) -> None:
    kind, model_fn = models.EXACT[case]
    run = on_gpu(GroupRun(model_fn, kind, rows=(301, 212), batch=32, epochs=3))
    first, second = trained(members, run)
    one = train_alone(run)
    assert first.metrics == second.metrics
    assert np.abs(first.weights - one.weights).max() <= ROUNDING.get(case, 1e-5)
    assert not np.array_equal(first.weights, train_alone(replace(run, epochs=1)).weights)
    for found, expected in zip(first.metrics, one.metrics, strict=True):
        assert found.weights == expected.weights
        assert found.sums == pytest.approx(expected.sums, rel=1e-3)


def test_mixed_precision_trains_in_groups(members: Members) -> None:
    for precision in ("float16", "bfloat16"):
        run = on_gpu(GroupRun(models.EXACT["sgd"][1], rows=(160, 96), batch=32, epochs=2), precision=precision)
        outcome, _ = trained(members, run)
        assert np.abs(outcome.weights - train_alone(run).weights).max() <= 2e-2


def test_members_drop_what_a_replay_drops(members: Members) -> None:
    run = on_gpu(GroupRun(models.DROPOUT, rows=(100, 61, 80), epochs=2))
    once, again = trained(members, run), trained(members, run)
    assert np.abs(once[0].weights - again[0].weights).max() <= 1e-5
    assert once[0].drawn == again[0].drawn


@pytest.mark.parametrize("case", sorted(shard_models.EXACT))
def test_a_group_in_parts_trains_what_one_process_trains(members: Members, case: str) -> None:
    kind, model_fn = shard_models.EXACT[case]
    run = on_gpu(GroupRun(model_fn, kind, rows=(430, 370), batch=16), strategy="shard")
    one = train_alone(on_gpu(run, strategy="plain"))
    for outcome in trained(members, run):
        assert np.abs(outcome.weights - one.weights).max() <= 1e-4
        assert len(outcome.checkpoint) == len(one.checkpoint)


def test_what_parts_leave_goes_on_alone(members: Members) -> None:
    run = on_gpu(GroupRun(shard_models.EXACT["adam"][1], rows=(90, 75)), strategy="shard")
    first, _ = trained(members, run)
    alone = train_alone(on_gpu(run, strategy="plain").after(first, first=2))
    expected = train_alone(on_gpu(replace(run, epochs=2), strategy="plain"))
    assert np.abs(alone.weights - expected.weights).max() <= 1e-4


def test_a_killed_member_is_noticed_by_one_that_waits_on_the_gpu(members: Members) -> None:
    members.begin(wait_for_other)
    assert members.take(0) == members.take(1) == "linked"
    members.kill(1, signal.SIGKILL)
    assert members.take(0) < 2.0
    members.replace(1)


def wait_for_other(meeting: Any) -> float:
    """Return how long a member waited for one that is gone, in a sum of values on a GPU."""
    from cerebro_spark.trainer.torch.links import join_group

    links = join_group(meeting, torch.device("cuda"))
    links.sum(torch.ones(1, device="cuda"))
    say("linked")
    if meeting.rank:
        signal.pause()
    began = time.monotonic()
    try:
        while True:
            links.sum(torch.ones(1000, device="cuda"))
    except GroupBroken:
        return time.monotonic() - began
    finally:
        links.close()


def test_links_by_nccl(members: Members) -> None:
    """A group of one: more need as many GPUs."""
    assert members.run(use_nccl, size=1) == [("cuda", [3.0, 4.0], [b"own"], [1.0, 2.0], [5.0, 6.0])]


def use_nccl(meeting: Any) -> Any:
    """Return the device of links that are NCCL's, and what each of their collectives gives."""
    from cerebro_spark.trainer.torch.links import join_group

    links = join_group(meeting, torch.device("cuda"))
    summed = torch.tensor([3.0, 4.0], device="cuda")
    links.sum(summed)
    gathered, part = torch.empty(2, device="cuda"), torch.empty(2, device="cuda")
    links.gather_parts(gathered, torch.tensor([1.0, 2.0], device="cuda"))
    links.sum_parts(part, torch.tensor([5.0, 6.0], device="cuda"))
    found = links._device.type, summed.tolist(), links.gather(b"own"), gathered.tolist(), part.tolist()
    links.close()
    return found
