"""`fit` waits for its turn on its backend before it prepares data, and is refused where waiting would not do."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from simulated_fmin import LossyBackend, torch_fn
from small_search import small_rows

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.errors import BackendError
from cerebro_spark.tune.trackers import Tracker

LONG = 120.0


class Gate(Tracker):
    """Holds its run after the first epoch, in the thread that drives it, until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def epoch(self, trial: str, params: Mapping[str, Any], epoch: int, metrics: Mapping[str, float]) -> None:
        self.reached.set()
        assert self.opened.wait(LONG)


@pytest.fixture(autouse=True)
def _nothing_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that tests these runs does not wait for them."""
    monkeypatch.setattr("cerebro_spark.live.run._wait_at_exit_for", lambda run: None)


@pytest.fixture
def waits() -> Iterator[threading.Event]:
    """Is set once a run says that it waits for another."""
    said, log = threading.Event(), logging.getLogger("cerebro_spark.backend.run_queue")
    handler, level = logging.Handler(), log.level
    handler.emit = lambda record: said.set()  # type: ignore[method-assign]
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield said
    log.removeHandler(handler)
    log.setLevel(level)


@pytest.fixture
def backend() -> LossyBackend:
    return LossyBackend(lambda params, epoch: float(params["x"]))


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def search_in(folder: Path, backend: Any, *trackers: Tracker) -> cs.GridSearch:
    return cs.GridSearch(
        torch_fn,
        space={"x": hp.choice([0.0, 1.0])},
        store=str(folder),
        metric="val_loss",
        epochs=1,
        features="x",
        label="y",
        validation=0.25,
        backend=backend,
        trackers=trackers,
        progress=False,
    )


def prepared(folder: Path) -> list[str]:
    """The names of the data sets in a store."""
    return sorted(path.name for path in (folder / "datasets").glob("*"))


def test_a_fit_waits_for_another_before_it_prepares_data(
    backend: LossyBackend, pool: ThreadPoolExecutor, waits: threading.Event, tmp_path: Path
) -> None:
    gate, data = Gate(), small_rows(40)
    first = pool.submit(search_in(tmp_path, backend, gate).fit, data, run_id="first")
    assert gate.reached.wait(LONG)
    second: Future[Any] = pool.submit(search_in(tmp_path, backend).fit, data, run_id="second")
    assert waits.wait(LONG)
    assert len(prepared(tmp_path)) == 1, "that of the run that goes on"
    assert not (tmp_path / "runs" / "second").exists()
    assert not second.done()
    gate.opened.set()
    assert [len(run.result(LONG).history) for run in (first, second)] == [2, 2]
    assert len(prepared(tmp_path)) == 2


def test_a_fit_follows_one_that_failed(
    backend: LossyBackend, pool: ThreadPoolExecutor, waits: threading.Event, tmp_path: Path
) -> None:
    gate, data = Gate(), small_rows(40)
    first = pool.submit(search_in(tmp_path, backend, gate).fit, data)
    assert gate.reached.wait(LONG)
    backend.lives = 0
    second: Future[Any] = pool.submit(search_in(tmp_path, backend).fit, data)
    assert waits.wait(LONG)
    gate.opened.set()
    for run in (first, second):
        with pytest.raises(BackendError, match="all workers are gone"):
            run.result(LONG)
    with backend.turn(wait=False):  # it would be refused if one of them had not left
        pass


def test_a_fit_is_refused_before_data_is_prepared_while_a_run_goes_on_that_was_started(
    backend: LossyBackend, tmp_path: Path
) -> None:
    gate, data = Gate(), small_rows(40)
    started = search_in(tmp_path, backend, gate).start(data, run_id="mine")
    assert gate.reached.wait(LONG)
    before = prepared(tmp_path)
    with pytest.raises(BackendError, match="running already: thread run-mine drives a run on it"):
        search_in(tmp_path, backend).fit(data)
    with pytest.raises(BackendError, match="running already: thread run-mine drives a run on it"):
        search_in(tmp_path, backend).start(data).wait(LONG)
    assert prepared(tmp_path) == before
    gate.opened.set()
    assert len(started.wait(LONG).history) == 2


def test_a_run_that_is_started_while_a_fit_goes_on_is_refused_before_data_is_prepared(
    backend: LossyBackend, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    gate, data = Gate(), small_rows(40)
    first = pool.submit(search_in(tmp_path, backend, gate).fit, data)
    assert gate.reached.wait(LONG)
    before = prepared(tmp_path)
    with pytest.raises(BackendError, match="running already"):
        search_in(tmp_path, backend).start(data).wait(LONG)
    assert prepared(tmp_path) == before
    gate.opened.set()
    assert len(first.result(LONG).history) == 2


class Nested(Tracker):
    """Begins another run on the backend of its own, in the thread that drives it."""

    def __init__(self, search: cs.GridSearch, data: Any) -> None:
        self.error: BackendError | None = None
        self._search, self._data = search, data

    def epoch(self, trial: str, params: Mapping[str, Any], epoch: int, metrics: Mapping[str, float]) -> None:
        try:
            self._search.fit(self._data)
        except BackendError as error:
            self.error = error


@pytest.mark.parametrize("how", ["fit", "start"])
def test_a_fit_within_a_run_of_its_backend_is_refused(how: str, backend: LossyBackend, tmp_path: Path) -> None:
    data = small_rows(40)
    nested = Nested(search_in(tmp_path, backend), data)
    search = search_in(tmp_path, backend, nested)
    result = search.fit(data) if how == "fit" else search.start(data).wait(LONG)
    assert len(result.history) == 2
    assert "running already: this thread drives a run" in str(nested.error)
    assert len(prepared(tmp_path)) == 1


def test_fits_on_backends_of_their_own_do_not_wait(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    """Both reach their gates before either is opened."""
    gates, data = [Gate(), Gate()], small_rows(40)
    runs = [pool.submit(search_in(tmp_path, LossyBackend(lambda params, epoch: 1.0), gate).fit, data) for gate in gates]
    assert all(gate.reached.wait(LONG) for gate in gates)
    for gate in gates:
        gate.opened.set()
    assert [len(run.result(LONG).history) for run in runs] == [2, 2]
