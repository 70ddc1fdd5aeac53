"""Measures how long a click on "stop" takes until its trial begins no further unit. It never asserts.

    python -m benchmarks.click_to_stop [--store local|hdfs|URL] [--clicks 10] [--unit 0.2] [--json FILE]

A real search on two worker processes, whose units take a fixed time, and a real server of the dashboard in a process of
its own. For each click another trial is stopped by the request that the page sends. A click comes at a random moment:
the driver looks into its mailbox about once a second. When a unit begins is noted by its worker.

"local", the default, is a temporary folder. "hdfs" starts a name node and three data nodes on this machine; it needs
Java, and Maven the first time. Any other store is used as it is, in a folder of its own below it that is left there. It
needs the extras `dashboard` and `torch`.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

import cerebro_spark as cs
from benchmarks.circumstances import circumstances
from cerebro_spark import hp
from cerebro_spark.dashboard.notebook import open_dashboard
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import CommandAnswered, UnitFinished
from cerebro_spark.live.handle import OVER
from cerebro_spark.live.run import Run
from cerebro_spark.store.base import Store
from cerebro_spark.turns import Turn

RUN = "clicked"
_TESTS = Path(__file__).resolve().parents[1] / "python" / "tests"
_SECONDS = 120.0
_LOOK = 0.02
_SPARE_TRIALS = 2
_ENDLESS = 100_000


class Click(NamedTuple):
    """A click: what was stopped, when the request was sent, and which command it became."""

    trial: str
    at: float
    command: str


class Stop(NamedTuple):
    """What came of a click, in seconds after it.

    `answered` is when the run answered. `last_start` is when the last unit of the trial began, and
    `last_end` when the end of its last unit was in the log: they are negative if that was before the click.
    """

    trial: str
    answered: float
    last_start: float
    last_end: float


def measured(clicks: Iterable[Click], turns: Iterable[Turn], starts: Iterable[tuple[str, float]]) -> list[Stop]:
    """What came of each click.

    Args:
        clicks: The clicks.
        turns: The log of the run.
        starts: By trial, when its units began; a trial comes once for each of them.

    >>> from cerebro_spark.types import Unit
    >>> log = [
    ...     Turn([CommandAnswered(5.0, "c1", True)], wall_clock=100.5),
    ...     Turn([UnitFinished(5.5, "w0", Unit("t0", 1, "p0"), 1, 0.5)], wall_clock=101.0),
    ... ]
    >>> measured([Click("t0", 100.0, "c1")], log, [("t0", 99.25), ("t0", 100.25), ("t1", 102.0)])
    [Stop(trial='t0', answered=0.5, last_start=0.25, last_end=1.0)]
    """
    answers, ends = _clocks(turns)
    began: dict[str, float] = {}
    for trial, at in starts:
        began[trial] = max(at, began.get(trial, at))
    return [Stop(trial, answers[command] - at, began[trial] - at, ends[trial] - at) for trial, at, command in clicks]


def _clocks(turns: Iterable[Turn]) -> tuple[dict[str, float], dict[str, float]]:
    """When each command was answered, and when each trial's last unit had ended, by the clock on the wall."""
    answers: dict[str, float] = {}
    ends: dict[str, float] = {}
    for turn in turns:
        assert turn.wall_clock is not None
        for event in turn.events:
            if isinstance(event, CommandAnswered):
                answers[event.command] = turn.wall_clock
            elif isinstance(event, UnitFinished):
                ends[event.unit.trial] = turn.wall_clock
    return answers, ends


class Page:
    """Sends what the page of a run sends."""

    def __init__(self, link: str) -> None:
        self._link = urlsplit(link)
        answer = self._ask("GET", f"/?{self._link.query}", {})
        self._headers = {"Cookie": str(answer.headers["set-cookie"]).split(";")[0]}
        csrf = json.loads(self._ask("GET", "/api/server", self._headers).read())["csrf"]
        origin = f"http://{self._link.netloc}"
        self._posting = {"Origin": origin, "Content-Type": "application/json", "X-CSRF-Token": csrf}

    def stop(self, trial: str) -> str:
        """Click on "stop"; returns the id of the command."""
        body = json.dumps({"verb": "stop_trial", "trial": trial})
        answer = self._ask("POST", f"/api/runs/{RUN}/commands", {**self._headers, **self._posting}, body)
        said = json.loads(answer.read())
        if answer.status != 202:
            raise SystemExit(f"the dashboard refused to send a command: {said}")
        return str(said["command"]["id"])

    def _ask(
        self, method: str, path: str, headers: Mapping[str, str], body: str | None = None
    ) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self._link.port or 80, timeout=_SECONDS)
        connection.request(method, path, body, {"Host": self._link.netloc, **headers})
        return connection.getresponse()


def model_fn(params: Mapping[str, Any]) -> cs.TorchModel:
    import torch
    from torch import nn

    module = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    return cs.TorchModel(module, torch.optim.SGD(module.parameters(), lr=params["lr"]), nn.BCEWithLogitsLoss())


def train_fn_of(folder: str, seconds: float) -> Callable[..., dict[str, float]]:
    """A `train_fn` that notes when it is called, and then takes a fixed time."""

    def train_fn(model: Any, batches: Iterable[Any], params: Mapping[str, Any]) -> dict[str, float]:
        with open(os.path.join(folder, "starts"), "a") as notes:
            notes.write(f"{params['number']} {time.time()}\n")
        time.sleep(seconds)
        return {"loss": 1.0, "rows": 1.0}

    return train_fn


def noted_starts(folder: Path, run: Run) -> list[tuple[str, float]]:
    """By trial, when its units began, as the workers noted it."""
    trials = {str(trial.params["number"]): name for name, trial in run.snapshot().trials.items()}
    lines = [line.split() for line in (folder / "starts").read_text().splitlines()]
    return [(trials[number], float(at)) for number, at in lines]


def start(store: str, folder: Path, trials: int, unit_seconds: float) -> Run:
    """Begin the search, which does not end by itself."""
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(64, 4)).astype("float32"), "y": np.arange(64) % 2}
    search = cs.GridSearch(
        model_fn,
        space={"number": hp.choice(list(range(trials))), "lr": 0.1, "batch_size": 32},
        train_fn=train_fn_of(str(folder), unit_seconds),
        backend=cs.LocalBackend(2, threads=1),
        store=store,
        features="x",
        label="y",
        partitions=2,
        metric="loss",
        epochs=_ENDLESS,
        framework="torch",
        progress=False,
    )
    return search.start(data, run_id=RUN)


@contextlib.contextmanager
def killed(run: Run) -> Iterator[None]:
    """Whatever happens in the block, the run is over after it: else the program would wait for it."""
    try:
        yield
    finally:
        if run.status not in OVER:
            run.kill()


def _wait(run: Run, ready: Callable[[], bool]) -> None:
    end = time.monotonic() + _SECONDS
    while not ready():
        if run.error is not None:
            raise run.error
        if time.monotonic() > end:
            raise SystemExit(f"nothing came of it after {_SECONDS:g} s: {run!r}")
        time.sleep(_LOOK)


def click(run: Run, page: Page, count: int) -> list[Click]:
    """Stop trials, one after another, each at a random moment once the one before is stopped."""
    clicks = []
    draw = random.Random(0)
    trials = sorted(run.snapshot().trials)
    for trial in trials[:count]:
        time.sleep(draw.uniform(0.0, 1.0))
        at = time.time()
        clicks.append(Click(trial, at, page.stop(trial)))
        _wait(run, partial(_is_stopped, run, trial))
    # What would still begin, against all rules, begins by then: the others do several epochs.
    rest = trials[count]
    done = run.snapshot().trials[rest].epochs
    _wait(run, lambda: run.snapshot().trials[rest].epochs >= done + 3)
    return clicks


def _is_stopped(run: Run, trial: str) -> bool:
    return run.snapshot().status(trial) == "stopped"


def measure(store: Store, clicks: int, unit_seconds: float) -> list[Stop]:
    """One run with so many clicks."""
    trials = clicks + _SPARE_TRIALS
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run = start(store.url, folder, trials, unit_seconds)
        with killed(run), contextlib.closing(open_dashboard(store, show=False)) as shown:
            _wait(run, lambda: len(run.snapshot().epochs) >= trials)
            clicked = click(run, Page(shown.link), clicks)
            run.end()
            run.wait(_SECONDS)
        return measured(clicked, EventLog(store, RUN).turns(), noted_starts(folder, run))


@contextlib.contextmanager
def opened(where: str) -> Iterator[Store]:
    """The store that is asked for; what is started for it ends with the block."""
    with contextlib.ExitStack() as stack:
        if where == "local":
            where = stack.enter_context(tempfile.TemporaryDirectory())
        elif where == "hdfs":
            where = stack.enter_context(_hdfs())
        else:
            where = f"{where.rstrip('/')}/click-to-stop-{secrets.token_hex(4)}"
        yield cs.open_store(where)


@contextlib.contextmanager
def _hdfs() -> Iterator[str]:
    """The address of a folder on a cluster of its own, with the daemons that the tests use."""
    sys.path.insert(0, str(_TESTS))
    from hadoop import jars
    from hadoop.cluster import HadoopCluster

    reason = jars.missing()
    if reason is not None:
        raise SystemExit(f"{reason}; or measure with --store local")
    jars.classpath()
    with tempfile.TemporaryDirectory(prefix="hadoop-", ignore_cleanup_errors=True) as folder:
        with HadoopCluster(Path(folder) / "cluster") as cluster:
            os.environ["HADOOP_CONF_DIR"] = str(cluster.conf_dir)  # workers and the dashboard find the cluster by it
            yield f"{cluster.url}/clicks"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--store", default="local", help="hdfs, local, or the address of a store")
    parser.add_argument("--clicks", type=int, default=10)
    parser.add_argument("--unit", type=float, default=0.2, help="seconds that a unit takes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with opened(options.store) as store:
        stops = measure(store, options.clicks, options.unit)
    _print(stops, options)
    if options.json:
        result = {"store": options.store, "unit_s": options.unit, "stops": [stop._asdict() for stop in stops]}
        options.json.write_text(json.dumps({**circumstances("benchmarks.click_to_stop"), **result}, indent=1))


def _print(stops: list[Stop], options: argparse.Namespace) -> None:
    print(f"store: {options.store}, units of {options.unit:g} s, {len(stops)} clicks; seconds after the click")
    print("\n| | median | most |\n|---|---|---|")
    named = {
        "the run answers": [stop.answered for stop in stops],
        "the last unit of the trial begins (goal: under 2)": [max(stop.last_start, 0.0) for stop in stops],
        "the end of its last unit is in the log": [max(stop.last_end, 0.0) for stop in stops],
    }
    for name, seconds in named.items():
        print(f"| {name} | {statistics.median(seconds):.2f} | {max(seconds):.2f} |")


if __name__ == "__main__":
    main()
