"""One run of each framework for all tests of results."""

from __future__ import annotations

import pytest
from made_runs import MadeRun, keras_model_fn, run_search, scaled, torch_model_fn

from cerebro_spark.trainer.base import Hooks


@pytest.fixture(scope="session")
def torch_run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    """Its objective is one that gets worse with training, so that the best epoch is not the last."""
    hooks = Hooks(torch_model_fn, input_fn=scaled)
    return run_search(tmp_path_factory.mktemp("torch"), hooks, objective=("val_worst", "min"))


@pytest.fixture(scope="session")
def keras_run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    """Its objective is one that gets worse with training, so that the best epoch is not the last."""
    return run_search(tmp_path_factory.mktemp("keras"), Hooks(keras_model_fn), objective=("val_auc", "min"))


@pytest.fixture(params=["torch", "keras"])
def made_run(request: pytest.FixtureRequest) -> MadeRun:
    made = request.getfixturevalue(f"{request.param}_run")
    assert isinstance(made, MadeRun)
    return made


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark 3.5 compares versions with a deprecated class and leaves the sockets of `collect` to the collector."""
    for item in items:
        if item.get_closest_marker("jvm"):
            item.add_marker(pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated"))
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"))
