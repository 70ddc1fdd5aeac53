"""Whether a dashboard slows a run: gaps between units with nobody watching, and with 50 browsers. It never asserts.

    python -m benchmarks.dashboard_load [--clients 50] [--rounds 3] [--epochs 12] [--json FILE]

The run has one worker; it and its driver have the first core. The server and all clients have the second one. A client
asks what the page of a run asks, then reads the stream. Runs with and without clients take turns. A gap is measured by
the worker: see `benchmarks.engine`. It needs two cores with nothing else to do, and the extras `dashboard` and `torch`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.circumstances import circumstances
from benchmarks.engine import Watch, made_data, run
from cerebro_spark.dashboard.notebook import open_dashboard
from cerebro_spark.store.local import LocalStore

RUN = "bench"
ROUTES = ("", "/trials", "/curves", "/gantt", "/workers", "/events", "/forecast", "/commands")
_SECONDS = 600.0


def train(folder: Path, epochs: int, core: int) -> dict[str, Any]:
    """Be the driver of the run, on one core with its worker; returns the gaps in milliseconds."""
    os.sched_setaffinity(0, {core})
    dataset = made_data(folder, rows=20_000, partitions=4, validation=0.2)
    trials = [{"lr": 0.001 * (number + 1), "width": 32, "batch_size": 128} for number in range(4)]
    began = time.perf_counter()
    watch = run(dataset, trials, epochs, 1, Watch())
    gaps = [1000 * unit.waited for unit in watch.revisits()]
    return {"gaps_ms": gaps, "units": len(watch.units), "seconds": time.perf_counter() - began}


class Client(threading.Thread):
    """A browser with the page of the run open."""

    def __init__(self, link: str) -> None:
        super().__init__(daemon=True)
        self._link = urlsplit(link)
        self._stop_asking = threading.Event()
        self.events = 0

    def run(self) -> None:
        cookie = self._enter()
        while not self._stop_asking.is_set() and self._get(f"/api/runs/{RUN}", cookie) != 200:
            self._stop_asking.wait(0.2)  # the run has not begun yet
        for route in ROUTES:
            self._get(f"/api/runs/{RUN}{route}", cookie)
        self._stream(cookie)

    def stop(self) -> None:
        self._stop_asking.set()

    def _enter(self) -> str:
        connection = self._connect()
        connection.request("GET", f"/?{self._link.query}")
        cookie = connection.getresponse().headers["set-cookie"].split(";")[0]
        connection.close()
        return str(cookie)

    def _get(self, path: str, cookie: str) -> int:
        connection = self._connect()
        connection.request("GET", path, headers={"Cookie": cookie})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    def _stream(self, cookie: str) -> None:
        connection = self._connect()
        connection.request("GET", f"/api/runs/{RUN}/stream", headers={"Cookie": cookie})
        with connection.getresponse() as answer:
            while not self._stop_asking.is_set() and (line := answer.readline()):
                self.events += line.startswith(b"event: update")
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._link.port or 80, timeout=_SECONDS)


@contextmanager
def watched(folder: Path, count: int, core: int) -> Iterator[list[Client]]:
    """A dashboard of the store that the run writes to, and clients of it, for the length of a block."""
    os.sched_setaffinity(0, {core})  # the server inherits it
    shown = open_dashboard(LocalStore(str(folder / "store")), show=False)
    clients = [Client(shown.link) for _ in range(count)]
    try:
        for client in clients:
            client.start()
        yield clients
    finally:
        for client in clients:
            client.stop()
        shown.close()
        for client in clients:
            client.join(_SECONDS)


def measure(options: argparse.Namespace, clients: int) -> dict[str, Any]:
    """One run, with so many clients."""
    first, second = options.cores
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "store").mkdir()
        asked = ["--train", scratch, "--epochs", str(options.epochs), "--cores", str(first), str(second)]
        command = [sys.executable, "-m", "benchmarks.dashboard_load", *asked]
        if not clients:
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=_SECONDS)
            return dict(json.loads(done.stdout.splitlines()[-1]))
        with watched(folder, clients, second) as watching:
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=_SECONDS)
            return {**json.loads(done.stdout.splitlines()[-1]), "updates": sum(client.events for client in watching)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, nargs=2, help="the core of the run, and that of the dashboard")
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(options.train, options.epochs, options.cores[0])))
        return
    options.cores = options.cores or sorted(os.sched_getaffinity(0))[:2]
    if len(options.cores) < 2:
        sys.exit("this needs two cores: one for the run, and one for the dashboard")
    results: list[dict[str, Any]] = []
    print("| clients | units | run s | gap ms, median | 90 % | updates received |\n|---|---|---|---|---|---|")
    for _ in range(options.rounds):
        for clients in (0, options.clients):
            result = {"clients": clients, **measure(options, clients)}
            results.append(result)
            _print(result)
    if options.json:
        options.json.write_text(json.dumps({**circumstances("benchmarks.dashboard_load"), "runs": results}, indent=1))


def _print(result: dict[str, Any]) -> None:
    gaps = result["gaps_ms"]
    print(
        f"| {result['clients']} | {result['units']} | {result['seconds']:.1f} | {statistics.median(gaps):.1f}"
        f" | {statistics.quantiles(gaps, n=10)[8]:.1f} | {result.get('updates', 0)} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
