"""Checks the runs of a soak while they go on, and afterwards: `python -m hosts.soak_auditor STORE`.

On standard input it is told the numbers of runs, one a line. Of each it reads the log as that grows, with books of its
own; when the run is over it trains it again, compares every unit, and deletes both. It says what it has seen.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from auditor import Auditor
from grouped_runs import check_exactly_once, digests
from plain_loop import logged

from cerebro_spark import runs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import NotFoundInStore, StoreError
from cerebro_spark.events import RunStarted, UnitFinished, WorkerLost
from cerebro_spark.following import LogFollower
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.store import open_store, paths
from cerebro_spark.store.base import Store
from hosts.soak_runs import name_of

Result = TypeVar("Result")

_LOOK = 1.0
"""Seconds between two looks at a log that grows: a store has nothing to wait on."""


def patiently(act: Callable[[], Result]) -> Result:
    """Do something with a store, again for as long as that fails: faults strike the store too."""
    while True:
        try:
            return act()
        except NotFoundInStore:
            raise
        except StoreError as error:
            print("again", type(error).__name__, flush=True)
            time.sleep(_LOOK)


def follow(store: Store, run: str) -> None:
    """Read a log until its run is over, and check every event."""
    while not patiently(lambda: store.exists(paths.log_folder(run))):
        time.sleep(_LOOK)
    follower = LogFollower(store, run)
    scheduler: MopScheduler | None = None
    auditor: Auditor | None = None
    while scheduler is None or not scheduler.finished:
        turns = patiently(follower.read)
        for turn in turns:
            for event in turn.events:
                if isinstance(event, RunStarted):
                    scheduler, auditor = MopScheduler(event.settings), Auditor(event.settings)
                assert scheduler is not None
                assert auditor is not None
                auditor.before(event)
                auditor.after(scheduler.handle(event))
                scheduler.check_invariants()
        if not turns:
            time.sleep(_LOOK)


def train_again(store: Store, run: str) -> None:
    """Replay a run: every unit is compared with what it left then. The store may fail meanwhile."""
    again, backend = f"{run}-again", LocalBackend(2, threads=1)

    def train() -> None:
        if store.list(paths.log_folder(again)):
            runs.resume(store, again, backend, progress=False, take_over=True)
        else:
            if store.exists(paths.run_folder(again)):
                store.delete(paths.run_folder(again))
            runs.replay(store, run, backend, again, progress=False)

    patiently(train)
    left, right = (patiently(partial(logged, store, name)) for name in (again, run))
    assert digests(left) == digests(right)


def audit(store: Store, number: int) -> None:
    run = name_of(number)
    follow(store, run)
    events = patiently(lambda: check_exactly_once(Dataset.open(store), run))
    train_again(store, run)
    units = [event for event in events if isinstance(event, UnitFinished)]
    lost = sum(isinstance(event, WorkerLost) for event in events)
    shapes = Counter(f"{len(event.workers)}x{event.width}" for event in units if event.unit.kind == "train")
    print("audited", number, len(units), lost, dict(shapes), flush=True)
    for name in (run, f"{run}-again"):
        patiently(partial(store.delete, paths.run_folder(name)))


def main(url: str) -> None:
    os.nice(10)  # the hosts that it watches share its cores, and go first
    store = open_store(url)
    for line in sys.stdin:
        audit(store, int(line))
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
