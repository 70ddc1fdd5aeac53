"""Groups whose members have a part of the model each, in processes of their own, against one process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import group_models as models
import numpy as np
import pytest
import shard_models
import torch
from group_members import Members
from group_runs import GroupRun, Outcome, exchanged_by_formula, train_alone, train_member

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.torch.strategies.shard_links import ShardLinks

pytestmark = pytest.mark.slow
LOADED = ("group_runs", "group_models", "shard_models", "cerebro_spark.trainer.torch.trainer")
SHARD = {"strategy": "shard"}


@pytest.fixture(scope="module")
def members() -> Iterator[Members]:
    torch.set_num_threads(1)
    made = Members(3, LOADED)
    yield made
    made.close()


def in_parts(run: GroupRun) -> GroupRun:
    return replace(run, resources={**(run.resources or {}), **SHARD})


def trained(members: Members, run: GroupRun) -> list[Outcome]:
    outcomes = members.run(train_member, in_parts(run), size=len(run.rows))
    assert all(isinstance(outcome, Outcome) for outcome in outcomes), outcomes
    assert len({outcome.digest for outcome in outcomes}) == 1
    return outcomes


@pytest.mark.parametrize("case", sorted(models.EXACT.keys() - {"branching"}))
def test_a_group_in_parts_trains_what_one_process_trains(members: Members, case: str) -> None:
    kind, model_fn = models.EXACT[case]
    run = GroupRun(model_fn, kind, rows=(301, 212), batch=32, epochs=3)
    first, second = trained(members, run)
    one = train_alone(run)
    assert first.metrics == second.metrics
    assert np.abs(first.weights - one.weights).max() <= (1e-5 if case == "adam" else 1e-6)
    for found, expected in zip(first.metrics, one.metrics, strict=True):
        assert found.weights == expected.weights
        assert found.sums == pytest.approx(expected.sums, rel=1e-5)
        assert found.states == expected.states


@pytest.mark.parametrize("case", sorted(shard_models.EXACT))
def test_models_of_blocks(members: Members, case: str) -> None:
    kind, model_fn = shard_models.EXACT[case]
    run = GroupRun(model_fn, kind, rows=(430, 370), batch=16)
    one = train_alone(run)
    for outcome in trained(members, run):
        assert np.abs(outcome.weights - one.weights).max() <= 1e-5
    assert np.abs(one.weights - train_alone(replace(run, rows=(43, 37))).weights).max() > 1e-3


@pytest.mark.parametrize("name", sorted(shard_models.OPTIMIZERS))
def test_optimizers_keep_their_state_in_parts(members: Members, name: str) -> None:
    run = GroupRun(models.make(shard_models.Blocks, optimizer=shard_models.OPTIMIZERS[name]), rows=(120, 100))
    outcome, _ = trained(members, run)
    assert np.abs(outcome.weights - train_alone(run).weights).max() <= 1e-4
    # What it keeps is whole again: one process goes on with it as with its own.
    found, expected = (train_alone(run.after(each, first=2)) for each in (outcome, train_alone(run)))
    assert np.abs(found.weights - expected.weights).max() <= 1e-4


@pytest.mark.parametrize("rows", [(200, 120), (150, 97, 73)])
def test_members_exchange_parts_and_gradients(members: Members, rows: tuple[int, ...]) -> None:
    size, batch = len(rows), 16
    run = GroupRun(shard_models.EXACT["adam"][1], rows=rows, batch=batch)
    outcomes, longer = trained(members, run), trained(members, replace(run, rows=[2 * own for own in rows]))
    assert len({outcome.exchanged[0] for outcome in outcomes}) == 1
    steps = sum(rows) // batch
    noted = [exchanged_by_formula(run.rows, batch, 0, each)[0] for each in (outcomes, longer)]
    in_steps = longer[0].exchanged[0] - noted[1] - (outcomes[0].exchanged[0] - noted[0])
    assert in_steps % steps == 0
    shapes = [parameter.shape for parameter in run.model_fn({}).module.parameters()]
    weights = 4 * sum(shape.numel() for shape in shapes)
    padded = 4 * sum(-(-shape[0] // size) * size * shape[1:].numel() for shape in shapes)
    # Parameters are gathered once, and most of them again for the gradients, which gloo adds up by going around twice.
    # Before each of these members compare what they are about to do, and then who has which gradients.
    hops, parts = size - 1, 5
    agreed = 2 * 8 * size * (3 * parts + 1) + 2 * 8 * len(shapes)
    assert hops * weights * (1 + 2) < in_steps // steps <= hops * (padded * (2 + 2) + agreed)
    # In the end they gather the parameters with two moments of each, and say of what kind these are.
    at_end, said = outcomes[0].exchanged[0] - noted[0] - in_steps, 200 * len(shapes)
    assert hops * weights * 3 < at_end < hops * (padded * 3 + 2 * size * said)


def test_a_trial_hops_between_parts_and_a_whole(members: Members) -> None:
    run = GroupRun(shard_models.EXACT["adam"][1], rows=(90, 75, 33))
    first, *_ = trained(members, run)
    alone = train_alone(run.after(first, first=2))
    again, *_ = trained(members, run.after(alone, first=3))
    whole = members.run(train_member, run.after(again, first=4), size=3)[0]
    expected = train_alone(replace(run, epochs=4))
    assert np.abs(whole.weights - expected.weights).max() <= 1e-5
    assert len(first.checkpoint) == len(train_alone(run).checkpoint)


def test_the_same_units_leave_the_same_bits(members: Members) -> None:
    run = GroupRun(models.DROPOUT, rows=(100, 61, 80), epochs=2)
    once, again = trained(members, run), trained(members, run)
    assert [outcome.checkpoint for outcome in once] == [outcome.checkpoint for outcome in again]


def test_members_without_rows_add_nothing(members: Members) -> None:
    run = GroupRun(models.make(shard_models.Blocks, optimizer=models.adam), rows=(70, 0, 3), epochs=2)
    outcome, *_ = trained(members, run)
    assert np.abs(outcome.weights - train_alone(run).weights).max() <= 1e-5
    dropping = replace(run, model_fn=models.DROPOUT, rows=(0, 64), epochs=1)
    first, _ = trained(members, dropping)
    started = train_alone(replace(dropping, rows=(0, 0), epochs=0))
    assert first.drawn == started.drawn, "for rows that are not there nothing is drawn"


def refused(members: Members, model_fn: Any) -> str:
    (said,) = {text.partition(": it is")[0] for text in members.run(refuse_member, in_parts(GroupRun(model_fn)))}
    return str(said)


def refuse_member(meeting: Any, run: GroupRun) -> str:
    """Return why a member did not train."""
    from cerebro_spark.errors import ConfigurationError

    try:
        return f"trained: {train_member(meeting, run)}"
    except ConfigurationError as error:
        return str(error)


@pytest.mark.parametrize("case", sorted(shard_models.REFUSED))
def test_what_cannot_be_in_parts_is_refused_before_a_group_is_there(case: str) -> None:
    model_fn, reason = shard_models.REFUSED[case]
    with pytest.raises(ConfigurationError, match="strategy is 'shard', but trial t cannot be in parts") as error:
        train_alone(in_parts(GroupRun(model_fn)))
    assert reason in str(error.value)


@pytest.mark.parametrize("case", sorted(shard_models.REFUSED_BY_GROUPS))
def test_what_only_training_shows_is_refused_by_name(members: Members, case: str) -> None:
    model_fn, reason = shard_models.REFUSED_BY_GROUPS[case]
    said = refused(members, model_fn)
    assert said.startswith("strategy is 'shard', but no group can train trial t exactly: ")
    assert reason in said
    # Nothing is left of it: the same processes train the next trial.
    trained(members, GroupRun(shard_models.EXACT["sgd"][1], rows=(20, 20)))


def test_one_worker_trains_the_whole(caplog: pytest.LogCaptureFixture) -> None:
    run = GroupRun(shard_models.EXACT["adam"][1], epochs=2)
    expected = train_alone(run).digest
    with caplog.at_level(logging.INFO, "cerebro_spark"):
        assert train_alone(in_parts(run)).digest == expected
    (said,) = [record.getMessage() for record in caplog.records if "as a whole" in record.getMessage()]
    assert said.startswith("Blocks with batches of 16 trains as a whole by strategy 'plain' in a unit for which there")


def test_gradients_are_never_averaged_by_the_links() -> None:
    """Gloo adds up where FSDP asks for a mean, and says nothing (pytorch#162338)."""
    links: Any = SimpleNamespace(rank=0, size=2)
    group = ShardLinks(links, 1, [False])
    options: Any = torch.distributed.ReduceScatterOptions()
    options.reduceOp = torch.distributed.ReduceOp.AVG
    with pytest.raises(AssertionError, match="gradients are to be added up"):
        group._reduce_scatter_base(torch.zeros(1), torch.zeros(2), options)
