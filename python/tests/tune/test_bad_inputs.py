"""Every bad input of the table is told the value, the rule and the fix, before a worker is started where it can be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bad_inputs import TABLE, Bad
from sound_search import DATA, search
from sound_search import model_fn as good_model_fn

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.backend.remote import RemoteBackend
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.errors import CerebroError, ConfigurationError, MissingDependency, PreflightFailed, StoreForbidden
from cerebro_spark.store.local import LocalStore
from cerebro_spark.types import Partition


class WorkersStarted(BaseException):
    """No error of the package, so nothing in it can take this for one."""


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets as far as to start workers fails the test: a guard, in place of what they would do."""

    def start(self: RemoteBackend, partitions: Sequence[Partition], at: float = 0.0) -> None:
        raise WorkersStarted

    monkeypatch.setattr(RemoteBackend, "start", start)


def test_the_table_is_long_enough_and_names_each_case_once() -> None:
    assert len(TABLE) >= 40
    assert len({case.name for case in TABLE}) == len(TABLE)


@pytest.mark.usefixtures("no_workers")
def test_without_a_change_the_search_gets_as_far_as_its_workers(tmp_path: Path) -> None:
    """So what the table finds is the change, and the guard is where workers would start."""
    with pytest.raises(WorkersStarted):
        search(tmp_path).fit(DATA)


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_what_is_wrong_is_said_before_a_worker_is_started(case: Bad, tmp_path: Path) -> None:
    with pytest.raises(CerebroError, match=case.message) as caught:
        case.act(tmp_path)
    assert type(caught.value) is case.kind
    left = [name for name in LocalStore(tmp_path / "store").list() if not name.startswith("datasets/")]
    assert left == [], "nothing has happened, so nothing is kept"


class ReadOnly(LocalStore):
    """What a store looks like to somebody who may only read; chmod means nothing to root, as whom tests may run."""

    def _stage(self, name: str) -> Any:
        with self._errors(name):
            raise PermissionError(13, "Permission denied")


@pytest.mark.usefixtures("no_workers")
def test_a_store_that_may_not_be_written_is_said_before_the_data_is_read(tmp_path: Path) -> None:
    with pytest.raises(StoreForbidden, match=r"cannot be written.*Give `store` a place where you may write"):
        search(tmp_path, store=ReadOnly(tmp_path)).fit({**DATA, "age": ["never read"] * 20})


@pytest.mark.usefixtures("no_workers")
def test_tpe_without_hyperopt_is_said_when_the_search_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hyperopt", None)
    with pytest.raises(MissingDependency, match=r"pip install 'cerebro-spark\[hyperopt\]'"):
        search(tmp_path, cs.TPESearch, num_trials=3)


@pytest.fixture
def simulated_run(tmp_path: Path) -> cs.Result:
    backend = SimulatedBackend([SimulatedWorker("w0")], World(cost=lambda params: 1.0))
    result: cs.Result = search(tmp_path, backend=backend).fit(DATA, run_id="mine")
    return result


@pytest.mark.usefixtures("no_workers")
def test_what_a_run_that_is_there_says(simulated_run: cs.Result, tmp_path: Path) -> None:
    before = LocalStore(tmp_path / "store").list()
    with pytest.raises(ConfigurationError, match="has a run 'mine' already: choose another id"):
        search(tmp_path).fit(DATA, run_id="mine")
    assert LocalStore(tmp_path / "store").list() == before, "the data was not prepared in vain"
    with pytest.raises(CerebroError, match="has no run 'theirs': there are mine"):
        cs.replay(str(tmp_path / "store"), "theirs")
    with pytest.raises(CerebroError, match="has no run 'theirs': there are mine"):
        cs.resume(str(tmp_path / "store"), "theirs")
    with pytest.raises(ConfigurationError, match=r"run mine has no trial 't9': it has \['t0', 't1'\]"):
        simulated_run.model("t9")
    with pytest.raises(ConfigurationError, match="`kind` is 'pie', but must be one of"):
        simulated_run.plot("pie")


# -- what only a worker can see: one batch is tried before the run begins


def number_model_fn(params: dict[str, Any]) -> Any:
    import torch

    return torch.tensor(3.0).item()


def bare_model_fn(params: dict[str, Any]) -> Any:
    import torch

    return torch.nn.Linear(2, 1)


def uncompiled_model_fn(params: dict[str, Any]) -> Any:
    import keras

    return keras.Sequential([keras.layers.Dense(1)])


def tuple_model_fn(params: dict[str, Any]) -> Any:
    import keras

    return keras.Sequential([keras.layers.Dense(1)]), "adam"


def failing_model_fn(params: dict[str, Any]) -> Any:
    import torch

    return torch.nn.Linear(2, params["hiden"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_fn": number_model_fn}, "model_fn returned 3.0 of type float. model_fn must return cs.TorchModel"),
        (
            {"model_fn": bare_model_fn},
            r"model_fn returned Linear\(.* of type Linear. model_fn must return cs.TorchModel",
        ),
        ({"model_fn": uncompiled_model_fn}, "returned the Keras model .* without compiling it. model_fn must return a"),
        ({"model_fn": tuple_model_fn}, "of type tuple. model_fn must return a compiled Keras model"),
        ({"model_fn": failing_model_fn}, r"(?s)with params {'lr': 0.1}.*KeyError: 'hiden'"),
        (
            {"model_fn": good_model_fn, "metric": "val_acuracy", "mode": "max"},
            "`metric` is 'val_acuracy', but the model measures loss, val_loss: choose one of them",
        ),
    ],
    ids=["a number", "a bare module", "not compiled", "a tuple", "raises", "a metric that is not measured"],
)
def test_what_a_worker_has_to_try_ends_the_run_before_it_begins(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(PreflightFailed, match=message):
        search(tmp_path, backend=cs.LocalBackend(num_workers=1), **changes).fit(DATA, run_id="mine")
    assert not LocalStore(tmp_path / "store").list("runs"), "a run that never began leaves nothing"


@pytest.mark.jvm
def test_more_workers_than_the_cluster_has_room_for(spark: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"`num_workers` is 9, but .* has room for 2 .*: use num_workers=2"):
        cs.SparkBackend(spark, num_workers=9)


@pytest.mark.jvm
@pytest.mark.usefixtures("no_workers")
def test_columns_of_a_spark_frame(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(1.0, 2.0, 0, "x")] * 8, "age double, income double, churned int, town string")
    place = cs.SparkBackend(spark, num_workers=2)
    with pytest.raises(ConfigurationError, match="no column 'incom': did you mean 'income'"):
        search(tmp_path, backend=place, features=["age", "incom"]).fit(frame)
    with pytest.raises(CerebroError, match="'town' is of type string"):
        search(tmp_path, backend=place, features=["age", "town"]).fit(frame)
    with pytest.raises(ConfigurationError, match=r"`lr` is hp.uniform\(0, 1\), which has infinitely many values"):
        search(tmp_path, backend=place, space={"lr": hp.uniform(0, 1)})
