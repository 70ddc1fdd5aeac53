"""`cerebro-spark plan`: a search from a file, and every way to name one wrongly."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro_spark.cli import main

RECIPE = """
import cerebro_spark as cs
import numpy as np
import torch
from torch import nn

def model_fn(params):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))
    return cs.TorchModel(net, optimizer=torch.optim.Adam(net.parameters(), lr=params["lr"]), loss=nn.MSELoss())

def data():
    x = np.random.default_rng(0).normal(size=(4000, 4)).astype("float32")
    return {"x": x, "y": x.sum(axis=1)}

def search():
    space = {"lr": cs.hp.choice([0.1, 0.01])}
    return cs.GridSearch(model_fn, space=space, epochs=2, store="elsewhere", metric="val_loss", features="x", label="y",
                         validation=0.25, backend=cs.LocalBackend(2), progress=False)

number = 7
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Path]:
    """A file with a search, as users have it beside their data; what it changes in this process is undone."""
    path = tmp_path / "planned_recipe.py"
    path.write_text(RECIPE)
    known = list(sys.path)
    yield path
    sys.path[:] = known
    sys.modules.pop("planned_recipe", None)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_of_a_file_is_planned(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, picture = tmp_path / "store", tmp_path / "plan.png"
    arguments = ["plan", "--recipe", f"{recipe}:search", "--store", str(store), "--price", "0.5", "--seconds", "15"]
    assert main([*arguments, "--deadline", "3600", "--plot", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "to be done within 1 h 00 min" in said
    assert "spark-submit --num-executors 1 --executor-cores" in said
    assert picture.stat().st_size > 1000
    assert not (Path.cwd() / "elsewhere").exists()


@pytest.mark.parametrize(
    ("name", "more", "words"),
    [
        ("{}", [], "must be a file and a name in it"),
        ("{}:", [], "must be a file and a name in it"),
        ("missing.py:search", [], "there is no file"),
        ("{}:nothing", [], "has no 'nothing'"),
        ("{}:number", [], "is a int, but must be a search"),
        ("{}:search", ["--data", "rows"], "has no 'rows'"),
        ("{}:search", ["--deadline", "soon"], "must be seconds, or a date and time"),
        ("{}:search", ["--budget", "3"], "what a worker costs is not known"),
        ("{}:search", ["--plot", "plan.doc"], "does not name a picture"),
    ],
)
def test_what_cannot_be_planned_is_said_in_one_line(
    recipe: Path, capsys: pytest.CaptureFixture[str], name: str, more: list[str], words: str
) -> None:
    assert main(["plan", "--recipe", name.format(recipe), *more]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("cerebro-spark: error: ")


def test_a_file_whose_name_is_taken_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    taken = tmp_path / "json.py"
    taken.write_text("search = 1")
    assert main(["plan", "--recipe", f"{taken}:search"]) == 2
    assert "rename your file" in capsys.readouterr().err
