"""Arguments of `fmin` that cannot be right are refused by name, before anything is prepared or started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hyperopt
import numpy as np
import pandas as pd
import pytest

import cerebro_spark as cs
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.tune.hyperopt import CerebroTrials
from cerebro_spark.tune.plugins.hyperopt_search import FminSearch, Limits

SPACE = {"lr": hyperopt.hp.uniform("lr", 0, 1)}
ROWS = pd.DataFrame({"x": np.arange(8.0), "y": np.arange(8.0)})


def made(folder: Path, **options: Any) -> CerebroTrials:
    given: dict[str, Any] = {"features": ["x"], "label": "y", "metric": "loss", "epochs": 1, **options}
    return CerebroTrials(data=ROWS, store=str(folder), backend=cs.LocalBackend(1), **given)


def test_wrong_options_are_refused_when_trials_are_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="allow_nan is 'no', but must be True or False"):
        made(tmp_path, allow_nan="no")


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ({"rstate": np.random.RandomState(0)}, r"`rstate` is RandomState.*say np.random.default_rng\(0\)"),
        ({"rstate": 42}, "`rstate` is 42"),
        ({"max_evals": "5"}, "`max_evals` is '5'"),
        ({"max_evals": -3}, "`max_evals` is -3"),
        ({"algo": "tpe"}, "`algo` is 'tpe', but must be a function such as hyperopt.tpe.suggest"),
        ({"space": {}}, r"`space` is \{\}: give at least one"),
        ({"space": []}, r"`space` is \[\]"),
    ],
)
def test_wrong_arguments_of_fmin_are_refused_by_name(tmp_path: Path, argument: dict[str, Any], said: str) -> None:
    given = {"space": SPACE, "max_evals": 1, "show_progressbar": False, **argument}
    with pytest.raises(ConfigurationError, match=said):
        made(tmp_path).fmin(lambda params: None, **given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("points", [{"lr": 0.1}, [5], "lr"])
def test_points_must_be_a_list_of_dicts(tmp_path: Path, points: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"`points_to_evaluate` is .* must be a list of dicts"):
        made(tmp_path, points_to_evaluate=points)


def search(says: Any) -> FminSearch:
    """Only as much of a search as decides whether to stop."""
    bare = FminSearch.__new__(FminSearch)
    bare._limits, bare._ended, bare._early_stop_state = Limits(9, early_stop_fn=lambda trials, *state: says), [], []
    return bare


@pytest.mark.parametrize(
    ("says", "stops"), [(True, True), (False, False), (np.True_, True), ((True, [1]), True), ([False, {}], False)]
)
def test_early_stop_fn_may_return_a_bool_or_its_state_as_well(says: Any, stops: bool) -> None:
    assert search(says)._may_stop([1.0]) == stops


@pytest.mark.parametrize("says", [None, 1, (True,), (True, None), "no"])
def test_what_else_early_stop_fn_returns_is_refused_by_name(says: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"`early_stop_fn` returned .* must return True, False, or"):
        search(says)._may_stop([1.0])
