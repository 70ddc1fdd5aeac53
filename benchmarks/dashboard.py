"""What a dashboard costs: reading a long log once, memory, an update, each answer, and the page. It never asserts.

    python -m benchmarks.dashboard [--trials 1000] [--epochs 20] [--partitions 8] [--store FOLDER] [--no-page]
        [--json FILE]

The log is that of a simulated run, in a local store. The server side runs in a process of its own, so that the memory
is its memory. Then a real server and a real browser show the page of the run, if chromium and playwright are there: see
`benchmarks.dashboard_page`. With `--store` the log is kept there, and used again if it is there already.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import dashboard_page
from benchmarks.circumstances import circumstances
from cerebro_spark import eventlog
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import DiscardingLog, EventLog
from cerebro_spark.events import Event, RunUnit, Settings, UnitFinished
from cerebro_spark.search import FixedSearch
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.turns import Turn
from cerebro_spark.types import Metrics, Objective, Partition

if TYPE_CHECKING:
    from cerebro_spark.dashboard.feeds import RunFeed

RUN = "big"
WORKERS = 8
UPDATES, UNITS_AN_UPDATE = 20, 8
_TURNS_A_SEGMENT = 256
_START_CLOCK = 1.8e9


class BatchedLog(DiscardingLog):
    """Writes many turns at once, as they lie in the store once they are joined. Virtual time is their wall time."""

    def __init__(self, log: EventLog) -> None:
        self._whole = log
        self._turns: list[Turn] = []

    def append(self, *turns: Turn) -> None:
        self._turns += [replace(turn, wall_clock=_START_CLOCK + turn.events[-1].at) for turn in turns if turn.events]
        if len(self._turns) >= 2 * _TURNS_A_SEGMENT:  # the newest are not joined yet
            self._whole.append(*self._turns[:_TURNS_A_SEGMENT])
            del self._turns[:_TURNS_A_SEGMENT]

    def flush(self, singly: bool = False) -> None:
        for part in [[turn] for turn in self._turns] if singly else [self._turns]:
            self._whole.append(*part)
        self._turns = []


class MeasuringBackend(SimulatedBackend):
    """Units of which every trial has metrics of its own."""

    def _finish(self, order: RunUnit, state: Any) -> list[Event]:
        return [
            replace(fact, metrics=_metrics(order)) if isinstance(fact, UnitFinished) else fact
            for fact in super()._finish(order, state)
        ]


def _metrics(order: RunUnit) -> Metrics:
    luck = zlib.crc32(f"{order.unit.trial}".encode()) / 2**32
    loss = (0.2 + luck) * math.exp(-0.15 * order.unit.epoch) + 0.1 * luck
    return Metrics({"loss": 100 * loss, "accuracy": 100 / (1 + loss)}, {"loss": 100.0, "accuracy": 100.0})


def write_log(store: LocalStore, trials: int, epochs: int, partitions: int, run: str = RUN) -> None:
    """A run of trials x epochs x partitions training units on 8 workers, two of which die and return."""
    parts = tuple(Partition(f"p{i}", rows=1000, bytes=256_000) for i in range(partitions))
    settings = Settings(parts, WORKERS, queue_ahead=1, objective=Objective("loss", "min"))
    deaths = {2: ((500.0, 540.0),), 5: ((900.0, 930.0),)}
    workers = [SimulatedWorker(f"w{i}", host=f"node{i // 2}", deaths=deaths.get(i, ())) for i in range(WORKERS)]
    backend = MeasuringBackend(workers, World(lambda params: 1.0, jitter=0.1))
    draw = random.Random(7)
    space = [
        {"lr": 10 ** draw.uniform(-4, -1), "hidden": draw.choice([64, 128]), "optimizer": draw.choice(["adam", "sgd"])}
        for _ in range(trials)
    ]
    log, eventlog._SEGMENTS_BEFORE_COMPACTION = EventLog(store, run), 1 << 30
    batched = BatchedLog(log)
    Engine(FixedSearch(space, epochs), settings, backend, batched, run).run()
    batched.flush(singly=True)
    log.close()


class HeldBack(LocalStore):
    """A store that hides some files until they are released: so a log seems to grow."""

    def __init__(self, root: str, hidden: list[str]) -> None:
        super().__init__(root)
        self.hidden = hidden

    def list(self, folder: str = "") -> list[str]:
        return [name for name in super().list(folder) if name not in self.hidden]


def measure(folder: str) -> dict[str, Any]:
    """Read the log as a server does, then have it grow by a few units at a time, and ask all that pages ask."""
    import cerebro_spark.dashboard.app  # noqa: F401  # a server's memory, with all that it imports
    from cerebro_spark.dashboard.feeds import RunFeed

    names = LocalStore(folder).list(paths.log_folder(RUN))
    store = HeldBack(folder, names[-UPDATES * UNITS_AN_UPDATE :])
    before = _memory()
    feed = RunFeed(store, RUN)
    began, cpu = time.perf_counter(), time.process_time()
    parts = 0
    while feed.reading:
        feed.refresh()
        parts += 1
    result: dict[str, Any] = {
        "events": feed.index.version,
        "units": len(feed.index.units),
        "index_s": time.perf_counter() - began,
        "index_cpu_s": time.process_time() - cpu,
        "memory_before_mb": before,
        "updates_ms": [_update(store, feed) for _ in range(UPDATES)],
    }
    result["answers"] = {name: _answer(make) for name, make in _answers(feed).items()}
    result["memory_mb"] = _memory()
    return result


def _update(store: HeldBack, feed: RunFeed) -> float:
    """Milliseconds from a few units in the store to the bytes that every client is sent."""
    from cerebro_spark.dashboard.hub import _news

    since = feed.index.version
    del store.hidden[:UNITS_AN_UPDATE]
    began = time.perf_counter()
    feed.refresh()
    _news(feed, since)
    spent = 1000 * (time.perf_counter() - began)
    assert feed.index.version > since
    return spent


def _answers(feed: RunFeed) -> dict[str, Callable[[], dict[str, Any]]]:
    from cerebro_spark.dashboard.views import curves, gantt, notes, runs, trials, workers

    index, end = feed.index, feed.index.view.now
    return {
        "run": lambda: runs.run_page(index, feed.condition),
        "trials": lambda: trials.trials(index),
        "curves": lambda: curves.curves(index),
        "gantt, whole": lambda: gantt.gantt(index),
        "gantt, 2 %": lambda: gantt.gantt(index, 0.5 * end, 0.52 * end),
        "workers": lambda: workers.workers(index),
        "events": lambda: notes.events(index),
        "trial": lambda: trials.trial_page(index, next(iter(index.view.trials))),
    }


def _answer(make: Callable[[], dict[str, Any]]) -> dict[str, float]:
    from cerebro_spark.dashboard.json_values import dump

    spent = []
    for _ in range(5):
        began = time.perf_counter()
        data = dump(make())
        spent.append(1000 * (time.perf_counter() - began))
    return {"ms": statistics.median(spent), "kb": len(data) / 1000}


def _memory() -> float:
    """The most that this process ever had, in MB; `getrusage` would count what its parent had."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--store", type=Path, help="keep the log in this folder, and use it if it is there")
    parser.add_argument("--no-page", action="store_true", help="open no page in a browser")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(str(options.store))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.store or Path(scratch)
        if not LocalStore(str(folder)).list(paths.log_folder(RUN)):
            write_log(LocalStore(str(folder)), options.trials, options.epochs, options.partitions)
        command = [sys.executable, "-m", "benchmarks.dashboard", "--measure", "--store", str(folder)]
        result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        _print(result)
        left_out = "not asked for" if options.no_page else dashboard_page.why_not()
        if left_out:
            print(f"\nthe page in a browser is left out: {left_out}")
        else:
            result["page"] = dashboard_page.measure(str(folder), RUN)
            print(f"\n{dashboard_page.table(result['page'])}")
    if options.json:
        options.json.write_text(json.dumps({**circumstances("benchmarks.dashboard"), **result}, indent=1))


def _print(result: dict[str, Any]) -> None:
    updates = sorted(result["updates_ms"])
    print(f"{result['units']:,} units, {result['events']:,} events")
    print(f"read once: {result['index_s']:.1f} s ({result['index_cpu_s']:.1f} s of CPU)")
    print(f"memory: {result['memory_mb']:.0f} MB, {result['memory_before_mb']:.0f} MB of it before the log was read")
    print(
        f"an update of {UNITS_AN_UPDATE} units, from the store to the bytes: {statistics.median(updates):.0f} ms"
        f" (at most {updates[-1]:.0f} ms of {len(updates)})"
    )
    print("\n| answer | ms | KB |\n|---|---|---|")
    for name, answer in result["answers"].items():
        print(f"| {name} | {answer['ms']:.1f} | {answer['kb']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
