"""Spaces: what is drawn and in which order, and what is refused, with the path to it."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.tune import hp
from cerebro_spark.tune.spaces.space import Space

NESTED = {
    "lr": hp.choice([0.1, 0.01]),
    "optimizer": hp.choice([{"name": "adam"}, {"name": "sgd", "momentum": hp.choice([0.0, 0.9]), "nesterov": True}]),
    "units": [hp.choice([64, 128]), 10],
    "epsilon": 1e-7,
}


def draws(space: dict[str, Any], count: int = 4000) -> list[dict[str, Any]]:
    made = Space(space)
    return [made.params(made.sample(np.random.default_rng([7, 0, number]))) for number in range(count)]


def test_a_grid_counts_and_orders_conditional_options() -> None:
    space = Space(NESTED)
    grid = [space.params(space.numbered(number)) for number in range(space.size)]
    adam, slow, fast = ({"name": "adam"}, *({"name": "sgd", "momentum": m, "nesterov": True} for m in (0.0, 0.9)))
    assert grid == [
        {"lr": lr, "optimizer": optimizer, "units": [units, 10], "epsilon": 1e-7}
        for lr in (0.1, 0.01)
        for optimizer in (adam, slow, fast)
        for units in (64, 128)
    ]
    with pytest.raises(IndexError):
        space.numbered(space.size)


def test_numbers_that_can_be_counted_have_a_grid() -> None:
    space = Space({"a": hp.randint(2, 5), "b": hp.quniform(0.1, 0.3, 0.1), "c": hp.qloguniform(1, 5, 2)})
    values = [space.params(space.numbered(number)) for number in range(space.size)]
    assert [sorted({v[name] for v in values}) for name in "abc"] == [[2, 3, 4], [0.1, 0.2, 0.3], [2, 4]]
    with pytest.raises(
        ConfigurationError, match=r"`net\[0\]\.lr` is hp\.uniform\(0, 1\), which has infinitely many values"
    ):
        _ = Space({"net": hp.choice([{"lr": hp.uniform(0, 1)}])}).size


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"net": hp.choice([])}, r"`net` is hp\.choice\(\(\)\), but there must be at least one option"),
        ({"a": {"b": hp.uniform(2, 1)}}, r"`a\.b` is hp\.uniform\(2, 1\), but `low` must be below `high`"),
        ({"a": [0, hp.uniform(1, 1)]}, r"`a\[1\]` is hp\.uniform\(1, 1\), but `low` must be below"),
        ({"a": hp.choice([1, {"lr": hp.loguniform(0, 1)}])}, r"`a\[1\]\.lr` is hp\.loguniform\(0, 1\).*no logarithm"),
        ({"lr": hp.loguniform(-5, -1)}, "values themselves, not exponents"),
        ({"n": hp.qloguniform(0, 8, 1)}, "no logarithm"),
        ({"n": hp.quniform(1, 3, 0)}, "`q` must be above 0"),
        ({"n": hp.quniform(1, 3, 5)}, "a multiple of q=5 between"),
        ({"n": hp.randint(3, 3)}, "`low` must be below `high`"),
        ({"n": hp.randint(1, 2.5)}, "`high` must be a whole number"),  # type: ignore[arg-type]
        ({"n": hp.uniform(0, float("inf"))}, "`high` must be a finite number"),
        ({"n": hp.uniform("0", 1)}, "`low` must be a finite number"),  # type: ignore[arg-type]
        ({"n": hp.normal(0, 0)}, "`sigma` must be above 0"),
        ({"a": hp.choice([{"a": hp.uniform(0, 1)}])}, r"`a\[0\]\.a` uses the name 'a' a second time on its path"),
        ({"a": {"b": {"a": 1}}}, r"`a\.b\.a` uses the name 'a' a second time"),
        ({"a": {"b": hp.uniform(0, 1)}, "a.b": hp.uniform(0, 1)}, r"two hyperparameters have the path `a\.b`"),
        ({"a": [hp.uniform(0, 1)], "a[0]": hp.uniform(0, 1)}, r"two hyperparameters have the path `a\[0\]`"),
        ({"a": {3: 1}}, "`a` has the name 3, but names are strings"),
        ({"$a": 1}, r"the space has the name '\$a'"),
        ({"a": {"act": math.sqrt}}, r"`a\.act` is a builtin_function_or_method, but params go into the log"),
        ([hp.uniform(0, 1)], "the space is a list, but must be a dict"),
        ({"n": (1, 2)}, r"`n` is \[1, 2\], a tuple: did you mean hp.choice\(\[1, 2\]\)"),
        ({"n": range(3)}, r"`n` is \[0, 1, 2\], a range: did you mean hp.choice\(\[0, 1, 2\]\)"),
        ({"n": {"a"}}, r"`n` is \['a'\], a set: did you mean hp.choice\(\['a'\]\)"),
        ({"n": np.array([0.5])}, r"`n` is \[0.5\], a ndarray: did you mean .* only option: hp.choice\(\[\[0.5\]\]\)"),
        ({"n": list(range(100))}, r"did you mean hp.choice\(\[0, 1, 2, 3, 4, 5, 6, 7, ...\]\)"),
        ({"n": [{"a": 1}, {"a": 2}]}, r"did you mean hp.choice\(\[{'a': 1}, {'a': 2}\]\)"),
        ({"o": {"momentum": [0.5, 0.9]}}, r"`o.momentum` is \[0.5, 0.9\], a list"),
    ],
    ids=str,
)
def test_a_bad_space_is_refused_with_the_path_to_it(space: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Space(space)


def test_a_list_that_is_clearly_one_stays_one() -> None:
    space = Space(
        {"layers": hp.choice([[64, 32]]), "nets": hp.choice([(8,), (8, 8)]), "pair": [1, hp.randint(2, 3)], "none": []}
    )
    assert space.size == 2
    assert space.params(space.numbered(1)) == {"layers": [64, 32], "nets": (8, 8), "pair": [1, 2], "none": []}
    inside = Space({"net": hp.choice([{"kind": "mlp", "layers": [8, 4]}, {"kind": "linear"}])})
    assert inside.params(inside.numbered(0)) == {"net": {"kind": "mlp", "layers": [8, 4]}}


def test_the_same_name_in_other_options_and_on_other_paths_is_fine() -> None:
    space = Space({"lr": hp.uniform(0, 1), "o": hp.choice([{"lr": hp.uniform(0, 1)}, {"lr": hp.uniform(2, 3)}])})
    assert list(space.dimensions) == ["lr", "o", "o[0].lr", "o[1].lr"]
    shared = hp.uniform(0, 1)
    both = draws({"a": shared, "b": shared}, 5)
    assert all(params["a"] != params["b"] for params in both), "a space names by path, not by object"


def test_params_are_plain_and_nobody_elses() -> None:
    space = Space(
        {
            "a": hp.choice(np.array([1, 2])),  # type: ignore[arg-type]
            "b": np.float32(0.5),
            "c": hp.uniform(np.float64(0), np.int64(1)),  # type: ignore[arg-type]
            "d": hp.choice([[[1]]]),
        }
        | {"n": hp.normal(0, 1), "t": (1, hp.randint(0, 3)), "q": hp.quniform(16, 64, 16), "none": None}
    )
    params = space.params(space.sample(np.random.default_rng(0)))
    for value in (params["a"], params["b"], params["c"], params["n"], params["q"], params["t"][1]):
        assert type(value) in (int, float)
    assert type(params["q"]) is int
    json.dumps(params)
    params["d"][0].append(2)
    assert space.params(space.sample(np.random.default_rng(0)))["d"] == [[1]]


def test_draws_are_independent_across_dimensions() -> None:
    from scipy import stats

    drawn = draws({"a": hp.uniform(0, 1), "b": hp.uniform(0, 1), "c": hp.loguniform(1, 10), "d": hp.normal(0, 1)})
    columns = np.array([[params[name] for name in "abcd"] for params in drawn])
    for i in range(4):
        for j in range(i):
            assert stats.spearmanr(columns[:, i], columns[:, j]).pvalue > 1e-3, (i, j)
    table = Counter((params["a"] > 0.5, params["b"] > 0.5) for params in drawn)
    assert stats.chisquare(list(table.values())).pvalue > 1e-3
    assert stats.spearmanr(columns[:-1, 0], columns[1:, 0]).pvalue > 1e-3, "one trial must not tell of the next"


@pytest.mark.parametrize(
    ("dimension", "law"),
    [
        (hp.uniform(-2, 3), ("uniform", -2, 5)),
        (hp.loguniform(1e-5, 1e-1), ("loguniform", 1e-5, 1e-1)),
        (hp.normal(3, 0.5), ("norm", 3, 0.5)),
    ],
    ids=["uniform", "loguniform", "normal"],
)
def test_draws_follow_their_law(dimension: Any, law: tuple[str, float, float]) -> None:
    from scipy import stats

    drawn = [params["x"] for params in draws({"x": dimension})]
    assert stats.kstest(drawn, law[0], law[1:]).pvalue > 1e-3


@pytest.mark.parametrize(
    ("dimension", "values"),
    [
        (hp.choice(["a", "b", "c"]), ["a", "b", "c"]),
        (hp.randint(-2, 3), [-2, -1, 0, 1, 2]),
        (hp.quniform(1, 10, 2), [2, 4, 6, 8, 10]),
        (hp.quniform(0.1, 0.5, 0.1), [0.1, 0.2, 0.3, 0.4, 0.5]),
    ],
    ids=str,
)
def test_each_of_countable_values_is_as_likely(dimension: Any, values: list[Any]) -> None:
    from scipy import stats

    found = Counter(params["x"] for params in draws({"x": dimension}))
    assert sorted(found) == values
    assert stats.chisquare([found[value] for value in values]).pvalue > 1e-3


def test_a_stepped_logarithmic_draw_has_as_many_in_each_magnitude() -> None:
    drawn = np.array([params["x"] for params in draws({"x": hp.qloguniform(10, 10_000, 10)})])
    assert set(drawn % 10) == {0}
    thirds = [int(((drawn > low) & (drawn <= 10 * low)).sum()) for low in (10, 100, 1000)]
    assert all(share == pytest.approx(4000 / 3, rel=0.15) for share in thirds[1:])


bounds = st.floats(-1e3, 1e3).map(lambda x: round(x, 3))
widths = st.floats(0.01, 1e3).map(lambda x: round(x, 2))
steps = st.floats(0.01, 5).map(lambda x: round(x, 2))


@given(
    bounds,
    st.floats(0.01, 1e3).map(lambda x: round(x, 2)),
    st.floats(0.01, 5).map(lambda x: round(x, 2)),
    st.integers(0, 99),
)
def test_no_step_leaves_the_bounds(low: float, width: float, q: float, seed: int) -> None:
    """Drawing, snapping and moving stay within; a move always moves where there is another value."""
    rng = np.random.default_rng(seed)
    high = low + width
    for dimension in (
        hp.uniform(low, high),
        hp.quniform(low, high, q),
        hp.randint(int(low), int(low) + 1 + int(width)),
    ):
        if dimension.problem() is not None:
            continue
        value = dimension.sample(rng)
        for _ in range(5):
            assert low - 1 < value <= high + 1 if isinstance(value, int) else low <= value <= high
            assert dimension.snap(value) == value
            moved = dimension.moved(value, rng)
            assert moved != value or dimension.levels() == 1
            value = moved


def test_choices_of_numbers_move_to_the_next_one() -> None:
    choice = hp.choice([0.1, 10.0, 1.0, 1.0])
    assert choice.neighbours(2) == [0, 1]
    assert choice.neighbours(0) == [2]
    assert hp.choice(["a", "b", "c"]).neighbours(1) == [0, 2]
    assert hp.choice(["only"]).moved(0, np.random.default_rng(0)) == 0
