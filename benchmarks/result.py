"""What it costs to open the result of a finished run, and the log of it. It uses a simulated run, and never asserts.

    python -m benchmarks.result [--units 10000] [--repeat 5] [--json FILE]

The log is a real one, in a local store. Times are those of the process (CPU seconds), the median of some tries.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Settings
from cerebro_spark.result import Result
from cerebro_spark.search import FixedSearch
from cerebro_spark.store.local import LocalStore
from cerebro_spark.types import Objective, Partition

WORKERS, TRAIN, VALIDATION, EPOCHS = 8, 8, 2, 10


def finished_run(store: LocalStore, units: int) -> None:
    """A run of about so many units on 8 workers: 8 training and 2 validation partitions, 10 epochs."""
    train = tuple(Partition(f"p{i}", rows=100) for i in range(TRAIN))
    parts = (*train, *(Partition(f"v{i}", "validation", rows=10) for i in range(VALIDATION)))
    settings = Settings(parts, WORKERS, queue_ahead=1, objective=Objective("val_loss", "min"))
    trials = max(1, units // (len(parts) * EPOCHS))
    backend = SimulatedBackend(
        [SimulatedWorker(f"w{i}") for i in range(WORKERS)], World(lambda params: 1.0, jitter=0.1)
    )
    log = EventLog(store, "r1")
    search = FixedSearch([{"lr": 0.001 * (i + 1), "hidden": 64} for i in range(trials)], EPOCHS)
    Engine(search, settings, backend, log, "r1").run()
    log.close()


def timed(what: Callable[[], object], repeat: int) -> float:
    seconds = []
    for _ in range(repeat):
        began = time.process_time()
        what()
        seconds.append(time.process_time() - began)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(folder)
        began = time.process_time()
        finished_run(store, options.units)
        result = {
            "run_s": time.process_time() - began,
            "units": len(Result(store, "r1").units),
            "log_mb": sum(store.size(name) for name in store.list("runs/r1/log")) / 1e6,
            "open_s": timed(lambda: Result(store, "r1"), options.repeat),
            "read_s": timed(lambda: list(EventLog(store, "r1").read()), options.repeat),
        }
    print("| units | log MB | run s | open the result s | read the events s |")
    print("|---|---|---|---|---|")
    print("| {units} | {log_mb:.1f} | {run_s:.2f} | {open_s:.2f} | {read_s:.2f} |".format(**result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
