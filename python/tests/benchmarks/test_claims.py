"""The parts of benchmarks.claims that are pure: what each way to train computes, and what is made of the numbers."""

from __future__ import annotations

import copy
import doctest
import importlib
from typing import Any

import pytest
import torch
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.claims import contest, figures, pictures, tables
from benchmarks.claims.figures import AVERAGING, KEPT, MOP, SEQUENTIAL, TIMES_P, judge_curves, judge_sweep
from benchmarks.claims.spread import Spread, within_spread
from benchmarks.claims.ways import Averaging, Point, Sequential, Synchronous, Way, curve, mean

pytestmark = pytest.mark.slow
PARAMS = {"batch_size": 8, "lr": 0.01, "seed": 3}


def digits(*rows: int) -> list[tuple[Any, Any]]:
    random = torch.Generator().manual_seed(0)
    return [(torch.rand(n, 1, 8, 8, generator=random), torch.randint(0, 10, (n,), generator=random)) for n in rows]


def same(one: Any, other: Any) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return all(torch.allclose(ours[name], theirs[name], atol=1e-6) for name in ours)


def rows_of(way: Way) -> list[Any]:
    """The batches of an epoch."""
    seen = []
    step = way.step

    def noted(module: Any, optimizer: Any, x: Any, y: Any) -> None:
        seen.append(x)
        step(module, optimizer, x, y)

    way.step = noted  # type: ignore[method-assign]
    way.epoch()
    return seen


@pytest.mark.parametrize("kind", [Sequential, Synchronous, Averaging])
@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(rows=st.lists(st.integers(1, 20), min_size=1, max_size=4), batch=st.integers(1, 12))
def test_every_row_is_seen_once_an_epoch(kind: Any, rows: list[int], batch: int) -> None:
    parts = digits(*rows)
    way = kind({**PARAMS, "batch_size": batch}, parts)
    seen = torch.cat(rows_of(way)).flatten(1)
    everything = torch.cat([x for x, _ in parts]).flatten(1)
    assert sorted(seen.sum(dim=1).tolist()) == pytest.approx(sorted(everything.sum(dim=1).tolist()))


def test_all_ways_start_from_the_same_weights() -> None:
    first, *others = (kind(PARAMS, digits(8, 8)) for kind in (Sequential, Synchronous, Averaging))
    assert all(same(first.module, other.module) for other in others)
    assert not same(first.module, Sequential({**PARAMS, "seed": 4}, digits(8, 8)).module)


def test_a_synchronous_step_is_the_mean_of_what_the_workers_would_compute() -> None:
    parts = digits(4, 4)
    way = Synchronous(PARAMS, parts)
    module, optimizer = copy.deepcopy((way.module, way.optimizer))
    (batch,) = rows_of(way)
    assert len(batch) == 8
    gradients = []
    for x, y in parts:
        module.zero_grad()
        way.loss(module(x), y).backward()
        gradients.append({name: each.grad.clone() for name, each in module.named_parameters()})
    for name, each in module.named_parameters():
        each.grad = mean(gradients)[name]
    optimizer.step()
    assert same(way.module, module)


def test_of_a_batch_each_worker_takes_its_share() -> None:
    assert [len(x) for x in rows_of(Synchronous({**PARAMS, "batch_size": 4}, digits(6, 6)))] == [4, 4, 4]
    assert [len(x) for x in rows_of(Synchronous({**PARAMS, "batch_size": 4}, digits(5, 4)))] == [4, 4, 1]


def test_averaging_is_the_mean_of_models_that_never_saw_other_rows() -> None:
    parts = digits(8, 8)
    way = Averaging(PARAMS, parts)
    alone = []
    for x, y in parts:
        module, optimizer = copy.deepcopy((way.module, way.optimizer))
        optimizer.zero_grad()
        way.loss(module(x), y).backward()
        optimizer.step()
        alone.append(module.state_dict())
    way.epoch()
    expected = mean(alone)
    assert all(torch.allclose(way.module.state_dict()[name], expected[name], atol=1e-6) for name in expected)


def test_with_one_partition_all_ways_are_sequential() -> None:
    ways = [kind(PARAMS, digits(20)) for kind in (Sequential, Synchronous, Averaging)]
    points = [curve(way, 2, digits(10)[0]) for way in ways]
    for several in zip(*points, strict=True):
        assert [point.loss for point in several] == pytest.approx([several[0].loss] * 3, rel=1e-4)
    assert all(0 <= point.error <= 1 for each in points for point in each)


# -- what is made of the numbers


@pytest.mark.parametrize("name", ["figures", "spread"])
def test_examples_of_the_docstrings(name: str) -> None:
    tried = doctest.testmod(importlib.import_module(f"benchmarks.claims.{name}"))
    assert (tried.failed, tried.attempted > 0) == (0, True)


@settings(max_examples=drawn(50))
@given(values=st.lists(st.floats(-10, 10), min_size=1, max_size=6), shift=st.floats(-5, 5))
def test_within_the_spread(values: list[float], shift: float) -> None:
    moved = [value + shift for value in values]
    wide = max(values) - min(values)
    assert within_spread(values, values)
    if abs(shift) > wide + 1e-6:
        assert not within_spread(values, moved)
    elif abs(shift) < wide - 1e-6:
        assert within_spread(values, moved)


def steady(*losses: float) -> list[list[Point]]:
    """A curve a seed, on which nothing changes."""
    return [[Point(loss, loss / 10)] * 4 for loss in losses]


GOOD = {
    MOP: steady(0.10, 0.12),
    SEQUENTIAL: steady(0.11, 0.12),
    KEPT: steady(0.10, 0.11),
    TIMES_P: steady(0.3, 0.4),
    AVERAGING: steady(0.5, 0.6),
}


def test_the_claims_of_figure_7b_hold_or_do_not() -> None:
    assert set(judge_curves(GOOD).values()) == {True}
    assert list(judge_curves({**GOOD, MOP: steady(0.2, 0.2)}).values()) == [False, True, True, True]
    assert list(judge_curves({**GOOD, KEPT: steady(0.2, 0.2)}).values()) == [True, False, True, True]
    assert list(judge_curves({**GOOD, TIMES_P: steady(0.11, 0.4)}).values()) == [True, True, False, True]
    assert list(judge_curves({**GOOD, AVERAGING: steady(0.1, 0.1)}).values()) == [True, True, True, False]


def swept(mop: list[float], ddp: list[float]) -> list[dict[str, Any]]:
    return [
        {"batch": 8 << at, "mop": [a], "ddp": [b], "mop_unit_s": 0.1, **figures.moved_an_epoch(1000, 8 << at, 30, 10)}
        for at, (a, b) in enumerate(zip(mop, ddp, strict=True))
    ]


def test_the_claims_of_figure_9_hold_or_do_not() -> None:
    assert set(judge_sweep(swept([0.01, 0.02], [0.02, 0.05])).values()) == {True}
    assert list(judge_sweep(swept([0.01, 0.06], [0.02, 0.05])).values()) == [False, True, True, True]
    assert list(judge_sweep(swept([0.03, 0.04], [0.02, 0.05])).values()) == [False, False, True, True]
    assert list(judge_sweep(swept([0.02, 0.01], [0.02, 0.05])).values()) == [True, True, False, True]
    first, second = swept([0.01, 0.02], [0.02, 0.05])
    larger = {**second, "mop_bytes": int(second["mop_bytes"] * 1.02)}
    assert list(judge_sweep([first, larger]).values()) == [True, True, True, False]


def runs(ours: list[tuple[float, float]], theirs: list[tuple[float, float]]) -> dict[str, list[dict[str, float]]]:
    return {
        who: [{"wall_s": wall, "training_s": 2 * wall, "best": best} for wall, best in several]
        for who, several in (("sparktrials", theirs), ("ours", ours))
    }


def test_the_claims_about_fmin_hold_or_do_not() -> None:
    theirs = [(10.0, 0.40), (12.0, 0.42), (14.0, 0.41)]
    assert set(contest.judge(runs([(9.0, 0.41), (9.0, 0.42), (30.0, 0.40)], theirs)).values()) == {True}
    slower_and_worse = contest.judge(runs([(13.0, 0.5), (13.0, 0.5), (1.0, 0.5)], theirs))
    assert set(slower_and_worse.values()) == {False}


def test_tables_show_what_was_found() -> None:
    shown = tables.curves({"curves": GOOD}).splitlines()
    assert shown[2].startswith("| MOP | 0.1100 | 0.1100 | 0.1100 (0.1000 - 0.1200) | 1.1 |")
    assert len(shown) == 2 + len(GOOD)
    assert "| 8 | 1.00 (1.00 - 1.00) | 2.00" in tables.sweep({"table": swept([0.01], [0.02])})
    several = runs([(9.0, 0.41)], [(10.0, 0.4)])
    assert "| SparkTrials, 2 at a time | 10.0 | 10.0 | 20.0 | 0.4000 (0.4000 - 0.4000) |" in tables.contest(
        {"runs": several}
    )
    assert tables.claims({"claims": {"it is so": False}}) == "- DOES NOT HOLD: it is so"
    assert str(Spread.of([1.0, 3.0])) == "2.0000 (1.0000 - 3.0000)"


@pytest.mark.slow
def test_pictures_are_the_same_for_the_same_numbers(tmp_path: Any) -> None:
    found: list[tuple[Any, Any]] = [
        (pictures.curves, {"curves": GOOD}),
        (pictures.sweep, {"table": swept([0.01, 0.02], [0.02, 0.05])}),
        (pictures.contest, {"runs": runs([(9.0, 0.41)], [(10.0, 0.4)])}),
    ]
    for draw, numbers in found:
        first, again = draw(numbers, tmp_path / "a"), draw(numbers, tmp_path / "b")
        assert first.read_bytes() == again.read_bytes()
        assert first.read_text().startswith("<?xml")
