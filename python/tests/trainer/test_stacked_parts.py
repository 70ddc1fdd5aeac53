"""The parts that stacks are made of: optimizers, the choice of widths, and the comparison with single steps."""

from __future__ import annotations

import os
from typing import Any

import group_models
import pytest
import torch
from bundle_cases import OPTIMIZERS, STACKED
from bundle_runs import describe, make_member, make_trainer, params_of, reasons, train_alone
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from cerebro_spark.trainer.torch.losses import BatchLoss
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.stacked import program, rules
from cerebro_spark.trainer.torch.stacked.agreement import agree
from cerebro_spark.trainer.torch.stacked.calls import find_places, split_numbers
from cerebro_spark.trainer.torch.stacked.optimizers import StackedSGD, find_stacked
from cerebro_spark.trainer.torch.stacked.scaled import add_scaled_
from cerebro_spark.trainer.torch.stacked.stack import Stack
from cerebro_spark.trainer.torch.stacked.structures import Structure
from cerebro_spark.trainer.torch.trainer import TorchTrainer

MODEL_FN, KIND = STACKED["adam"]
SIZES = 300 if os.environ.get("CEREBRO_BUNDLES") == "all" else 30
"""How many sizes of layers are tried; `make test-bundles` tries most."""


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stacked_optimizers_leave_the_bits_of_pytorchs(name: str) -> None:
    """Parameters of odd sizes lie anywhere in the buffer, in slices of any number of rows."""
    torch.manual_seed(1)
    width, sizes, steps = 5, (33, 7, 70), 4
    numbers = [1, 1, 2, 3, 3]
    single = [[torch.nn.Parameter(torch.randn(size)) for size in sizes] for _ in range(width)]
    optimizers = [OPTIMIZERS[name](own, params_of(number)) for own, number in zip(single, numbers, strict=True)]
    groups = [{k: v for k, v in each.param_groups[0].items() if k != "params"} for each in optimizers]
    kind = find_stacked(optimizers[0])
    moments = kind.moment_names(groups[0])
    rows = torch.stack([torch.cat([part.detach() for part in own]) for own in single])
    kept = {moment: torch.zeros_like(rows) for moment in moments}
    stacked = kind(rows, torch.zeros_like(rows), kept, [0.0] * width)
    if isinstance(stacked, StackedSGD):
        stacked.fresh = [True] * width
    stacked._rows = 2
    for _ in range(steps):
        gradients = torch.randn_like(rows) * 10 ** torch.randint(-6, 2, rows.shape).float()
        stacked._g.copy_(gradients)
        stacked.step(groups)
        for own, optimizer, row in zip(single, optimizers, gradients, strict=True):
            for part, gradient in zip(own, row.split(sizes), strict=True):
                part.grad = gradient.clone()
            optimizer.step()

    assert torch.equal(rows, torch.stack([torch.cat([part.detach() for part in own]) for own in single]))
    for moment in moments:
        pairs = zip(single, optimizers, strict=True)
        found = [torch.cat([each.state[part][moment] for part in own]) for own, each in pairs]
        assert torch.equal(kept[moment], torch.stack(found))


@pytest.mark.parametrize("scales", [[0.3, 0.3, 0.3], [0.1, -0.7, 3.3]])
def test_numbers_in_tensors_scale_what_each_member_adds(scales: list[float]) -> None:
    def step(target: torch.Tensor, other: torch.Tensor, scale: torch.Tensor) -> list[torch.Tensor]:
        add_scaled_(target, other, scale)
        return []

    targets, others, numbers = torch.randn(3, 37), torch.randn(3, 37), torch.tensor(scales)
    rows = list(zip(targets, others, numbers, strict=True))
    wanted = torch.stack([target.clone().add_(other, alpha=number.item()) for target, other, number in rows])
    graph = make_fx(step, tracing_mode="real")(targets[0].clone(), others[0], numbers[0])
    program.make_program(graph, 3)([targets, others, numbers], [], {})

    assert torch.equal(targets, wanted)


def test_numbers_that_a_trace_holds_may_differ_by_member() -> None:
    def trace(rate: float) -> Any:
        return make_fx(lambda x: [x * torch.tensor(rate)], tracing_mode="real")(torch.ones(5))

    graphs, x = [trace(0.1), trace(0.3)], torch.randn(2, 5)
    (one, calls), (other, same) = map(split_numbers, graphs)
    (made,) = program.make_program(graphs[0], 2, [0])([x], [], {0: [one[0], other[0]]})

    assert calls == same
    assert find_places(one, [one, other]) == (0,)
    assert torch.equal(torch.stack(list(made)), torch.stack([x[0] * torch.tensor(0.1), x[1] * torch.tensor(0.3)]))


@given(st.integers(1, 200), st.none() | st.integers(2, 40))
def test_members_are_shared_out_evenly(members: int, limit: int | None) -> None:
    widths = Structure("a model", limit=limit).widths(members)

    assert sum(widths) == members
    assert max(widths) - min(widths) <= 1
    assert limit is None or max(widths) <= limit


def judge(monkeypatch: pytest.MonkeyPatch, single: float, by_width: dict[int, float]) -> tuple[TorchTrainer, list[int]]:
    """A trainer whose steps take so many milliseconds, after a bundle of 8, and the widths that were compared."""
    trainer = make_trainer(MODEL_FN, KIND)
    trainer.widths_are_tried = True
    compare, compared = trainer._compare, []

    def note(stack: Any, states: Any, batches: Any) -> float:
        compared.append(stack.width)
        compare(stack, states, batches)
        return single / 1000

    monkeypatch.setattr(trainer, "_compare", note)
    monkeypatch.setattr(trainer, "_time_single", lambda state, batches: single / 1000)
    monkeypatch.setattr(trainer, "_time", lambda stack, states: by_width[len(states)] / 1000)
    members = [make_member(KIND, i, 1, 0, None) for i in range(8)]
    together = trainer.train_together(members)
    assert list(map(describe, together)) == list(map(describe, train_alone(make_trainer(MODEL_FN, KIND), members)))
    return trainer, compared


@pytest.mark.parametrize(
    ("single", "by_width", "limit"),
    [
        pytest.param(9.0, {8: 1.0, 4: 2.0}, None, marks=pytest.mark.slow),
        (9.0, {8: 3.0, 4: 2.0, 2: 4.0}, 4),
        pytest.param(9.0, {8: 3.0, 4: 2.0, 2: 1.0}, 2, marks=pytest.mark.slow),
    ],
)
def test_the_fastest_width_is_used(
    monkeypatch: pytest.MonkeyPatch, single: float, by_width: dict[int, float], limit: int | None
) -> None:
    trainer, compared = judge(monkeypatch, single, by_width)

    assert [each.limit for key, each in trainer.structures.items() if key is not None] == [limit]
    assert compared == [limit or 8], "the others are not used"


def test_members_are_trained_alone_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, compared = judge(monkeypatch, 0.5, {8: 1.0, 4: 2.0})

    assert "a single step takes 0.500 ms, a stacked one 1.000 ms a member" in reasons(trainer)[0]
    assert compared == []


def test_steps_that_are_nearly_all_kernels_are_not_even_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchTrainer, "_trace", lambda self, state: pytest.fail("it takes long"))
    trainer, compared = judge(monkeypatch, 30.0, {})

    assert reasons(trainer)[0].startswith("a step takes 30 ms, nearly all of it in kernels")
    assert compared == []


class Looping(torch.nn.Module):
    """Takes many small steps, between which much code runs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(400):
            x = x.clamp(max=0.9)
        return self.body(x)


def test_long_steps_of_many_small_operations_are_stacked(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(group_models.make(Looping, metrics={}), KIND)
    trainer.widths_are_tried = True
    single = trainer._time_single
    monkeypatch.setattr(trainer, "_time_single", lambda state, batches: max(single(state, batches), 0.03))
    monkeypatch.setattr(trainer, "_time", lambda stack, states: 0.001)
    trainer.train_together([make_member(KIND, i, 1, 0, None) for i in range(2)])
    assert not reasons(trainer)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_out_of_memory_halves_the_width(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    step = Stack.step

    def limited(self: Stack, *args: Any) -> Any:
        if self.width > 2:
            raise error
        return step(self, *args)

    monkeypatch.setattr(Stack, "step", limited)
    trainer, single = make_trainer(MODEL_FN, KIND), make_trainer(MODEL_FN, KIND)
    members = [make_member(KIND, i, 1, 0, None) for i in range(5)]
    together = trainer.train_together(members)

    assert [outcome.width for outcome in together] == [2, 2, 2, 2, 1]  # type: ignore[union-attr]
    assert list(map(describe, together)) == list(map(describe, train_alone(single, members)))


def test_steps_that_leave_other_bits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(a: torch.Tensor, **options: Any) -> torch.Tensor:
        return torch.nextafter(torch.relu(a), torch.tensor(9.0))

    relu = torch.ops.aten.relu.default
    find = rules.find_rule

    def find_wrong(node: Any, width: int) -> Any:
        rule = find(node, width)
        return rule and rule._replace(call=rule.call._replace(kernel=wrong)) if node.target is relu else rule

    monkeypatch.setattr(program, "find_rule", find_wrong)
    trainer, single = make_trainer(MODEL_FN, KIND), make_trainer(MODEL_FN, KIND)
    members = [make_member(KIND, i, 1, 0, None) for i in range(2)]
    together = trainer.train_together(members)

    assert "leaves other bits than a single one" in reasons(trainer)[0]
    assert [outcome.width for outcome in together] == [1, 1]  # type: ignore[union-attr]
    assert list(map(describe, together)) == list(map(describe, train_alone(single, members)))


def test_sums_in_another_order_do_not_agree() -> None:
    def backwards(x: torch.Tensor) -> torch.Tensor:
        return x.flip(1).cumsum(1)[:, -1]

    like = torch.empty(50)

    assert agree("sum", lambda x: x.sum(1), torch.sum, [like], 3)
    assert not agree("backwards", backwards, torch.sum, [like], 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("size", [50, 800_000])  # the second: more than are drawn, for two members
def test_what_is_tried_is_random_for_each_member_each_time(dtype: torch.dtype, size: int) -> None:
    seen: list[torch.Tensor] = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        seen.extend(x[:, :50].clone())
        return x

    def changed(x: torch.Tensor) -> torch.Tensor:
        return noted(x).add_(1)  # what is tried does not change what is tried next

    like = torch.empty(size, dtype=dtype)
    key = ("noted", size, dtype)
    assert not agree(key, changed, lambda x: x - 1, [like], 2)
    assert agree((*key, "again"), noted, lambda x: x.clone(), [like], 2)
    first, second, *rest = seen
    assert torch.equal(first, rest[0])
    assert torch.equal(second, rest[1])
    assert len({tuple(each.tolist()) for each in rest}) == len(rest) == 6
    assert all(abs(float(each.double().mean())) < 0.8 and 0.5 < float(each.double().std()) < 1.5 for each in rest)


@settings(deadline=None, derandomize=True, max_examples=drawn(SIZES))
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(2, 5), st.booleans())
def test_products_are_stacked_only_where_they_are_exact(
    rows: int, inputs: int, outputs: int, width: int, bias: bool
) -> None:
    """The program of a linear layer of any size gives each member what it gets alone."""
    from torch.fx.experimental.proxy_tensor import make_fx

    torch.manual_seed(rows * inputs)

    def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
        made = torch.sigmoid(torch.nn.functional.linear(x, w, b if bias else None))
        return [made, made.t() @ x, made @ w, made.sum(0)]

    parts = torch.randn(width, rows, inputs), torch.randn(width, outputs, inputs), torch.randn(width, outputs)
    graph = make_fx(layer)(*(part[0].clone() for part in parts))
    found = program.make_program(graph, width)(parts, [], {})
    for row in range(width):
        wanted = layer(*(part[row].clone() for part in parts))
        assert all(torch.equal(one[row], other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_of_many_batches_add_up_as_if_counted_one_by_one(reduction: str) -> None:
    batches, rows = 2500, 3
    losses, output = torch.randn(batches) * 1e3, torch.zeros(rows, 2)
    labels = torch.randint(0, 2, (batches, rows))
    loss = BatchLoss(torch.nn.CrossEntropyLoss(torch.tensor([1.0, 0.3]), reduction=reduction))
    one, other = (MetricCollector({}, None, loss.weigh, torch.device("cpu")) for _ in range(2))
    for value, label in zip(losses, labels, strict=True):
        one.add(value, output, label)
    weights = None if reduction == "sum" else [loss.weigh(output, label, rows) for label in labels[:-1]]
    other.add_losses(losses[:-1], weights, rows)
    other.add(losses[-1], output, labels[-1])

    assert one.collect() == other.collect()
