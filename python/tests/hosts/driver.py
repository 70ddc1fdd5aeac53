"""The driver of a run on a host of a test: `python -m hosts.driver WHAT STORE RUN [MASTER ADDRESS]`.

`WHAT` is "fit", "resume" or "check". It says on standard output what happens, a line for each unit that ended and each
worker that came or went, and at last that it is done. A check repeats the run, and compares both.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from observing import each_event
from plain_loop import judged, logged
from small_driver import CONFIGURATIONS, small_recipe
from small_search import small_rows
from sparks import SparkHouse

from cerebro_spark import runs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.backend.spark import SparkBackend
from cerebro_spark.data.prepare import prepare
from cerebro_spark.events import Event, UnitFinished, WorkerJoined, WorkerLost
from cerebro_spark.store import open_store
from cerebro_spark.store.base import Store
from cerebro_spark.types import Unit

HEARTBEAT = 6.0
"""Seconds after which a worker that says nothing is given up."""
PARTITIONS, EPOCHS, WORKERS = 3, 12, 3
EXECUTORS = {"spark__executor__memory": "512m", "spark__executor__cores": "1"}


@each_event
def say(event: Event) -> None:
    match event:
        case UnitFinished():
            print("unit", event.worker, f"{event.at:.2f}", event.unit, flush=True)
        case WorkerJoined():
            print("joined", event.worker, f"{event.at:.2f}", event.host, flush=True)
        case WorkerLost():
            print("lost", event.worker, f"{event.at:.2f}", event.reason, flush=True)


def drive(what: str, store: Store, run: str, master: str, address: str) -> None:
    """Run a search to its end, or go on with it."""
    house = SparkHouse()
    at = {"spark__driver__host": address, "spark__driver__bindAddress": address}
    session = house.session(master, **EXECUTORS, **at)
    session.sparkContext.pythonExec = os.environ["HOSTS_PYTHON"]
    backend = SparkBackend(session, num_workers=WORKERS, threads=1, heartbeat=HEARTBEAT)
    if what == "fit":
        rows = small_rows(6000)
        dataset = prepare(rows, store=store, features="x", label="y", validation=0.25, partitions=PARTITIONS)
        print("prepared", flush=True)
        runs.execute(small_recipe(dataset, EPOCHS), store, backend, run, [say], progress=False)
    else:
        runs.resume(store, run, backend, [say], progress=False)
    house.close()


def check(store: Store, run: str) -> None:
    """Every unit was trained once, and the run can be repeated bit for bit."""
    events = logged(store, run)
    scheduler, counted = judged(events)
    assert scheduler.finished
    assert not [trial.error for trial in scheduler.state.trials.values() if trial.error]
    units = [event.unit for order in counted.values() for event in order]
    assert len(units) == len(set(units)) == len(CONFIGURATIONS) * EPOCHS * PARTITIONS
    again = runs.replay(store, run, LocalBackend(2, threads=1), f"{run}-again", progress=False)
    assert digests(logged(store, again)) == digests(events)


def digests(events: Sequence[Event]) -> dict[Unit, str]:
    """By training unit that counts, the digest of what it left."""
    _, counted = judged(events)
    return {e.unit: e.checkpoint.digest for order in counted.values() for e in order if e.checkpoint is not None}


def main(what: str, url: str, run: str, *where: str) -> None:
    # This process has its clock; Java, which it starts, has the machine's.
    os.environ.pop("LD_PRELOAD", None)
    store = open_store(url)
    if what == "check":
        check(store, run)
    else:
        drive(what, store, run, *where)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
