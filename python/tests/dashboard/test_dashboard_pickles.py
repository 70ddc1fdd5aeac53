"""No pickle of a run is ever opened to show it: neither by a route of the dashboard nor by an attached run."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from dashboard_clients import TOKEN, Browser, serving
from dashboard_runs import small_turns, write
from starlette.routing import Route

import cerebro_spark as cs
from cerebro_spark.dashboard.serving import Served
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.live.handle import RunHandle
from cerebro_spark.store import moved, paths
from cerebro_spark.store.local import LocalStore

DONE, UNDER_WAY = "r1", "r2"
STREAMS = {"/api/stream", "/api/runs/{run}/stream"}
POSTS = {"/api/runs/{run}/commands", "/api/runs/{run}/questions"}
VIEWS: dict[str, Callable[[RunHandle], object]] = {
    "status": lambda run: run.status,
    "result": lambda run: run.result,
    "snapshot": lambda run: run.snapshot(),
    "trials": lambda run: run.trials,
    "best": lambda run: run.best,
    "history": lambda run: run.history,
    "workers": lambda run: run.workers,
    "progress": lambda run: run.progress,
    "forecast": lambda run: run.forecast,
    "error": lambda run: run.error,
    "repr": repr,
    "html": lambda run: run._repr_html_(),
}


class Trap:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.file,)


@pytest.fixture
def sprung(tmp_path: Path) -> Path:
    """The file that is there once a trap was opened."""
    return tmp_path / "sprung"


@pytest.fixture
def store(tmp_path: Path, sprung: Path) -> LocalStore:
    """A run that is done and one that is not; wherever a run may have a pickle there is a trap."""
    store = LocalStore(tmp_path / "store")
    write(store, small_turns(), DONE)
    write(store, small_turns()[:7], UNDER_WAY)
    trap = pickle.dumps(Trap(sprung))
    for run in (DONE, UNDER_WAY):
        for name in (paths.functions(run), paths.result(run), paths.forecast(run, 1), paths.beat(run, "5e8c", 1)):
            store.write(name, trap)
    return store


@pytest.fixture
def no_pickles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was opened in spite of it; whoever tries fails."""
    tried: list[str] = []

    def refuse(*arguments: object, **more: object) -> Any:
        tried.append(f"{arguments!r:.80}")
        raise AssertionError("something was unpickled")

    for module in (pickle, cloudpickle, cloudpickle.cloudpickle):
        monkeypatch.setattr(module, "loads", refuse)
        monkeypatch.setattr(module, "load", refuse)
    monkeypatch.setattr(pickle, "Unpickler", type("Unpickler", (), {"__init__": refuse}))
    monkeypatch.setattr(moved.Unpickler, "load", refuse)  # it was derived before
    return tried


def routes_of(served: Served) -> list[Route]:
    return list(served.server.config.app._app.routes)  # type: ignore[union-attr]


def ask(browser: Browser, route: Route, run: str, headers: dict[str, str]) -> int:
    """Ask a route about a run; returns its status."""
    names = {"{run}": run, "{trial}": "t0", "{name:path}": "index.html"}
    path = route.path
    for name, value in names.items():
        path = path.replace(name, value)
    assert "{" not in path, f"{path} has an argument that this test does not know"
    if route.path in STREAMS:
        return 200 if browser.events(path, 1) else 0
    assert route.methods is not None
    if "POST" in route.methods:
        assert route.path in POSTS, "a route that writes is not known to this test"
        return browser.ask(path, "POST", b'{"verb": "stop_trial", "trial": "t0"}', headers)[0]
    return browser.ask(f"{path}?run={run}" if path == "/api/compare" else path)[0]


def test_a_trap_works(sprung: Path) -> None:
    pickle.loads(pickle.dumps(Trap(sprung)))
    assert sprung.exists()


def test_the_dashboard_opens_no_pickle(store: LocalStore, sprung: Path, no_pickles: list[str]) -> None:
    with serving(store) as served:
        browser = Browser(served.port)
        assert browser.ask(f"/?token={TOKEN}")[0] == 200
        csrf = json.loads(browser.ask("/api/server")[2])["csrf"]
        headers = {"Origin": f"http://127.0.0.1:{served.port}", "Content-Type": "application/json"}
        headers["X-CSRF-Token"] = csrf
        routes = routes_of(served)
        assert {*POSTS, *STREAMS} <= {route.path for route in routes}
        for route in routes:
            for run in (DONE, UNDER_WAY):
                status = ask(browser, route, run, headers)
                writes = "POST" in (route.methods or ())
                assert status == ((409 if run == DONE else 202) if writes else 200), (route.path, run)
    assert no_pickles == []
    assert not sprung.exists()


@pytest.mark.parametrize("run", [DONE, UNDER_WAY])
def test_an_attached_run_opens_no_pickle(store: LocalStore, sprung: Path, no_pickles: list[str], run: str) -> None:
    attached = cs.attach(store, run)
    if run == UNDER_WAY:
        with pytest.raises(ConfigurationError, match="is no forecast"):
            _ = attached.forecast
    store.delete(paths.forecast(run, 1))
    for view in VIEWS.values():
        view(attached)
    assert no_pickles == []
    assert not sprung.exists()


def test_no_view_of_an_attached_run_is_left_out() -> None:
    properties = {name for name, part in vars(RunHandle).items() if isinstance(part, property)}
    assert properties - {"id"} <= set(VIEWS)
