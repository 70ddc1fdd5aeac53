"""`search.start(df)` in virtual time: returns at once, raises what can be seen at once, and gives what `fit` gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from simulated_fmin import LossyBackend, torch_fn
from small_search import small_dataset
from sound_search import DATA
from sound_search import search as sound

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import BackendError, CommandRefused, ConfigurationError, StoreForbidden
from cerebro_spark.forecast.observer import LiveForecasts
from cerebro_spark.store.local import LocalStore
from cerebro_spark.tune.plugins.led import LedSearch
from cerebro_spark.tune.trackers import Tracker


@pytest.fixture(autouse=True)
def _nothing_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that tests these runs does not wait for them."""
    monkeypatch.setattr("cerebro_spark.live.run._wait_at_exit_for", lambda run: None)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("data"), rows=80)


def parabola(params: Mapping[str, Any], epoch: int) -> float:
    return float(params["x"] - 1) ** 2 + 1 / epoch


class Held(LossyBackend):
    """Waits before its third unit ends, until it is let go."""

    def __init__(self) -> None:
        super().__init__(parabola)
        self.there, self.go = threading.Event(), threading.Event()
        self.at_unit = self._hold

    def _hold(self, number: int) -> None:
        if number == 3:
            self.there.set()
            assert self.go.wait(300)  # longer than anything that is done meanwhile


@pytest.fixture
def held() -> Iterator[Held]:
    backend = Held()
    yield backend
    backend.go.set()


def grid(folder: Path, backend: Any, **options: Any) -> cs.GridSearch:
    return cs.GridSearch(
        torch_fn,
        space={"x": hp.choice([0.0, 1.0, 2.0])},
        store=str(folder / "store"),
        metric="val_loss",
        epochs=2,
        backend=backend,
        progress=False,
        **options,
    )


def test_start_returns_while_the_run_goes_on_and_wait_gives_what_fit_gives(
    dataset: Dataset, held: Held, tmp_path: Path
) -> None:
    run = grid(tmp_path, held).start(dataset, run_id="mine")
    assert held.there.wait(60)
    assert (run.id, run.status) == ("mine", "running")
    assert list(run.trials["trial"]) == ["t0", "t1", "t2"]
    assert run.progress.units == 2
    assert len(run.workers) == 2
    held.go.set()
    result = run.wait(60)
    assert result is run.result
    assert (run.status, result.run_id, result.best_trial.params["x"]) == ("done", "mine", 1.0)
    assert run.best == result.best_trial
    assert run.trials.equals(result.trials)
    assert run.history.equals(result.history)
    again = grid(tmp_path, LossyBackend(parabola)).fit(dataset)
    assert again.trials.equals(result.trials)


def test_a_run_that_goes_on_has_a_forecast(
    dataset: Dataset, held: Held, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cerebro_spark.driver.LiveForecasts", partial(LiveForecasts, nice=0, after=0.0))
    run = grid(tmp_path, held).start(dataset)
    assert held.there.wait(60)
    assert run.what_if("stop_trial", trial="t2", timeout=120.0).known
    forecast = run.forecast
    assert forecast is not None
    assert forecast.exact
    assert "stop_trial t2" in forecast.what_if
    assert cs.attach(str(tmp_path / "store"), run.id).forecast == forecast
    held.go.set()
    run.wait(60)


def test_a_replay_and_a_led_run_ask_for_forecasts_in_their_own_ways(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[Any] = []

    def noted(store: Any, search: Any, run: str) -> LiveForecasts:
        searches.append(search)
        return LiveForecasts(store, search, run)

    monkeypatch.setattr("cerebro_spark.driver.LiveForecasts", noted)
    done = grid(tmp_path, LossyBackend(parabola)).fit(dataset)
    cs.replay(str(tmp_path / "store"), done.run_id, backend=LossyBackend(parabola))
    trained, replayed = searches
    assert trained.unforeseeable == ""
    assert replayed is None, "its process reads the script from the recipe"
    assert LedSearch.unforeseeable


def test_a_run_has_an_id_at_once(dataset: Dataset, held: Held, tmp_path: Path) -> None:
    run = grid(tmp_path, held).start(dataset)
    held.go.set()
    assert run.wait(60).run_id == run.id


def test_what_breaks_the_run_is_in_its_error_and_raised_by_wait(dataset: Dataset, tmp_path: Path) -> None:
    run = grid(tmp_path, LossyBackend(parabola, lives=4)).start(dataset, run_id="mine")
    with pytest.raises(BackendError, match="all workers are gone") as caught:
        run.wait(60)
    assert run.status == "failed"
    assert run.error is caught.value
    assert 'cs.resume("file://' in caught.value.__notes__[0]
    with pytest.raises(CommandRefused, match=r"run mine is failed: continue it with cs\.resume"):
        run.pause()
    done = cs.resume(str(tmp_path / "store"), "mine", backend=LossyBackend(parabola))
    assert done.finished


def holding(lock: Any) -> Any:
    """A function that cannot be pickled, because of what it holds."""

    def model_fn(params: Mapping[str, Any]) -> Any:
        import keras

        return keras, lock

    return model_fn


class ReadOnly(LocalStore):
    def _stage(self, name: str) -> Any:
        with self._errors(name):
            raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("changes", "data", "message"),
    [
        ({"features": None}, DATA, "`features` is not given"),
        ({}, None, "there is no data"),
        ({"validation": None}, DATA, "there is no validation"),
        ({"replicas": 9}, DATA, "`replicas` is 9"),
        ({"store": "memory://runs"}, DATA, "in the memory of this process"),
        ({"trackers": ["tensorboard"]}, DATA, "must be trackers"),
        ({"model_fn": holding(threading.Lock())}, DATA, "cannot be pickled"),
    ],
    ids=lambda value: next(iter(value), "none") if isinstance(value, dict) and value is not DATA else "",
)
def test_mistakes_that_can_be_seen_at_once_are_raised_at_once(
    changes: dict[str, Any], data: Any, message: str, tmp_path: Path
) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ConfigurationError, match=message):
        sound(tmp_path, **changes).start(data)
    assert set(threading.enumerate()) <= before
    assert LocalStore(tmp_path / "store").list() == []


def test_a_store_that_cannot_be_written_and_an_id_that_is_taken_are_said_at_once(
    dataset: Dataset, tmp_path: Path
) -> None:
    grid(tmp_path, LossyBackend(parabola)).fit(dataset, run_id="mine")
    with pytest.raises(ConfigurationError, match="has a run 'mine' already"):
        grid(tmp_path, LossyBackend(parabola)).start(dataset, run_id="mine")
    search = grid(tmp_path, LossyBackend(parabola))
    search.store = ReadOnly(tmp_path / "store")
    with pytest.raises(StoreForbidden, match="cannot be written"):
        search.start(dataset)


def test_start_is_of_one_run(dataset: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="call start for each of them"):
        grid(tmp_path, LossyBackend(parabola)).start(dataset, [{}, {}])  # type: ignore[arg-type]


def test_a_search_may_be_changed_while_its_run_goes_on(dataset: Dataset, held: Held, tmp_path: Path) -> None:
    search = grid(tmp_path, held)
    run = search.start(dataset)
    assert held.there.wait(60)
    search.epochs, search.metric, search.backend = 7, "val_score", None
    held.go.set()
    result = run.wait(60)
    assert len(result.history) == 3 * 2
    assert result.best_trial.params["x"] == 1.0


def test_trackers_hear_of_a_run_that_was_started(dataset: Dataset, tmp_path: Path) -> None:
    heard: list[str] = []

    class Hearing(Tracker):
        def start(self, run_id: str, objective: Any) -> None:
            heard.append("start")

        def finish(self, result: Any) -> None:
            heard.append("finish")

        def close(self) -> None:
            heard.append("close")

    grid(tmp_path, LossyBackend(parabola), trackers=[Hearing()]).start(dataset).wait(60)
    assert heard == ["start", "finish", "close"]


def test_a_run_that_was_started_is_seen_from_elsewhere(dataset: Dataset, held: Held, tmp_path: Path) -> None:
    run = grid(tmp_path, held).start(dataset, run_id="mine")
    assert held.there.wait(60)
    other = cs.attach(str(tmp_path / "store"), "mine")
    assert (other.status, list(other.trials["trial"])) == ("running", ["t0", "t1", "t2"])
    assert other.driver.startswith("process ")
    held.go.set()
    run.wait(60)
    assert other.status == "done"
    assert other.result is not None
    assert other.result.best_trial == run.best
    assert other.trials.equals(run.trials)


def test_a_dashboard_is_opened_for_the_store_before_the_run_begins(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, str, bool]] = []

    def open_dashboard(store: Any, run: str, read_only: bool) -> str:
        opened.append((store.url, run, read_only))
        return "a dashboard"

    monkeypatch.setattr("cerebro_spark.dashboard.notebook.open_dashboard", open_dashboard)
    search = grid(tmp_path, LossyBackend(parabola))
    search.fit(dataset, run_id="first", dashboard=True)
    run = search.start(dataset, run_id="second", dashboard=True)
    run.wait(60)
    shown: Any = run.dashboard(read_only=True)
    assert shown == "a dashboard"
    url = LocalStore(tmp_path / "store").url
    assert opened == [(url, "first", False), (url, "second", False), (url, "second", True)]
