"""The API explains itself: to `help`, to type checkers and to editors, in both forms that a search has."""

from __future__ import annotations

import inspect
import os
import pydoc
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

import cerebro_spark as cs
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.tune.options import TrainingOptions
from cerebro_spark.tune.signatures import complete_docstring, refusing_unknown

jedi = pytest.importorskip("jedi")
ROOT = Path(__file__).resolve().parents[3]
SEARCHES: dict[str, set[str]] = {
    "GridSearch": {"epochs"},
    "RandomSearch": {"num_trials", "epochs"},
    "TPESearch": {"num_trials", "epochs"},
    "Hyperband": {"max_epochs", "eta"},
    "ASHA": {"num_trials", "max_epochs", "eta", "min_epochs"},
    "PBT": {"population", "epochs", "perturb_every", "quantile", "perturb"},
}
SHARED = {field.name for field in fields(TrainingOptions)}
OF_SEARCHES = {"model_fn", "space", "max_concurrent", "time_budget", "patience", "target", "progress"}


def with_libraries() -> dict[str, tuple[Callable[..., Any], set[str]]]:
    from cerebro_spark.tune.hyperopt import CerebroTrials
    from cerebro_spark.tune.optuna import optimize

    of_optimize = {"study", "model_fn", "space", "data", "epochs", "n_trials", "timeout", "callbacks"}
    return {
        **{name: (getattr(cs, name), OF_SEARCHES | own) for name, own in SEARCHES.items()},
        "CerebroTrials": (CerebroTrials, {"data", "epochs", "points_to_evaluate", "run_id"}),
        "optimize": (optimize, of_optimize | {"max_concurrent", "progress", "run_id"}),
    }


NAMES = [*SEARCHES, "CerebroTrials", "optimize"]


@pytest.mark.parametrize("name", NAMES)
def test_every_argument_is_in_the_signature_with_its_one_default(name: str) -> None:
    called, own = with_libraries()[name]
    parameters = inspect.signature(called).parameters
    assert set(parameters) == SHARED | own
    for field in fields(TrainingOptions):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        assert parameters[field.name].default == default
        assert parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
    assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())


@pytest.mark.parametrize("name", NAMES)
def test_help_describes_every_argument(name: str) -> None:
    called, own = with_libraries()[name]
    shown = pydoc.plain(pydoc.render_doc(called))
    for argument in SHARED | own:
        description = re.search(rf"^[ |]*{argument}: ([A-Z\"].*(?:\n[ |]{{10,}}.*)*)", shown, re.MULTILINE)
        assert description, f"{name} does not describe {argument}"
        default = inspect.signature(called).parameters[argument].default
        assert default is inspect.Parameter.empty or re.search(r"Defaults[\s|]+to|Required", description.group())


def test_a_docstring_is_completed_before_its_other_sections() -> None:
    class Shared:
        """Shared.

        Args:
            b: The second,
                on two lines. Default: 1.
        """

    def called(a: int, b: int = 1, c: int = 2) -> None:
        """Do it.

        Args:
            c: The third. Default: 2.
            a: The first.

        Returns:
            Nothing.
        """

    assert complete_docstring(called, [called, Shared]) == (
        "Do it.\n\nArgs:\n    a: The first.\n    b: The second,\n        on two lines. Default: 1.\n"
        "    c: The third. Default: 2.\n\nReturns:\n    Nothing.\n"
    )


def test_an_unknown_keyword_is_refused_and_the_signature_stays() -> None:
    @refusing_unknown({"speed": "drive(..., limit=30)"})
    def drive(limit: int = 50) -> int:
        return limit

    assert (drive(), drive(limit=30), str(inspect.signature(drive))) == (50, 30, "(limit: 'int' = 50) -> 'int'")
    with pytest.raises(ConfigurationError, match=r"^drive has no argument 'limits': did you mean 'limit'"):
        drive(limits=30)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"^drive has no argument 'speed': give it as drive\(..., limit=30\)"):
        drive(speed=30)  # type: ignore[call-arg]


# -- editors


def completions(code: str) -> set[str]:
    return {found.name for found in jedi.Script(code, path=ROOT / "typed_by_a_user.py").complete()}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEARCHES)
def test_an_editor_completes_the_arguments(name: str) -> None:
    wanted = SHARED | OF_SEARCHES | SEARCHES[name]
    start = f"import cerebro_spark as cs\ncs.{name}("
    assert {f"{each}=" for each in wanted} <= completions(start)
    (signature,) = jedi.Script(start, path=ROOT / "typed_by_a_user.py").get_signatures()
    assert signature.params[0].name == "model_fn"
    assert {each.name for each in signature.params} == wanted


@pytest.mark.slow
def test_an_editor_completes_what_a_search_returns() -> None:
    search = "cs.GridSearch(print, space={}, store='runs', metric='loss', epochs=1)"
    start = f"import cerebro_spark as cs\nresult = {search}.fit(df)\n"
    assert {"best_trial", "trials", "history", "units", "model", "transform", "evaluate"} <= completions(
        f"{start}result."
    )
    assert {"id", "params", "metrics", "epoch"} <= completions(f"{start}result.best_trial.")
    for again in ("resume", "replay"):
        assert "best_trial" in completions(f"import cerebro_spark as cs\ncs.{again}('runs', 'monday').")


@pytest.mark.slow
def test_a_notebook_shows_the_arguments_of_what_is_imported() -> None:
    (signature,) = jedi.Interpreter("GridSearch(", [{"GridSearch": cs.GridSearch}]).get_signatures()
    assert {each.name for each in signature.params} == SHARED | OF_SEARCHES | SEARCHES["GridSearch"]


# -- type checkers

TYPED = """
from typing import Any, assert_type

import cerebro_spark as cs
from cerebro_spark.result import BestTrial


def of(df: Any, model_fn: Any) -> None:
    search = cs.GridSearch(model_fn, space={}, store="runs", metric="loss", epochs=1)
    assert_type(search.fit(df), cs.Result)
    assert_type(search.fit(df).best_trial, BestTrial)
    assert_type(search.fit(df, [{}, {}]), list[cs.Result])
    assert_type(cs.replay("runs", "monday").best_trial, BestTrial)
    assert_type(search.seed, int)
    cs.GridSearch(model_fn, space={}, store="runs", metric="loss", epoch=1)  # wrong
    cs.PBT(model_fn, space={}, store="runs", metric="loss", population="8", epochs=1)  # wrong
"""
WITH_PYSPARK = """
    from pyspark.ml import Estimator

    stage: Estimator[Any] = search
    other: Estimator[Any] = search.fit(df)  # wrong
"""


# Only what the answer depends on is read, which takes seconds instead of minutes.
MYPY = """
[mypy]
strict = True
follow_imports = skip
[mypy-cerebro_spark]
follow_imports = silent
[mypy-cerebro_spark.tune.*]
follow_imports = silent
[mypy-cerebro_spark.result.*]
follow_imports = silent
"""


@pytest.mark.slow
@pytest.mark.parametrize("pyspark", [True, False], ids=["with pyspark", "without pyspark"])
def test_a_type_checker_knows_what_fit_returns(pyspark: bool, tmp_path: Path) -> None:
    file = tmp_path / "typed_by_a_user.py"
    file.write_text(TYPED + (WITH_PYSPARK if pyspark else ""))
    (tmp_path / "mypy.ini").write_text(MYPY + ("[mypy-pyspark.ml.*]\nfollow_imports = silent\n" if pyspark else ""))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", file.name],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error: " in line}
    wrong = {number for number, line in enumerate(file.read_text().splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, done.stdout + done.stderr
