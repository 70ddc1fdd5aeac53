"""Groups of Keras trainers, in processes of their own, against one trainer with the same batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from group_members import Members
from group_runs import Outcome, exchanged_by_formula
from keras_group_runs import refuse_case, train_case, train_case_alone, train_lonely, train_without_torch
from trainer_process import HERE
from unimported import keys_in

from cerebro_spark.trainer.checkpoints.reading import open_checkpoint

# Importing TensorFlow alone takes seconds.
pytestmark = pytest.mark.slow
STEPS: Any = {"rows": (301, 212), "batch": 32, "epochs": 3}
# The last batch has one row more, since none may have a single row. Most steps have no row of the second member.
UNEVEN: Any = {"rows": (70, 3), "batch": 12, "epochs": 2}


def names_in(table: str) -> list[str]:
    return keys_in(HERE / "keras_group_models.py", table)


@pytest.fixture(scope="module")
def members() -> Iterator[Members]:
    made = Members(2, None, {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"})
    yield made
    made.close()


@pytest.fixture(scope="module")
def on_torch() -> Iterator[Members]:
    made = Members(2, None, {"KERAS_BACKEND": "torch"})
    yield made
    made.close()


def trained(members: Members, case: str, table: str = "EXACT", **changes: Any) -> list[Outcome]:
    """What each member has in the end."""
    outcomes = members.run(lambda meeting: train_case(meeting, table, case, **changes))
    assert all(isinstance(outcome, Outcome) for outcome in outcomes), outcomes
    assert learned(outcomes[0]) == learned(outcomes[1])
    assert outcomes[0].metrics == outcomes[1].metrics
    return outcomes


def alone(members: Members, case: str, table: str = "EXACT", **changes: Any) -> Outcome:
    """What one process has in the end."""
    (outcome,) = members.run(lambda meeting: train_case_alone(meeting, table, case, **changes), size=1)
    assert isinstance(outcome, Outcome)
    return outcome


def learned(outcome: Outcome) -> dict[str, bytes]:
    """All arrays of a state but those of generators, which members other than rank 0 have otherwise."""
    with open_checkpoint(outcome.checkpoint, digest=outcome.digest) as reader:
        arrays = {name: bytes(reader.read(name)) for name in reader.names()}
    drawn = ("seed_generator_state", "default_seed")
    return {name: data for name, data in arrays.items() if not name.startswith("rng/") and not name.endswith(drawn)}


def furthest(outcome: Outcome, other: Outcome) -> float:
    return float(np.abs(outcome.weights - other.weights).max())


def check_exact(members: Members, case: str, **changes: Any) -> None:
    first, _ = trained(members, case, **changes)
    one = alone(members, case, **changes)
    assert furthest(first, one) <= (1e-5 if case.startswith("adam") else 1e-6)
    for found, expected in zip(first.metrics, one.metrics, strict=True):
        assert found.weights == pytest.approx(expected.weights, rel=1e-6)
        assert found.sums == pytest.approx(expected.sums, rel=1e-5)
        assert found.states == expected.states


@pytest.mark.parametrize("case", names_in("EXACT"))
def test_a_group_trains_what_one_process_trains(members: Members, case: str) -> None:
    check_exact(members, case, **STEPS)


def check_exchanged(members: Members, case: str, summed: int) -> None:
    outcomes = trained(members, case, rows=(64, 64), batch=32, epochs=2)
    expected = exchanged_by_formula((64, 64), 32, summed, outcomes)
    assert [outcome.exchanged for outcome in outcomes] == [expected] * 2


DENSE = 4 * (8 * 16 + 16 + 16 + 1)
"""The bytes of the weights of `sgd`."""


def test_what_members_exchange_is_what_the_formula_says(members: Members) -> None:
    check_exchanged(members, "sgd", DENSE)


def test_rows_of_embeddings_are_exchanged_as_they_are(members: Members) -> None:
    tokens = 16 * 6  # of a member's share of a batch
    rows = 8 + tokens * (4 * 6 + 4)  # how many there are, then each with its place
    check_exchanged(members, "adam_rows", 4 * (36 + 1) + 2 * 8 + 2 * rows)


@pytest.mark.parametrize("case", ["adam_rows", "paced"])
def test_members_without_rows_take_the_same_steps(members: Members, case: str) -> None:
    check_exact(members, case, **UNEVEN)


def test_a_member_whose_partition_is_empty(members: Members) -> None:
    check_exact(members, "adam_rows", rows=(40, 0))


def test_steps_that_are_compiled(members: Members) -> None:
    run: Any = {"table": "OTHERS", "rows": (64, 64), "batch": 32}
    first, _ = trained(members, "compiled", **run)
    assert furthest(first, alone(members, "compiled", **run)) <= 1e-6


def test_members_draw_other_numbers_and_the_same_units_leave_the_same_bits(members: Members) -> None:
    run: Any = {"table": "OTHERS", "rows": (100, 61)}
    once, again = trained(members, "drawing", **run), trained(members, "drawing", **run)
    assert [outcome.checkpoint for outcome in once] == [outcome.checkpoint for outcome in again]
    assert once[0].digest != once[1].digest, "their generators are others"
    assert furthest(once[0], alone(members, "drawing", **run)) > 1e-4, "other units are dropped than in one process"


def test_with_all_rows_at_rank_0_random_numbers_are_those_of_one_process(members: Members) -> None:
    run: Any = {"table": "OTHERS", "rows": (100, 0)}
    first, _ = trained(members, "drawing", **run)
    assert furthest(first, alone(members, "drawing", **run)) <= 1e-6


def test_what_a_group_leaves_goes_on_alone_and_in_groups(members: Members) -> None:
    first, _ = trained(members, "penalized", rows=(90, 75), epochs=2)
    later: Any = {"source": (first.checkpoint, first.digest), "first": 3, "rows": (90, 75)}
    again, _ = trained(members, "penalized", **later)
    assert furthest(again, alone(members, "penalized", **later)) <= 1e-6 < furthest(again, first)


@pytest.mark.parametrize("case", ["float16", "bfloat16"])
def test_narrow_numbers_are_added_up_in_float32(members: Members, case: str) -> None:
    first, _ = trained(members, case, "OTHERS", rows=(100, 100))
    assert furthest(first, alone(members, case, "OTHERS", rows=(100, 100))) <= 2e-2


def check_refused(members: Members, case: str) -> None:
    said = members.run(lambda meeting: refuse_case(meeting, case))
    for text, reasons in said:
        assert text.startswith(tuple(f"GroupRefused: no group can train trial t exactly: {each}" for each in reasons))


@pytest.mark.parametrize("case", names_in("REFUSED"))
def test_what_no_group_trains_exactly_is_refused_by_name(members: Members, case: str) -> None:
    check_refused(members, case)


def test_a_refusal_does_not_wait_for_others(members: Members) -> None:
    members.begin(lambda meeting: train_lonely(meeting, "REFUSED", "batchnorm"), size=1)
    assert "BatchNormalization" in members.take(0)


def test_members_that_learn_different_things_say_so_alike(members: Members) -> None:
    (said,) = set(members.run(lambda meeting: train_case(meeting, "OTHERS", "noisy", rows=(60, 50))))
    assert "its members ended a unit with different states, at 'model/model/000" in said


def test_without_pytorch_groups_are_refused_with_the_way_out(members: Members) -> None:
    members.begin(train_without_torch, size=1)
    assert "groups need PyTorch for the links between their members" in members.take(0)


# Keras on PyTorch.


@pytest.mark.parametrize("case", ["sgd", "decaying", "several"])
def test_a_group_on_pytorch_trains_what_one_process_trains(on_torch: Members, case: str) -> None:
    check_exact(on_torch, case, **STEPS)


def test_what_members_exchange_on_pytorch_is_what_the_formula_says(on_torch: Members) -> None:
    weights = 4
    check_exchanged(on_torch, "sgd", DENSE + 4 * weights)  # and how many members have a gradient of each


def test_members_without_rows_take_the_same_steps_on_pytorch(on_torch: Members) -> None:
    check_exact(on_torch, "paced", **UNEVEN)


@pytest.mark.parametrize("case", ["batchnorm", "sum", "added_sum", "training", "statistic", "clips_inside"])
def test_what_no_group_on_pytorch_trains_exactly_is_refused_by_name(on_torch: Members, case: str) -> None:
    check_refused(on_torch, case)


def leave_out(arrays: Any) -> Any:
    return {**arrays, "label": np.where(np.arange(len(arrays["label"])) == 9, -1, arrays["label"])}


def check_counted(members: Members) -> None:
    """A loss that leaves out rows of few batches is refused in the end; it is none if they leave out none."""
    run: Any = {"table": "OTHERS", "rows": (300, 300)}
    (said,) = set(
        members.run(lambda meeting: train_case(meeting, "OTHERS", "counting", rows=(300, 300), change=leave_out))
    )
    assert "its loss is no mean over rows: the means of two parts of a batch differ from it by" in said
    first, _ = trained(members, "counting", **run)
    assert furthest(first, alone(members, "counting", **run)) <= 1e-6


def test_a_loss_that_leaves_out_rows_of_few_batches_is_refused_in_the_end(members: Members) -> None:
    check_counted(members)


def test_a_loss_that_is_nearly_a_mean_in_large_batches_is_refused(members: Members) -> None:
    (said,) = {
        text.partition(": it is")[0]
        for text in members.run(lambda meeting: train_case(meeting, "OTHERS", "root", rows=(600, 600), batch=256))
    }
    assert said.endswith("its loss is no mean over rows")


def test_a_loss_that_leaves_out_rows_of_few_batches_is_refused_on_pytorch(on_torch: Members) -> None:
    check_counted(on_torch)
