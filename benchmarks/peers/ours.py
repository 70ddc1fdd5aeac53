"""This system, on processes of this machine or on Spark: a grid search over two partitions with one replica.

Nothing of an earlier run helps it: the partitions are read from their files, not from what this host still has of them.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import cerebro_spark as cs
from benchmarks.peers.contender import Report, asked, here_is_a_worker
from benchmarks.peers.models import keras_model, torch_parts
from benchmarks.peers.sessions import in_use, two_cores
from benchmarks.peers.works import BATCH, PARTS, WORKS, Work, label
from cerebro_spark import hp, runs
from cerebro_spark.cleaning import clean
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.events import Event, PartitionLoaded, UnitFinished


def prepared(work: Work, folder: Path) -> Dataset:
    """The rows of the files as two training and two validation partitions; written once a folder."""
    store = cs.open_store(str(folder / "store"))
    if not (folder / "store" / "prepared").exists():
        x, y, vx, vy = (np.load(folder / f"{name}.npy") for name in PARTS)
        cs.prepare(
            {
                "x": np.concatenate([x, vx]),
                "y": np.concatenate([y, vy]),
                "held_out": np.repeat([False, True], [len(x), len(vx)]),
            },
            store=store,
            features="x",
            label="y",
            validation="held_out",
            partitions=2,
            name=work.name,
        )
        (folder / "store" / "prepared").touch()
    return Dataset.open(store, work.name)


def model_fn(kind: str, framework: str) -> Any:
    def torch_fn(params: dict[str, Any]) -> Any:
        import torch

        here_is_a_worker()
        torch.manual_seed(0)  # the initial weights of the plain loops
        return cs.TorchModel(*torch_parts(kind, params))

    def keras_fn(params: dict[str, Any]) -> Any:
        import keras

        here_is_a_worker()
        keras.utils.set_random_seed(0)
        return keras_model(kind, params)

    return torch_fn if framework == "torch" else keras_fn


def backend(how: str) -> Any:
    """`local`: processes of this machine; `spark`: a session in use; `fresh`: one whose first work this is."""
    if how == "local":
        return cs.LocalBackend(num_workers=2, threads=1)
    session = two_cores()
    return cs.SparkBackend(session if how == "fresh" else in_use(session), num_workers=2)


def search(work: Work, framework: str, where: Any, folder: Path) -> Any:
    return cs.GridSearch(
        model_fn(work.kind, framework),
        space={"size": hp.choice(list(work.sizes)), "lr": hp.choice(list(work.rates)), "batch_size": BATCH},
        backend=where,
        store=str(folder / "store"),
        metric="val_loss",
        epochs=work.epochs,
        replicas=1,
        progress=False,
    )


def report(dataset: Dataset, result: Any, events: list[Event], wall: float, start: float) -> Report:
    """What the run's log says of it."""
    units = result.units
    by_id = {partition.id: partition for partition in dataset.partitions}
    loaded = [(each.worker, by_id[each.partition]) for each in events if isinstance(each, PartitionLoaded)]
    row_bytes = sum(column.row_bytes for column in dataset.columns)
    held: dict[str, int] = {}
    for worker, partition in loaded:
        held[worker] = held.get(worker, 0) + partition.rows * row_bytes
    hops, moved = hops_and_bytes([each for each in events if isinstance(each, UnitFinished)])
    root = Path(dataset.store.url.removeprefix("file://"))
    return Report(
        wall_s=wall,
        start_s=start,
        losses=_losses(result),
        hops=hops,
        data_bytes=max(held.values()),
        bytes_read=sum((root / name).stat().st_size for _, partition in loaded for name in partition.files),
        bytes_moved=moved,
        counted={"bytes_read": "counted: files of the partitions loaded", "bytes_moved": "counted: checkpoints"},
        more={
            "units": len(units),
            "training_s": float(units[units.kind == "train"].seconds.sum()),
            "evaluation_s": float(units[units.kind == "eval"].seconds.sum()),
            "first_unit_at_s": float((units.end - units.seconds).min()),
        },
    )


def _losses(result: Any) -> dict[str, float]:
    last = result.history.sort_values("epoch").groupby("trial").val_loss.last()
    params = result.trials.set_index("trial")
    return {
        label({"size": int(params.param_size[trial]), "lr": params.param_lr[trial]}): float(loss)
        for trial, loss in last.items()
    }


def hops_and_bytes(units: list[UnitFinished]) -> tuple[int, int]:
    """How often a trial trained on at another worker than before, and the bytes of checkpoints written and read.

    A worker that still has in memory what its next unit starts from reads nothing.
    """
    last: dict[tuple[str, int], UnitFinished] = {}
    before: dict[str, UnitFinished] = {}
    in_memory: dict[str, str] = {}
    hops = moved = 0
    for event in sorted(units, key=lambda each: each.attempt):
        trial, epoch = event.unit.trial, event.unit.epoch
        parent = before.get(trial) if event.unit.kind == "train" else last[trial, epoch]
        if parent is not None and parent.checkpoint is not None:
            hops += event.unit.kind == "train" and parent.worker != event.worker
            moved += parent.checkpoint.bytes if in_memory.get(event.worker) != parent.checkpoint.digest else 0
            in_memory[event.worker] = parent.checkpoint.digest
        if event.checkpoint is not None:
            moved += event.checkpoint.bytes
            last[trial, epoch] = before[trial] = event
            in_memory[event.worker] = event.checkpoint.digest
    return hops, moved


def main() -> None:
    given = asked()
    work = WORKS[given.work]
    dataset = prepared(work, given.folder)
    clean()
    began = time.perf_counter()
    where = backend(given.how)
    start = time.perf_counter() - began
    asking = search(work, given.framework, where, given.folder)
    began = time.perf_counter()
    result = asking.fit(dataset)
    wall = time.perf_counter() - began
    _, events = runs.read(str(given.folder / "store"), result.run_id)
    print(report(dataset, result, events, wall, start).line())
    clean()


if __name__ == "__main__":
    main()
