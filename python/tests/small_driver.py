"""A driver in a process of its own, to be interrupted, killed or raced: `python small_driver.py FOLDER RUN UNITS`.

It says on standard output which units have ended, one a line, and after so many waits for a line on standard input:
what is done to it then does not depend on how fast it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from small_search import torch_model_fn

from cerebro_spark import runs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.events import Event, UnitFinished
from cerebro_spark.recipe import Recipe
from cerebro_spark.search import FixedSearch
from cerebro_spark.store.local import LocalStore
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.types import Objective

SEED = 11
EPOCHS = 6
CONFIGURATIONS = [{"lr": lr, "batch_size": size} for lr in (0.01, 0.03) for size in (16, 40)]


def small_recipe(dataset: Dataset, epochs: int = EPOCHS) -> Recipe:
    search = FixedSearch(CONFIGURATIONS, epochs)
    return Recipe(search, Objective("val_loss", "min"), dataset, Hooks(torch_model_fn), seed=SEED)


class Stop(Exception):
    pass


def stopping_after(units: int, error: BaseException) -> Callable[[Event], None]:
    seen: list[Event] = []

    def observe(event: Event) -> None:
        seen.append(event)
        if isinstance(event, UnitFinished) and sum(isinstance(e, UnitFinished) for e in seen) == units:
            raise error

    return observe


def say(event: Event) -> None:
    if isinstance(event, UnitFinished):
        print(event.unit, flush=True)


def pausing_after(units: int) -> Callable[[Event], None]:
    seen: list[Event] = []

    def observe(event: Event) -> None:
        if isinstance(event, UnitFinished):
            seen.append(event)
            if len(seen) == units:
                sys.stdin.readline()

    return observe


def main(folder: str, run: str, units: str) -> None:
    dataset = Dataset.open(LocalStore(Path(folder) / "store"))
    observers = [say, pausing_after(int(units))]
    runs.execute(small_recipe(dataset), dataset.store, LocalBackend(2, threads=1), run, observers)


if __name__ == "__main__":
    main(*sys.argv[1:])
