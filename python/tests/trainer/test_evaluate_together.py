"""Trials that are evaluated together get what evaluations alone find, and leave no trace. Graphs are tapes here."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from bundle_cases import STACKED, Doubled, HostNoise, Jittered, Mean, net, with_module
from bundle_runs import params_of, shared_arrays, train_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from tapes import HostBranches, HostTrainer
from torch import nn
from trainer_cases_torch import Largest, Precision, accuracy
from trainer_data import columns

from cerebro_spark.trainer import Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.base import EvaluatedMember, Member, TrainedMember, Trainer
from cerebro_spark.trainer.torch import bundled, bundled_evaluation, graph_bundle
from cerebro_spark.trainer.torch.graph_evaluation import GraphEvaluation
from cerebro_spark.trainer.torch.places import Place
from cerebro_spark.types import Unit

ROWS, SIZE = 72, 16
POISON = b"no checkpoint"
"""A checkpoint that fails whoever reads it."""


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (bundled, bundled_evaluation):
        monkeypatch.setattr(module, "end_broken_recording", lambda device: None)
    monkeypatch.setattr(graph_bundle, "Branches", HostBranches)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def make_trainer(model_fn: Any, kind: str = "tabular", **hooks: Any) -> HostTrainer:
    made = HostTrainer(Hooks(model_fn, **hooks), columns(kind), seed=7, resources=Resources(device="cpu", threads=1))
    made.widths_are_tried = False
    return made


def feed_of(kind: str, rows: int = ROWS, size: int = SIZE) -> Feed:
    return Feed(shared_arrays(kind, 9, rows), batch_size=size, key="v")


def trained(model_fn: Any, kind: str, count: int, epoch: int = 1, **hooks: Any) -> list[Any]:
    """Trials after a unit, each trained alone."""
    members = [
        Member(Unit(f"t{number}", epoch, "p0"), params_of(number), feed_of(kind, 50), final=True)
        for number in range(count)
    ]
    return train_alone(make_trainer(model_fn, kind, **hooks), members)


def member_of(kind: str, number: int, parent: Any, **more: Any) -> Member:
    rows, size = more.pop("rows", ROWS), more.pop("size", SIZE)
    unit = Unit(f"t{number}", 1, "v", "eval")
    start: dict[str, Any] = (
        {} if parent is None else {"source": parent.checkpoint.getvalue(), "digest": parent.saved.digest}
    )
    options: dict[str, Any] = {"final": True, **start, **more}
    return Member(unit, options.pop("params", params_of(number)), feed_of(kind, rows, size), **options)


def found(outcome: Any) -> Any:
    """What must be the same, whoever else was evaluated. NaN equals NaN."""
    if isinstance(outcome, Exception):
        return type(outcome).__name__
    return repr((outcome.metrics, outcome.values))


def alone(trainer: Trainer, members: Sequence[Member]) -> list[Any]:
    return [found(trainer._evaluate_member(member)) for member in members]


def widths(outcomes: Sequence[Any]) -> list[Any]:
    return [outcome.width if isinstance(outcome, EvaluatedMember) else None for outcome in outcomes]


def check(model_fn: Any, kind: str, width: int = 3, expected: int | None = None, **hooks: Any) -> HostTrainer:
    """Evaluate some trials together, twice, and alone."""
    trainer, single = make_trainer(model_fn, kind, **hooks), make_trainer(model_fn, kind, **hooks)
    parents = trained(model_fn, kind, width, **hooks)
    members = [member_of(kind, number, parent) for number, parent in enumerate(parents)]
    wanted = alone(single, members)
    for _ in range(2):
        together = trainer.evaluate_together(members)
        assert list(map(found, together)) == wanted
        assert set(widths(together)) == {expected or width}
    return trainer


CASES = ("adam", "dropout", "rates", "batch_norm", "transformer_dropout", "cnn", "several", "weighted", "classes",
         "sum_loss", "noise", "tied")  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_found_is_what_evaluations_alone_find(case: str) -> None:
    model_fn, kind = STACKED[case]
    # Models that differ in fractions have structures of their own.
    check(model_fn, kind, expected=1 if case == "rates" else None)


def with_metrics(params: Any) -> TorchModel:
    kinds: Any = {"precision": Precision, "largest": Largest}
    metrics = {"accuracy": accuracy, **{name: kind() for name, kind in kinds.items()}}
    module = net(nn.BatchNorm1d(16))
    return TorchModel(module, torch.optim.Adam(module.parameters(), params["lr"]), nn.BCEWithLogitsLoss(), metrics)


def test_metrics_of_all_kinds_are_those_of_evaluations_alone() -> None:
    check(with_metrics, "tabular")


_largest: Any = Largest
SHARED = _largest()


def test_a_metric_object_that_all_trials_share_counts_for_each_by_itself() -> None:
    def model_fn(params: Any) -> TorchModel:
        module = net()
        metrics = {"largest": SHARED}
        return TorchModel(module, torch.optim.Adam(module.parameters(), params["lr"]), nn.BCEWithLogitsLoss(), metrics)

    trainer, single = make_trainer(model_fn), make_trainer(model_fn)
    members = [member_of("tabular", i, parent) for i, parent in enumerate(trained(model_fn, "tabular", 4))]
    together = trainer.evaluate_together(members)

    assert max(widths(together)) > 1  # at first its state tells models apart
    assert list(map(found, together)) == alone(single, members)


BACKBONE = nn.Linear(8, 8).requires_grad_(False)


def test_trials_that_share_tensors_are_evaluated_one_by_one() -> None:
    check(with_module(lambda: nn.Sequential(BACKBONE, net())), "tabular", expected=1)


def test_what_was_carried_goes_on() -> None:
    parents = trained(with_metrics, "tabular", 2)
    single, trainer = make_trainer(with_metrics), make_trainer(with_metrics)
    first = [single._evaluate_member(member_of("tabular", i, parent, final=False)) for i, parent in enumerate(parents)]
    carried = [outcome.metrics for outcome in first if isinstance(outcome, EvaluatedMember)]
    members = [member_of("tabular", i, parent, carried=carried[i]) for i, parent in enumerate(parents)]
    together = trainer.evaluate_together(members)

    assert list(map(found, together)) == alone(single, members)
    assert widths(together) == [2, 2]


# What a graph would freeze


class Counting(nn.Module):
    """Uses a number that it counts on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            return x
        self.count += 1
        return x * self.count


class Restless(nn.Module):
    """Counts on the host what nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += not self.training
        return x


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training or x.mean() > 0.2 else -x


class Projected(nn.Module):
    """Changes its parameter behind PyTorch's back."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            self.scale.data.mul_(0.5)
        return x * self.scale


FROZEN = {
    HostNoise: "draws random numbers on the host",
    Branching: "cannot be recorded",
    Mean: "would not do what its Python code does",
    Doubled: "changes its batch",
    Projected: "changes more of its state than its buffers",
}


@pytest.mark.parametrize("kind", FROZEN, ids=lambda kind: kind.__name__)
def test_what_a_graph_would_freeze_is_evaluated_one_by_one(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    first = kind is Doubled
    caplog.set_level("INFO", bundled_evaluation.__name__)
    check(with_module(lambda: nn.Sequential(kind(), net()) if first else net(kind())), "tabular", expected=1)

    (said,) = caplog.messages
    assert said.startswith("1 trials are evaluated side by side from now on, not 3: ")
    assert FROZEN[kind] in said


@pytest.mark.parametrize("kind", [Counting, Restless])
def test_unsaved_changes_fail_each_trial(kind: Any) -> None:
    model_fn = with_module(lambda: net(kind()))
    trainer, single = make_trainer(model_fn), make_trainer(model_fn)
    parents = trained(model_fn, "tabular", 3)
    members = [member_of("tabular", number, parent) for number, parent in enumerate(parents)]
    together = trainer.evaluate_together(members)

    assert list(map(found, together)) == alone(single, members) == ["TrialFailed"] * 3
    assert not trainer.places()


class Sampled(nn.Module):
    """Counts its batches in a buffer, which is put back after every evaluation."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x / self.seen


def test_buffers_that_change_are_put_back() -> None:
    trainer = check(with_module(lambda: net(Sampled())), "tabular")

    assert [place.held is not None for place in trainer.places()] == [True] * 3


def test_own_loops_and_other_rows_are_evaluated_as_they_are() -> None:
    def eval_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        return {"rows": float(sum(len(batch["label"]) for batch in batches))}

    model_fn, kind = STACKED["adam"]
    parents = trained(model_fn, kind, 4)
    sizes = [(72, 16), (72, 12), (72, 16), (72, 12)]
    members = [member_of(kind, i, parents[i], rows=rows, size=size) for i, (rows, size) in enumerate(sizes)]
    with_fn = make_trainer(model_fn, kind, eval_fn=eval_fn)
    assert widths(with_fn.evaluate_together(members)) == [1] * 4

    trainer, single = make_trainer(model_fn, kind), make_trainer(model_fn, kind)
    together = trainer.evaluate_together(members)
    assert widths(together) == [2, 2, 2, 2]
    assert list(map(found, together)) == alone(single, members)
    assert trainer.evaluate_together([]) == []


def test_a_member_that_cannot_be_read_fails_alone_wherever_it_is() -> None:
    model_fn, kind = STACKED["batch_norm"]
    parents = trained(model_fn, kind, 4)
    for bad in range(4):
        trainer, single = make_trainer(model_fn, kind), make_trainer(model_fn, kind)
        members = [member_of(kind, i, parent) for i, parent in enumerate(parents)]
        assert widths(trainer.evaluate_together(members)) == [4] * 4
        members[bad] = replace(members[bad], source=POISON, digest="0" * 64)
        together = trainer.evaluate_together(members)
        assert list(map(found, together)) == alone(single, members)
        assert widths(together) == [None if i == bad else 3 for i in range(4)]


def test_too_little_memory_halves_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    record = HostBranches.record

    def too_large(branches: Any, compute: Any) -> Any:
        if len(branches.generators) > 2:
            raise torch.cuda.OutOfMemoryError("no memory")
        return record(branches, compute)

    monkeypatch.setattr(HostBranches, "record", too_large)
    check(*STACKED["adam"], width=4, expected=2)


# What places hold


def test_what_a_place_holds_is_not_read_again_wherever_its_member_comes() -> None:
    model_fn, kind = STACKED["dropout"]
    trainer, single = make_trainer(model_fn, kind), make_trainer(model_fn, kind)
    members = [member_of(kind, i, parent) for i, parent in enumerate(trained(model_fn, kind, 4))]
    wanted = alone(single, members)
    trainer.evaluate_together(members)
    order = [2, 0, 3, 1]
    together = trainer.evaluate_together([replace(members[i], source=POISON) for i in order])

    assert [found(outcome) for outcome in together] == [wanted[i] for i in order]


def test_only_the_very_same_state_is_taken() -> None:
    model_fn, kind = STACKED["adam"]
    parents = trained(model_fn, kind, 2)
    mine = member_of(kind, 0, parents[0], source=POISON)
    trainer = make_trainer(model_fn, kind)
    trainer.evaluate_together([member_of(kind, i, parent) for i, parent in enumerate(parents)])
    [place] = [place for place in trainer.places() if place.holds(mine)]

    assert not place.holds(replace(mine, digest=""))
    assert not place.holds(replace(mine, digest=parents[1].saved.digest))
    assert not place.holds(replace(mine, warm_start=True))
    assert not place.holds(replace(mine, source=None))
    assert not place.holds(replace(mine, params={**params_of(0), "lr": 0.5}))
    assert not place.holds(replace(mine, unit=Unit("t1", 1, "v", "eval")))
    place.held = None
    assert not place.holds(mine)


def test_an_evaluation_that_changes_its_trial_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parameter that changes only later: no comparison of the first batches shows it."""
    model_fn, kind = STACKED["adam"]
    trainer = make_trainer(model_fn, kind)
    members = [member_of(kind, i, parent) for i, parent in enumerate(trained(model_fn, kind, 2))]
    trainer.evaluate_together(members)
    measure = GraphEvaluation.measure

    def touch(evaluation: Any, batch: Any) -> Any:
        with torch.no_grad():
            evaluation._models[0].parameters[0].data.add_(1e-3)
        return measure(evaluation, batch)

    monkeypatch.setattr(GraphEvaluation, "measure", touch)
    trainer.evaluate_together(members)
    assert [place.held for place in trainer.places()] == [None, None]


# Training and evaluating in turn


class Search:
    """Trials of a trainer that takes training steps in places too, and what they left."""

    def __init__(self, model_fn: Any, remembers: bool = True) -> None:
        self.trainer = make_trainer(model_fn)
        self.trainer._batches.load_on_device = self.trainer.gather  # type: ignore[method-assign]
        self.remembers = remembers
        self.saved: dict[int, Any] = {}
        self.seen: list[Any] = []

    def member(self, number: int, kind: Any, warm: int | None = None) -> Member:
        parent = self.saved.get(number if warm is None else warm)
        epoch = 1 if parent is None else parent[2] + (kind == "train")
        rates = {**params_of(number), "lr": 1e30 if number == 4 else 0.01 * (number + 1)}
        start: dict[str, Any] = (
            {} if parent is None else {"source": parent[0], "digest": parent[1], "warm_start": warm is not None}
        )
        return Member(Unit(f"t{number}", epoch, "v", kind), rates, feed_of("tabular"), final=True, **start)

    def train(self, numbers: Sequence[int], warm: int | None = None) -> list[Member]:
        members = [self.member(number, "train", warm) for number in numbers]
        signature = self.trainer._find_signature(members[0])
        self.forget()
        outcomes = self.trainer._train_group_by_graph(signature, list(enumerate(members)), "xxh3")
        for index, number in enumerate(numbers):
            outcome = outcomes[index]
            self.seen.append(outcome.saved if isinstance(outcome, TrainedMember) else type(outcome))
            if isinstance(outcome, TrainedMember):
                saved = outcome.checkpoint.getvalue(), outcome.saved.digest, members[index].unit.epoch
                self.saved[number] = saved
        return members

    def evaluate(self, numbers: Sequence[int]) -> None:
        self.forget()
        members = [self.member(number, "eval") for number in numbers]
        outcomes = self.trainer.evaluate_together(members)
        self.seen.append([found(outcome) for outcome in outcomes])
        if self.remembers:
            assert [found(outcome) for outcome in outcomes] == alone(make_trainer(noisy), members)

    def forget(self) -> None:
        """Have everything read again, if nothing is to be remembered."""
        for place in self.trainer.places():
            place.held = place.held if self.remembers else None


def noisy(params: Any) -> TorchModel:
    module = net(nn.Dropout(0.3), nn.BatchNorm1d(16))
    optimizer = torch.optim.SGD(module.parameters(), lr=params["lr"], momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    return TorchModel(module, optimizer, nn.MSELoss(), lr_scheduler=schedule)


def test_a_bundle_goes_on_from_its_places_without_reading() -> None:
    search = Search(noisy)
    search.train([0, 1, 2])
    for number, saved in search.saved.items():
        search.saved[number] = POISON, *saved[1:]
    outcomes = search.trainer.evaluate_together([search.member(number, "eval") for number in (2, 1, 0)])
    assert widths(outcomes) == [3] * 3
    search.train([1, 0, 2])
    assert [saved[2] for saved in search.saved.values()] == [2, 2, 2]
    assert all(place.held is not None for place in search.trainer.places())


def test_a_trial_that_diverges_leaves_nothing_in_its_place() -> None:
    search = Search(noisy)
    search.train([0, 4, 1])

    held = [place.held.trial for place in search.trainer.places() if place.held is not None]
    assert sorted(held) == ["t0", "t1"]


def test_a_trial_that_cannot_begin_its_unit_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered, forgetful = Search(noisy), Search(noisy, remembers=False)
    for search in (remembered, forgetful):
        search.train([0, 1, 2])
        begin = search.trainer._end_epochs

        fails = [search.trainer.places()[0].model]

        def fail(model: Any, count: int, begin: Any = begin, fails: Any = fails) -> None:
            if model in fails:
                fails.clear()
                raise ValueError("no schedule")
            begin(model, count)

        monkeypatch.setattr(search.trainer, "_end_epochs", fail)
        search.train([0, 1, 2])
    assert remembered.seen == forgetful.seen
    assert remembered.seen.count(ValueError) == 1


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["train", "train", "evaluate", "warm"]), st.permutations([0, 1, 2, 3, 4])),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, derandomize=True, max_examples=8)
@given(ACTIONS, st.integers(2, 4))
def test_what_places_remember_changes_nothing(actions: list[tuple[str, list[int]]], width: int) -> None:
    """Trials train, diverge, are evaluated and start from others, in bundles of any members."""
    patched = pytest.MonkeyPatch()
    patched.setattr(graph_bundle, "Branches", HostBranches)
    remembered, forgetful = Search(noisy), Search(noisy, remembers=False)
    for search in (remembered, forgetful):
        for action, order in actions:
            numbers = order[:width]
            if action == "evaluate":
                search.evaluate([number for number in numbers if number in search.saved])
            else:
                donors = sorted(search.saved) if action == "warm" else []
                search.train(numbers, donors[0] if donors else None)
    patched.undo()
    assert remembered.seen == forgetful.seen


def test_the_host_and_its_generators_are_as_before() -> None:
    model_fn = with_module(lambda: net(Jittered()))
    trainer = make_trainer(model_fn)
    members = [member_of("tabular", i, parent) for i, parent in enumerate(trained(model_fn, "tabular", 2))]
    random.seed(5)
    before = random.getstate(), torch.get_rng_state()
    trainer.evaluate_together(members)

    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert math.isfinite(sum(place.model.parameters[0].sum().item() for place in trainer.places()))
    assert all(isinstance(place, Place) for place in trainer.places())
