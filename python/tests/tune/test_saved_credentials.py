"""What is saved of a search or of trials has no credentials, also if functions hold a store, its data or a result."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import hyperopt
import numpy as np
import pytest
from simulated_fmin import LossyBackend, torch_fn
from small_search import small_rows

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store.base import Store
from cerebro_spark.store.fsspec import FsspecStore
from cerebro_spark.tune.estimator_stage import _make_search, arguments_of
from cerebro_spark.tune.hyperopt import CerebroTrials
from cerebro_spark.tune.saving import pickled

# Put together here, so that no function has them as a constant.
OPTION, WORD = "-".join(["planted", "in", "an", "option"]), "-".join(["planted", "in", "the", "address"])
Held = Callable[..., tuple[Any, ...]]


def secret_store(folder: Path) -> FsspecStore:
    return FsspecStore(f"memory://saved{folder}", token=OPTION, client_kwargs={"password": OPTION})


def grid(model_fn: Any, store: Store | str, **more: Any) -> cs.GridSearch:
    options: dict[str, Any] = {"metric": "val_loss", "epochs": 1, "progress": False, "framework": "torch", **more}
    return cs.GridSearch(model_fn, space={"lr": hp.choice([0.1, 0.2])}, store=store, **options)


@pytest.fixture
def held(tmp_path: Path) -> Held:
    """A function that holds stores with credentials, as they are and within a data set and a result."""
    store = secret_store(tmp_path)
    addressed = FsspecStore(f"memory://me:{WORD}@host{tmp_path}")
    dataset = prepare(small_rows(40), store=store, features="x", label="y", validation=0.25, partitions=2)
    result = grid(torch_fn, store, backend=LossyBackend(lambda params, epoch: 1.0)).fit(dataset)

    def function(*given: Any) -> tuple[Any, ...]:
        return store, addressed, dataset, result

    return function


def check_no_secrets(data: bytes) -> None:
    assert data
    assert OPTION.encode() not in data
    assert WORD.encode() not in data


def check_reopened(found: tuple[Any, ...], folder: Path) -> None:
    """All are there, by their addresses."""
    store, addressed, dataset, result = found
    assert (store.url, store._options) == (secret_store(folder).url, {})
    assert (addressed.url, addressed._address, addressed._options) == (f"memory://me@host{folder}",) * 2 + ({},)
    assert dataset.store is result._store is store
    assert (dataset.rows, len(result.trials)) == (40, 2)


def model_fn_of(held: Held) -> Any:
    def model_fn(params: dict[str, Any]) -> Any:
        return held()

    return model_fn


@pytest.mark.jvm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_saved_search_has_none(spark: Any, held: Held, tmp_path: Path) -> None:
    grid(model_fn_of(held), secret_store(tmp_path)).save(str(tmp_path / "search"))
    files = [file for file in (tmp_path / "search").rglob("*") if file.is_file()]
    check_no_secrets(b"".join(file.read_bytes() for file in files))
    check_reopened(cs.GridSearch.load(str(tmp_path / "search")).model_fn({}), tmp_path)


def test_the_arguments_of_a_search_have_none(held: Held, tmp_path: Path) -> None:
    data = pickled(arguments_of(grid(model_fn_of(held), secret_store(tmp_path))))
    check_no_secrets(data)
    check_reopened(_make_search(cs.GridSearch, data).model_fn({}), tmp_path)


def trials_with(held: Held, folder: Path) -> CerebroTrials:
    def input_fn(batch: Any, params: Any) -> Any:
        return held()

    fixed: dict[str, Any] = {"metric": "val_loss", "epochs": 1, "features": ["x"], "label": "y", "validation": 0.25}
    rows = {"x": np.arange(40.0), "y": np.arange(40.0)}
    backend = LossyBackend(lambda params, epoch: float(params["x"]))
    return CerebroTrials(store=secret_store(folder), backend=backend, data=rows, input_fn=input_fn, **fixed)


def minimize(trials: CerebroTrials, max_evals: int) -> None:
    space = {"x": hyperopt.hp.uniform("x", 0, 1)}
    options: dict[str, Any] = {"max_queue_len": 2, "verbose": False, "rstate": np.random.default_rng(3)}
    hyperopt.fmin(torch_fn, space, hyperopt.rand.suggest, max_evals, trials=trials, **options)


def test_pickled_trials_have_none_and_go_on(held: Held, tmp_path: Path) -> None:
    trials = trials_with(held, tmp_path)
    check_no_secrets(pickle.dumps(trials))
    minimize(trials, 2)
    data = pickle.dumps(trials)
    check_no_secrets(data)
    again = pickle.loads(data)
    assert again.input_fn is not None
    check_reopened(again.input_fn(None, {}), tmp_path)
    again.backend = LossyBackend(lambda params, epoch: float(params["x"]))
    minimize(again, 3)
    assert len(again) == 3


def test_what_was_saved_before_is_loaded_without_its_credentials(held: Held, tmp_path: Path) -> None:
    """As earlier versions did: of a store in a function, the pickle has all options."""
    arguments = arguments_of(grid(model_fn_of(held), secret_store(tmp_path)))
    data = cloudpickle.dumps(arguments)
    assert OPTION.encode() in data
    stores = _make_search(cs.GridSearch, data).model_fn({})[:2]
    assert [(store.url, store._options) for store in stores] == [(store.url, {}) for store in held()[:2]]
    assert WORD not in stores[1]._address
    trials = trials_with(held, tmp_path)
    state = trials.__getstate__()
    state["_made"] = cloudpickle.dumps({"store": "/tmp/runs", "metric": "val_loss", "input_fn": trials.input_fn})
    again = CerebroTrials.__new__(CerebroTrials)
    again.__setstate__(state)
    assert again.input_fn is not None
    assert (again.store, again.input_fn(None, {})[0]._options) == ("/tmp/runs", {})


def test_a_file_system_with_credentials_is_refused(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory", password=OPTION)
    trials = trials_with(lambda: (files,), tmp_path)
    with pytest.raises(ConfigurationError, match="uses a MemoryFileSystem that was opened with `password`") as error:
        pickle.dumps(trials)
    assert OPTION not in str(error.value)
    with pytest.raises(ConfigurationError, match=r"with `password`.*open it inside the function.*cs\.open_store"):
        arguments_of(grid(model_fn_of(lambda: (files,)), str(tmp_path)))
