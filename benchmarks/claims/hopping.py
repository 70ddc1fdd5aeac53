"""The curves of Model Hopper Parallelism, trained by this system itself: two worker processes, models that hop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cerebro_spark as cs
from benchmarks.claims.digits import model_fn
from benchmarks.claims.ways import Point
from cerebro_spark import hp, runs
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.events import UnitFinished

Key = tuple[int, float, int]


def curves(dataset: Dataset, space: Mapping[str, list[Any]], epochs: int, folder: Path) -> tuple[dict[Key, Any], Any]:
    """A curve for each (batch size, learning rate, seed) of a grid, and the Result they were read from."""
    search = cs.GridSearch(
        model_fn,
        space={name: hp.choice(list(options)) for name, options in space.items()},
        backend=cs.LocalBackend(num_workers=2, threads=1),
        store=str(folder),
        metric="val_loss",
        epochs=epochs,
        progress=False,
        seed=1,
    )
    result = search.fit(dataset)
    rows = result.history.sort_values("epoch")
    params = {row.trial: key(row) for row in result.trials.itertuples()}
    found = {
        params[trial]: [
            Point(loss, 1.0 - right) for loss, right in zip(of_trial.val_loss, of_trial.val_accuracy, strict=True)
        ]
        for trial, of_trial in rows.groupby("trial")
    }
    return found, result


def key(row: Any) -> Key:
    return int(row.param_batch_size), float(row.param_lr), int(row.param_seed)


def checkpoint_bytes(folder: Path, result: Any) -> dict[int, int]:
    """For each batch size the largest checkpoint that the log says was written."""
    _, events = runs.read(str(folder), result.run_id)
    batch = {row.trial: int(row.param_batch_size) for row in result.trials.itertuples()}
    largest: dict[int, int] = {}
    for each in events:
        if isinstance(each, UnitFinished) and each.checkpoint is not None:
            size = batch[each.unit.trial]
            largest[size] = max(largest.get(size, 0), each.checkpoint.bytes)
    return largest
