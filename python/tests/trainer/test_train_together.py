"""Bundles leave what single units leave: every byte of every checkpoint, and all metrics."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
from bundle_cases import REFUSED, STACKED, net, with_module
from bundle_runs import describe, make_member, make_trainer, params_of, reasons, train_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torchmetrics.classification import BinaryAUROC, BinaryRecall
from trainer_cases_torch import Largest, Precision, accumulating, accuracy

from cerebro_spark.errors import TrialFailed
from cerebro_spark.trainer import Feed, TorchModel
from cerebro_spark.trainer.base import TrainedMember, Trainer

UNITS = [(1, 0), (1, 1), (2, 0)]
QUICK = ("adam", "dropout", "batch_norm", "host_noise", "branch", "reading")
"""The cases that are tried by the fast tests too."""
ALL = os.environ.get("CEREBRO_BUNDLES") == "all"
"""Whether all is tried with each number of threads: `make test-bundles`."""
THREADED = (
    *("adam", "dropout", "batch_norm", "layer_norm", "smooth"),
    *("embedding", "transformer_dropout", "cnn", "several"),
)
"""One case for each kind of kernel. Most arrays are too small for two threads; those of the next test are not."""


def cases(names: Iterable[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def train_both(
    model_fn: Any, kind: str, width: int, threads: int = 1, **hooks: Any
) -> tuple[list[Any], list[Any], Any]:
    """Several units of some trials, in bundles and alone."""
    bundled, single = make_trainer(model_fn, kind, threads, **hooks), make_trainer(model_fn, kind, threads, **hooks)
    together: list[Any] = [None] * width
    alone: list[Any] = [None] * width
    seen, wanted = [], []
    for epoch, partition in UNITS:
        members = [make_member(kind, i, epoch, partition, together[i]) for i in range(width)]
        together = bundled.train_together(members)
        alone = train_alone(single, [make_member(kind, i, epoch, partition, alone[i]) for i in range(width)])
        seen += together
        wanted += alone
    return seen, wanted, bundled


@pytest.mark.parametrize("case", cases(STACKED))
def test_a_stack_leaves_the_bits_of_single_units(case: str) -> None:
    check_stack(case, threads=1)


@pytest.mark.slow
@pytest.mark.parametrize("case", STACKED if ALL else THREADED)
def test_a_stack_on_two_threads_leaves_the_bits_of_single_units(case: str) -> None:
    check_stack(case, threads=2)


def check_stack(case: str, threads: int) -> None:
    seen, wanted, trainer = train_both(*STACKED[case], width=4, threads=threads)

    assert reasons(trainer) == []
    assert {outcome.width for outcome in seen} == {4}
    assert [describe(outcome) for outcome in seen] == [describe(outcome) for outcome in wanted]


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [256, 301])
def test_members_that_threads_share_are_exact(hidden: int) -> None:
    """Arrays of this size are computed by several threads, which cut them at other places when they are stacked."""

    def make() -> nn.Module:
        smooth = [nn.GELU(), nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.Sigmoid(), nn.Dropout(0.2)]
        return net(*smooth, hidden=hidden)

    model_fn = with_module(make, clip_norm=0.5)
    trainer, single = make_trainer(model_fn, "tabular", threads=2), make_trainer(model_fn, "tabular", threads=2)
    members = [make_member("tabular", i, 1, 0, None, rows=650, size=200) for i in range(3)]
    together = trainer.train_together(members)

    assert [getattr(outcome, "width", outcome) for outcome in together] == [3, 3, 3]
    assert list(map(describe, together)) == list(map(describe, train_alone(single, members)))


@pytest.mark.parametrize("case", cases(REFUSED))
def test_what_is_not_stacked_is_trained_one_by_one(case: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cerebro_spark.trainer.torch.stacked.structures")
    model_fn, kind, reason = REFUSED[case]
    seen, wanted, trainer = train_both(model_fn, kind, width=2)

    assert {outcome.width for outcome in seen} == {1}
    assert [describe(outcome) for outcome in seen] == [describe(outcome) for outcome in wanted]
    assert reason in reasons(trainer)[0]
    assert f"are trained one by one: {reasons(trainer)[0]}" in caplog.text


@pytest.mark.parametrize(
    ("hooks", "reason"),
    [({"train_fn": accumulating}, "train_fn"), ({"input_fn": lambda batch, params: dict(batch)}, "input_fn")],
)
def test_searches_with_own_loops_are_not_stacked(hooks: Any, reason: str) -> None:
    seen, wanted, trainer = train_both(with_module(net), "tabular", width=2, **hooks)

    assert {outcome.width for outcome in seen} == {1}
    assert [describe(outcome) for outcome in seen] == [describe(outcome) for outcome in wanted]
    assert reason in reasons(trainer)[0]


def test_metrics_of_all_kinds_are_those_of_single_units() -> None:
    def model_fn(params: Any) -> TorchModel:
        kinds: Any = {"precision": Precision, "largest": Largest, "auroc": BinaryAUROC, "recall": BinaryRecall}
        metrics = {"accuracy": accuracy, **{name: kind() for name, kind in kinds.items()}}
        module = net(nn.BatchNorm1d(16))
        return TorchModel(module, torch.optim.Adam(module.parameters(), params["lr"]), nn.BCEWithLogitsLoss(), metrics)

    seen, wanted, _ = train_both(model_fn, "tabular", width=3)

    assert {outcome.width for outcome in seen} == {3}
    assert [describe(outcome) for outcome in seen] == [describe(outcome) for outcome in wanted]


def test_a_schedule_that_draws_is_not_stacked() -> None:
    def model_fn(params: Any) -> TorchModel:
        module = net(nn.Dropout(0.5))
        optimizer = torch.optim.SGD(module.parameters(), lr=params["lr"])
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(torch.rand(())))
        return TorchModel(module, optimizer, nn.BCEWithLogitsLoss(), lr_scheduler=schedule, scheduler_step="batch")

    seen, wanted, _ = train_both(model_fn, "tabular", width=2)

    assert {outcome.width for outcome in seen} == {1}
    assert [describe(outcome) for outcome in seen] == [describe(outcome) for outcome in wanted]


class Anneal(nn.Module):
    """Changes in every step what no checkpoint saves."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        return x * 0.99**self.steps


def test_unsaved_changes_fail_each_member() -> None:
    trainer, single = (make_trainer(with_module(lambda: net(Anneal())), "tabular") for _ in range(2))
    members = [make_member("tabular", i, 1, 0, None) for i in range(3)]
    together, alone = trainer.train_together(members), train_alone(single, members)

    assert [str(outcome) for outcome in together] == [str(outcome) for outcome in alone]
    assert all(isinstance(outcome, TrialFailed) and "Anneal.steps" in str(outcome) for outcome in together)


def test_a_warm_start_and_trials_of_different_ages_are_stacked() -> None:
    model_fn, kind = STACKED["adamw"]
    trainer, single = make_trainer(model_fn, kind), make_trainer(model_fn, kind)
    [old, other] = train_alone(single, [make_member(kind, i, 1, 0, None) for i in range(2)])
    [older] = train_alone(single, [make_member(kind, 0, 1, 1, old)])
    members = [
        make_member(kind, 0, 2, 0, older),
        make_member(kind, 1, 2, 0, old, warm_start=True),
        make_member(kind, 2, 2, 0, None),
        make_member(kind, 1, 2, 0, other),
    ]
    together = trainer.train_together(members)

    assert [outcome.width for outcome in together if isinstance(outcome, TrainedMember)] == [4] * 4
    assert list(map(describe, together)) == list(map(describe, train_alone(single, members)))


def test_members_of_other_structures_are_stacked_by_structure() -> None:
    def model_fn(params: Any) -> TorchModel:
        module = net(hidden=int(params["hidden"]))
        return TorchModel(module, torch.optim.Adam(module.parameters(), params["lr"]), nn.BCEWithLogitsLoss())

    trainer, single = make_trainer(model_fn, "tabular"), make_trainer(model_fn, "tabular")
    sizes = [(8, 16), (12, 16), (8, 16), (8, 20), (12, 16), (8, 20), (4, 16)]
    members = [
        make_member("tabular", i, 1, 0, None, size=size, params={"lr": 0.01, "hidden": hidden})
        for i, (hidden, size) in enumerate(sizes)
    ]
    together = trainer.train_together(members)

    assert [outcome.width for outcome in together if isinstance(outcome, TrainedMember)] == [2, 2, 2, 2, 2, 2, 1]
    assert list(map(describe, together)) == list(map(describe, train_alone(single, members)))


def test_a_member_that_cannot_be_loaded_fails_alone() -> None:
    model_fn, kind = STACKED["adam"]
    trainer, single = make_trainer(model_fn, kind), make_trainer(model_fn, kind)
    members = [make_member(kind, i, 1, 0, None) for i in range(2)]
    members.append(make_member(kind, 2, 1, 0, None, source=b"no checkpoint"))
    together = trainer.train_together(members)

    assert [getattr(outcome, "width", None) for outcome in together] == [2, 2, None]
    assert list(map(describe, together)) == list(map(describe, train_alone(single, members)))


def test_short_units_and_other_feeds_are_trained_one_by_one() -> None:
    model_fn, kind = STACKED["adam"]
    trainer, single = make_trainer(model_fn, kind), make_trainer(model_fn, kind)
    members = [make_member(kind, i, 1, 0, None, rows=9) for i in range(2)]
    feed = members[0].feed
    assert isinstance(feed, Feed)

    assert [describe(outcome) for outcome in trainer.train_together(members)] == list(
        map(describe, train_alone(single, members))
    )
    assert trainer.train_together([]) == []


def test_the_contract_itself_trains_one_by_one() -> None:
    model_fn, kind = STACKED["adam"]
    trainer, single = make_trainer(model_fn, kind), make_trainer(model_fn, kind)
    members = [make_member(kind, i, 1, 0, None) for i in range(2)]
    plain = Trainer.train_together(trainer, members)

    assert list(map(describe, plain)) == list(map(describe, train_alone(single, members)))
    assert trainer.holds("t1", plain[1].saved.digest)  # type: ignore[union-attr]


def test_after_a_bundle_its_last_member_is_current() -> None:
    model_fn, kind = STACKED["adam"]
    trainer = make_trainer(model_fn, kind)
    together = trainer.train_together([make_member(kind, i, 1, 0, None) for i in range(3)])

    assert trainer.holds("t2", together[2].saved.digest)  # type: ignore[union-attr]


# Any bundle

TRIALS = 6


def exploding(params: Any) -> TorchModel:
    module = net(nn.Dropout(0.3), nn.BatchNorm1d(16))
    optimizer = torch.optim.SGD(module.parameters(), lr=params["lr"], momentum=params["momentum"])
    return TorchModel(module, optimizer, nn.MSELoss())


def trial_params(number: int) -> dict[str, float]:
    rates = {**params_of(number), "momentum": 0.9 if number % 3 else 0.0}
    return {**rates, "lr": 1e30} if number == 4 else rates


class World:
    """One trainer for bundles, one for single units, and what single units left."""

    def __init__(self) -> None:
        self.bundled, self.single = make_trainer(exploding, "tabular"), make_trainer(exploding, "tabular")
        self._alone: dict[Any, Any] = {}

    def member(self, number: int, epoch: int, rows: int, **more: Any) -> Any:
        parent = self.alone(number, epoch - 1, rows) if epoch > 1 else None
        if isinstance(parent, Exception):
            parent = None
        return make_member("tabular", number, epoch, 0, parent, rows=rows, params=trial_params(number), **more)

    def alone(self, number: int, epoch: int, rows: int) -> Any:
        key = number, epoch, rows
        if key not in self._alone:
            self._alone[key] = train_alone(self.single, [self.member(number, epoch, rows)])[0]
        return self._alone[key]


_worlds: list[World] = []


@pytest.mark.slow
@settings(deadline=None, derandomize=True, max_examples=200 if ALL else 25)
@given(
    st.lists(st.tuples(st.integers(0, TRIALS - 1), st.integers(1, 2)), min_size=2, max_size=6, unique=True),
    st.sampled_from([None, 2, 3]),
    st.sampled_from([48, 50, 65]),
)
def test_who_else_is_in_the_bundle_changes_nothing(who: list[tuple[int, int]], limit: int | None, rows: int) -> None:
    """Members come and go, diverge, are split into stacks of any width, and take any place in them."""
    if not _worlds:
        _worlds.append(World())
    world = _worlds[0]
    for structure in world.bundled.structures.values():
        structure.limit = limit
    together = world.bundled.train_together([world.member(number, epoch, rows) for number, epoch in who])
    wanted = [world.alone(number, epoch, rows) for number, epoch in who]

    assert list(map(describe, together)) == list(map(describe, wanted))
    assert [isinstance(outcome, TrialFailed) for outcome in together] == [number == 4 for number, _ in who]
    assert reasons(world.bundled) == []
