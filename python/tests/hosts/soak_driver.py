"""The driver of a soak: `python -m hosts.soak_driver STORE FOLDER FIRST MASTER ADDRESS`.

It drives one run after another, from number FIRST on; one that was begun before is gone on with. A run lasts until its
file in FOLDER is there, the soak until the file `over` is. What happens it says on standard output, with the time of a
clock that all processes of the machine share and no fault changes.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

from chaos import UntilCalm
from observing import each_event
from pyspark.sql import SparkSession
from small_driver import SEED
from small_search import small_rows, torch_model_fn
from sparks import SparkHouse

from cerebro_spark import runs
from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.spark import SparkBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import CerebroError, ConfigurationError, ReplayDiverged
from cerebro_spark.events import Event, GroupGaveUp, UnitFailed, UnitFinished, WorkerJoined, WorkerLost
from cerebro_spark.recipe import Recipe
from cerebro_spark.store import open_store, paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.paths import DATASETS, dataset_ids
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Objective
from hosts.driver import EXECUTORS
from hosts.soak_runs import HEARTBEAT, WORKERS, name_of

PARTITIONS = 3
KINDS: tuple[dict[str, Any], ...] = ({}, {"fuse": 3}, {"group": 2})
"""By turns trials are trained one by one, in bundles, and by groups of workers."""
CONFIGURATIONS = [{"lr": 0.002 * (number + 1), "batch_size": 16} for number in range(6)]
_MANY = 10**6
_PAUSE = 1.0
"""Seconds after which a run that ended early is gone on with. A person would look at the cluster first."""


@each_event
def say(event: Event) -> None:
    match event:
        case UnitFinished():
            tell("unit", *event.workers, event.unit)
        case UnitFailed() | GroupGaveUp():
            tell(type(event).__name__, event)
        case WorkerJoined():
            tell("joined", event.worker, event.host)
        case WorkerLost():
            tell("lost", event.worker, event.reason)


def tell(word: str, *more: object) -> None:
    print(word, f"{time.monotonic():.3f}", *more, flush=True)


def recipe_of(number: int, dataset: Dataset, folder: Path) -> Recipe:
    search = UntilCalm(CONFIGURATIONS, folder / name_of(number))
    trainer = TrainerSpec(Hooks(torch_model_fn), seed=SEED)
    return Recipe(search, Objective("val_loss", "min"), dataset, trainer, **KINDS[number % len(KINDS)])


def drive(number: int, store: Store, folder: Path, backend: Backend) -> None:
    """Drive a run to its end, however often it ends early."""
    run = name_of(number)
    while True:
        try:
            if store.list(paths.log_folder(run)):
                runs.resume(store, run, backend, [say], progress=False, take_over=True)
            else:
                if store.exists(paths.run_folder(run)):
                    store.delete(paths.run_folder(run))  # its driver was lost before anything had happened
                recipe = recipe_of(number, Dataset.open(store), folder)
                runs.execute(recipe, store, backend, run, [say], progress=False)
        except ReplayDiverged:
            raise
        except (CerebroError, OSError) as error:
            tell("stopped", type(error).__name__, " ".join(str(error).split())[:300])
            time.sleep(_PAUSE)
        else:
            return


def open_backend(session: SparkSession) -> SparkBackend:
    """Return a backend once the cluster has room for it: a driver may start before executors do."""
    while True:
        try:
            return SparkBackend(session, num_workers=WORKERS, threads=1, heartbeat=HEARTBEAT, max_restarts=_MANY)
        except ConfigurationError as error:
            tell("waits", " ".join(str(error).split())[:300])
            time.sleep(_PAUSE)


def main(url: str, where: str, first: str, master: str, address: str) -> None:
    os.environ.pop("LD_PRELOAD", None)
    store, folder = open_store(url), Path(where)
    house = SparkHouse()
    session = house.session(master, **EXECUTORS, spark__driver__host=address, spark__driver__bindAddress=address)
    session.sparkContext.pythonExec = os.environ["HOSTS_PYTHON"]
    if not dataset_ids(store.list(DATASETS)):
        prepare(small_rows(24_000), store=store, features="x", label="y", validation=0.25, partitions=PARTITIONS)
    with open_backend(session) as backend:
        for number in count(int(first)):
            if (folder / "over").exists():
                break
            tell("round", number)
            drive(number, store, folder, backend)
            tell("ended", number)
    house.close()
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
