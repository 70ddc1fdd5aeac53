"""Groups of PyTorch trainers, in processes of their own, against one trainer with the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import group_models as models
import numpy as np
import pytest
import torch
from group_members import Members
from group_runs import GroupRun, Outcome, exchanged_by_formula, train_alone, train_member

pytestmark = pytest.mark.slow
LOADED = ("group_runs", "group_models", "cerebro_spark.trainer.torch.trainer")


@pytest.fixture(scope="module")
def members() -> Iterator[Members]:
    torch.set_num_threads(1)
    made = Members(3, LOADED)
    yield made
    made.close()


def trained(members: Members, run: GroupRun) -> list[Outcome]:
    outcomes = members.run(train_member, run, size=len(run.rows))
    assert all(isinstance(outcome, Outcome) for outcome in outcomes), outcomes
    assert len({outcome.digest for outcome in outcomes}) == 1
    return outcomes


def refused(members: Members, run: GroupRun) -> set[str]:
    outcomes = members.run(train_member, run, size=len(run.rows))
    assert all(isinstance(outcome, str) for outcome in outcomes), outcomes
    return set(outcomes)


@pytest.mark.parametrize("case", sorted(models.EXACT))
def test_a_group_trains_what_one_process_trains(members: Members, case: str) -> None:
    kind, model_fn = models.EXACT[case]
    run = GroupRun(model_fn, kind, rows=(301, 212), batch=32, epochs=3)
    first, second = trained(members, run)
    one = train_alone(run)
    assert first.metrics == second.metrics
    assert np.abs(first.weights - one.weights).max() <= (1e-5 if case == "adam" else 1e-6)
    assert not np.array_equal(first.weights, train_alone(replace(run, epochs=1)).weights)
    for found, expected in zip(first.metrics, one.metrics, strict=True):
        assert found.weights == expected.weights
        assert found.sums == pytest.approx(expected.sums, rel=1e-5)
        assert found.states == expected.states


def test_three_members_with_partitions_of_any_size(members: Members) -> None:
    run = GroupRun(models.EXACT["momentum"][1], rows=(200, 97, 3), batch=24, epochs=4)
    outcome, *_ = trained(members, run)
    assert np.abs(outcome.weights - train_alone(run).weights).max() <= 1e-6


@pytest.mark.parametrize("rows", [(301, 212), (200, 97, 3), (70, 0)])
@pytest.mark.parametrize("model_fn", [models.EXACT["momentum"][1], models.BFLOAT16], ids=["float32", "bfloat16"])
def test_what_members_exchange_is_what_the_formula_says(members: Members, model_fn: Any, rows: tuple[int, ...]) -> None:
    run = GroupRun(model_fn, rows=rows, batch=24, epochs=2)
    outcomes = trained(members, run)
    parameters = list(model_fn({}).module.parameters())
    # Each number in float32, and for each parameter how many have a gradient of it.
    summed = 4 * (sum(parameter.numel() for parameter in parameters) + len(parameters))
    expected = exchanged_by_formula(rows, run.batch, summed, outcomes)
    assert [outcome.exchanged for outcome in outcomes] == [expected] * len(rows)


def test_a_member_without_a_row(members: Members) -> None:
    run = GroupRun(models.EXACT["adam"][1], rows=(70, 0), epochs=2)
    outcome, _ = trained(members, run)
    assert np.abs(outcome.weights - train_alone(run).weights).max() <= 1e-6


def test_the_last_batch_is_no_single_row(members: Members) -> None:
    run = GroupRun(models.EXACT["sgd"][1], rows=(33, 32), batch=16)
    outcome, _ = trained(members, run)
    assert run.whole(1).sizes == [16, 16, 16, 17]
    assert np.abs(outcome.weights - train_alone(run).weights).max() <= 1e-6


def test_the_same_units_leave_the_same_bits(members: Members) -> None:
    for model_fn in (models.EXACT["adam"][1], models.DROPOUT):
        run = GroupRun(model_fn, rows=(100, 61, 80), epochs=2)
        once, again = trained(members, run), trained(members, run)
        assert [outcome.checkpoint for outcome in once] == [outcome.checkpoint for outcome in again]


def test_members_drop_other_units(members: Members) -> None:
    run = GroupRun(
        models.DROPOUT, rows=(100, 100), change=lambda arrays: {n: a[:1].repeat(100, 0) for n, a in arrays.items()}
    )
    first, second = trained(members, run)
    assert first.drawn != second.drawn
    alone = train_alone(run)
    assert np.abs(first.weights - alone.weights).max() > 1e-4, "dropout draws otherwise than in one process"
    # The generators of rank 0 are the trial's own: with all rows at rank 0, they draw what one process draws.
    first, second = trained(members, replace(run, rows=(100, 0)))
    assert first.drawn == train_alone(replace(run, rows=(100, 0))).drawn != second.drawn


def test_what_a_group_leaves_goes_on_alone_and_hops(members: Members) -> None:
    run = GroupRun(models.EXACT["by_epoch"][1], rows=(90, 75), epochs=2)
    outcome, other = trained(members, run)
    alone = train_alone(run.after(outcome, first=3))
    assert train_alone(run.after(outcome, first=3)).digest == alone.digest
    again, _ = trained(members, run.after(outcome, first=3, epochs=1))
    assert np.abs(again.weights - train_alone(run.after(outcome, first=3, epochs=1)).weights).max() <= 1e-6
    assert other.digest == outcome.digest


def test_parameters_below_float32_are_added_up_in_float32(members: Members) -> None:
    run = GroupRun(models.BFLOAT16, rows=(100, 100), epochs=1)
    outcome, _ = trained(members, run)
    assert np.abs(outcome.weights - train_alone(run).weights).max() <= 2e-3


def test_mixed_precision_trains_in_groups(members: Members) -> None:
    run = GroupRun(models.EXACT["sgd"][1], resources={"precision": "bfloat16"}, rows=(100, 100), epochs=2)
    outcome, _ = trained(members, run)
    assert np.abs(outcome.weights - train_alone(run).weights).max() <= 2e-2


@pytest.mark.parametrize("case", sorted(models.REFUSED))
def test_what_no_group_trains_exactly_is_refused_by_name(members: Members, case: str) -> None:
    kind, model_fn, hooks, reason = models.REFUSED[case]
    (said,) = {text.partition(": it is")[0] for text in refused(members, GroupRun(model_fn, kind, hooks=hooks))}
    assert said.startswith("GroupRefused: no group can train trial t exactly: ")
    assert reason.partition(": it is")[0] in said


def test_a_refusal_does_not_wait_for_others(members: Members) -> None:
    _, model_fn, _, _ = models.REFUSED["batchnorm"]
    members.begin(train_lonely, GroupRun(model_fn), size=1)
    assert "BatchNorm" in members.take(0)


def train_lonely(meeting: Any, run: GroupRun) -> Any:
    meeting.size = 2
    return train_member(meeting, run)


def test_members_that_learn_different_things_say_so_alike(members: Members) -> None:
    (said,) = refused(members, GroupRun(models.NOISY))
    assert "its members ended a unit with different states, at 'model/parameters/0." in said


def test_labels_that_the_loss_leaves_out_are_found_in_the_end(members: Members) -> None:
    def ignore_last(arrays: Any) -> Any:
        return {
            **arrays,
            "label": np.where(np.arange(len(arrays["label"])) < len(arrays["label"]) - 1, arrays["label"] % 2, 2),
        }

    (said,) = refused(members, GroupRun(models.IGNORING, "classes", change=ignore_last, rows=(300, 300), batch=8))
    assert "its loss leaves labels out (ignore_index), 1 in a unit, so that it is no mean over rows" in said


def test_a_loss_that_is_nearly_a_mean_in_large_batches_is_refused(members: Members) -> None:
    (said,) = {
        text.partition(": it is")[0] for text in refused(members, GroupRun(models.ROOT, rows=(600, 600), batch=256))
    }
    assert said.endswith("its loss is no mean over rows")


def test_a_loss_that_leaves_out_rows_of_few_batches_is_refused_in_the_end(members: Members) -> None:
    def leave_out(arrays: Any) -> Any:
        return {**arrays, "label": np.where(np.arange(len(arrays["label"])) == 9, -1, arrays["label"])}

    run = GroupRun(models.COUNTING, rows=(300, 300), change=leave_out)
    (said,) = refused(members, run)
    assert "its loss is no mean over rows: the means of two parts of a batch differ from it by" in said
    outcome, _ = trained(members, replace(run, change=None))
    assert np.abs(outcome.weights - train_alone(replace(run, change=None)).weights).max() <= 1e-6


def test_a_loss_by_token_is_a_mean_over_rows_of_one_length(members: Members) -> None:
    def label_tokens(arrays: Any) -> Any:
        return {**arrays, "label": arrays["tokens"] % 3}

    run = GroupRun(models.BY_TOKEN, "tokens", rows=(90, 75), change=label_tokens, epochs=2)
    outcome, _ = trained(members, run)
    assert np.abs(outcome.weights - train_alone(run).weights).max() <= 1e-6
    assert outcome.metrics[0].weights["loss"] == 165 * 6

    def leave_out(arrays: Any) -> Any:
        labels = arrays["tokens"] % 3
        labels[-1, 4:] = -100
        return {**arrays, "label": labels}

    (said,) = refused(members, replace(run, change=leave_out, rows=(200, 200), batch=8))
    assert "its loss leaves labels out (ignore_index), 2 in a unit" in said


@pytest.mark.parametrize("rare", [False, True], ids=["often", "rarely"])
def test_an_input_fn_that_trims_a_batch_to_its_longest_row_is_refused(members: Members, rare: bool) -> None:
    def shorten(arrays: Any) -> Any:
        rows = np.arange(len(arrays["label"]))
        lengths = np.where(rows == len(rows) - 1, 6, 5) if rare else rows % 5 + 2
        return {**arrays, "tokens": np.where(np.arange(6) < lengths[:, None], arrays["tokens"] % 19 + 1, 0)}

    run = GroupRun(models.POOLING, "tokens", hooks={"input_fn": models.trim}, change=shorten, rows=(300, 300), batch=8)
    said = refused(members, run)
    assert any("its input_fn makes " in text and "of 'tokens'" in text for text in said)
    assert all(text.startswith(("GroupRefused: no group can train trial t exactly", "GroupBroken")) for text in said)
