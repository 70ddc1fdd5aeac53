"""A run whose store is a real HDFS, stopped and ended from outside: through the dashboard's server, and attached."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hadoop.cluster import HadoopCluster
from small_search import small_rows, torch_model_fn

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.dashboard.notebook import open_dashboard
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import CommandAnswered
from cerebro_spark.live.handle import OVER
from cerebro_spark.live.run import Run
from cerebro_spark.store.base import Store
from cerebro_spark.store.hdfs import HdfsStore

pytestmark = [pytest.mark.jvm, pytest.mark.hadoop]
RUN = "live"
TRIALS, WORKERS = 3, 2
ENDLESS = 10_000
SECONDS = 300.0


def gated_train_fn(folder: Path) -> Callable[..., dict[str, float]]:
    """A `train_fn` that notes which trial it is called for, and waits while a file closes its way."""
    began, held, gate = str(folder / "began"), str(folder / "held"), str(folder / "closed")

    def train_fn(model: Any, batches: Iterable[Any], params: Mapping[str, Any]) -> dict[str, float]:
        import os
        import time

        note(began, params["number"])
        if os.path.exists(gate):
            note(held, params["number"])
        while os.path.exists(gate):
            time.sleep(0.02)  # another process takes it away
        return {"loss": 1.0, "rows": 1.0}

    def note(name: str, number: int) -> None:
        with open(name, "a") as notes:
            notes.write(f"{number}\n")

    return train_fn


def noted(folder: Path, name: str) -> Counter[int]:
    """How many units of each trial have begun, or are held, by the trial's `number`."""
    notes = folder / name
    return Counter(map(int, notes.read_text().split())) if notes.exists() else Counter()


class Page:
    """Asks and sends what the pages of the dashboard do."""

    def __init__(self, link: str) -> None:
        self._link = urlsplit(link)
        _, headers, _ = self._ask("GET", f"/?{self._link.query}", {})
        self._cookie = {"Cookie": headers["set-cookie"].split(";")[0]}

    def get(self, path: str) -> Any:
        status, _, body = self._ask("GET", path, self._cookie)
        assert status == 200, body
        return json.loads(body)

    def stop(self, trial: str) -> str:
        """Click on "stop"; returns the id of the command."""
        headers = {"Origin": f"http://{self._link.netloc}", "X-CSRF-Token": self.get("/api/server")["csrf"]}
        body = json.dumps({"verb": "stop_trial", "trial": trial})
        asked = {**self._cookie, **headers, "Content-Type": "application/json"}
        status, _, said = self._ask("POST", f"/api/runs/{RUN}/commands", asked, body)
        assert status == 202, said
        return str(json.loads(said)["command"]["id"])

    def _ask(
        self, method: str, path: str, headers: Mapping[str, str], body: str | None = None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._link.port or 80, timeout=SECONDS)
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Host": self._link.netloc, **headers})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()


@contextlib.contextmanager
def begun(store: Store, folder: Path) -> Iterator[Run]:
    """A search that does not end by itself; it is over after the block."""
    search = cs.GridSearch(
        torch_model_fn,
        space={"number": hp.choice(list(range(TRIALS))), "batch_size": 16},
        train_fn=gated_train_fn(folder),
        backend=cs.LocalBackend(WORKERS, threads=1),
        store=store,
        features="x",
        label="y",
        partitions=2,
        metric="loss",
        epochs=ENDLESS,
        framework="torch",
        progress=False,
    )
    run = search.start(small_rows(32), run_id=RUN)
    try:
        yield run
    finally:
        (folder / "closed").unlink(missing_ok=True)
        if run.status not in OVER:
            run.kill(timeout=SECONDS)


def until(run: Run, ready: Callable[[], bool]) -> None:
    """Look until it is so: other processes, which tell nobody, make it so."""
    end = time.monotonic() + SECONDS
    while not ready():
        assert run.error is None, run.error
        assert time.monotonic() < end, run
        threading.Event().wait(0.1)


def test_a_trial_is_stopped_through_the_dashboard_and_the_run_ended_by_who_is_attached(
    hadoop_cluster: HadoopCluster, tmp_path: Path
) -> None:
    store = HdfsStore(f"{hadoop_cluster.url}/live-run", options=hadoop_cluster.settings)
    with (
        begun(store, tmp_path) as run,
        contextlib.closing(open_dashboard(store, show=False)) as shown,
    ):
        until(run, lambda: len(run.snapshot().epochs) >= TRIALS)
        (tmp_path / "closed").touch()
        until(run, lambda: bool(noted(tmp_path, "held")))
        number = next(iter(noted(tmp_path, "held")))
        names = {trial.params["number"]: name for name, trial in run.snapshot().trials.items()}
        stopped, other = names[number], names[(number + 1) % TRIALS]
        before = noted(tmp_path, "began")[number]
        page, attached = Page(shown.link), cs.attach(store, RUN)
        until(run, lambda: listed(page) == {RUN: "running"})

        command = page.stop(stopped)
        until(run, lambda: said_of(page, command) == "done")
        assert statuses(page)[stopped] == "stopped"
        assert page.get(f"/api/runs/{RUN}/trials/{stopped}")["trial"]["status"] == "stopped"
        assert attached.snapshot().status(stopped) == "stopped"
        assert attached.status == "running"

        done = attached.snapshot().trials[other].epochs
        (tmp_path / "closed").unlink()
        until(run, lambda: attached.snapshot().trials[other].epochs >= done + 2)
        assert noted(tmp_path, "began")[number] == before, "the unit that was held is its last"
        assert attached.end().done
        run.wait(SECONDS)
        assert cs.attach(store, RUN).status == "done"
        until(run, lambda: listed(page) == {RUN: "finished"})
        assert statuses(page)[stopped] == "stopped"
    assert ordered_after(store, command, stopped) == []
    assert ordered_after(store, command, other), "else the run would have stood still"


def listed(page: Page) -> dict[str, str]:
    """How each run stands, as the list of runs shows it."""
    return {row["run"]: row["state"] for row in page.get("/api/runs")["runs"]}


def said_of(page: Page, command: str) -> str:
    """How a command stands, as the page of the run shows it; nothing while it is on its way."""
    known = page.get(f"/api/runs/{RUN}/commands")["commands"]
    return next((str(one["state"]) for one in known if one["id"] == command), "")


def statuses(page: Page) -> dict[str, str]:
    """How each trial stands, as the page of the run shows it."""
    return {trial["id"]: trial["status"] for trial in page.get(f"/api/runs/{RUN}/trials")["trials"]}


def ordered_after(store: Store, command: str, trial: str) -> list[Any]:
    """The units of a trial that were given to workers from the answer to a command on."""
    heard = [pair for turn in EventLog(store, RUN).turns() for pair in turn]
    (answer,) = (at for at, (e, _) in enumerate(heard) if isinstance(e, CommandAnswered) and e.command == command)
    return [order for _, outcome in heard[answer:] for order in outcome.orders if order.unit.trial == trial]
