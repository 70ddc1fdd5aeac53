"""Whole searches with a module of the user's own that no other process can find: trained, scored on Spark, replayed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from small_search import FEATURES, small_rows

import cerebro_spark as cs
from cerebro_spark import hp

pytestmark = [pytest.mark.slow, pytest.mark.jvm]
SOURCES = {
    "own_models/__init__.py": "",
    "own_models/sizes.py": "HIDDEN = 5\n",
    "own_models/build.py": f"""
def model_fn(params):
    import torch
    import cerebro_spark as cs
    from .sizes import HIDDEN  # only when it is called, and relative to the package

    module = torch.nn.Sequential(torch.nn.Linear({FEATURES}, HIDDEN), torch.nn.Linear(HIDDEN, 1), torch.nn.Flatten(0))
    optimizer = torch.optim.SGD(module.parameters(), lr=params["lr"])
    return cs.TorchModel(module, optimizer, torch.nn.BCEWithLogitsLoss())
""",
}


@pytest.fixture
def model_fn(tmp_path: Path) -> Iterator[Callable[[Any], Any]]:
    """A function of a package that this process alone has imported: other processes are not told where it lies."""
    for name, text in SOURCES.items():
        (tmp_path / "beside" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "beside" / name).write_text(text)
    sys.path.insert(0, str(tmp_path / "beside"))
    import_module("own_models.sizes")
    yield import_module("own_models.build").model_fn
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_models"]:
        del sys.modules[name]
    if str(tmp_path / "beside") in sys.path:
        sys.path.remove(str(tmp_path / "beside"))


def test_a_package_beside_the_script_is_trained_scored_and_replayed(
    spark: Any, tmp_path: Path, model_fn: Callable[[Any], Any]
) -> None:
    data = small_rows(200)
    search = cs.GridSearch(
        model_fn,
        space={"lr": hp.choice([0.1, 0.01])},
        backend=cs.LocalBackend(num_workers=1, threads=1),
        store=str(tmp_path / "store"),
        features="x",
        label="y",
        metric="loss",
        epochs=1,
    )
    # A worker process gets this process's path: without it, the package is nowhere but in the recipe.
    sys.path.remove(str(tmp_path / "beside"))
    result = search.fit(data)
    assert list(result.trials.status) == ["finished", "finished"]
    frame = spark.createDataFrame([(row.tolist(),) for row in data["x"]], "x array<float>")
    scored = [row["prediction"] for row in result.transform(frame).collect()]
    assert scored == result.transform({"x": data["x"]})["prediction"].tolist()
    (tmp_path / "beside" / "own_models" / "sizes.py").write_text("HIDDEN = 9\n")
    again = cs.replay(str(tmp_path / "store"), result.run_id, backend=cs.LocalBackend(num_workers=1, threads=1))
    assert list(again.trials.loss) == list(result.trials.loss)
