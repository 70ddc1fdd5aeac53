"""What a run must come to: PyTorch's own loop over the same batches in the logged order, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from small_search import torch_model_fn

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.loading.arrays import load_arrays
from cerebro_spark.data.shuffling import row_order
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Event, RunStarted, UnitFinished
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.trainer.checkpoints.arrays import read_array
from cerebro_spark.trainer.checkpoints.randomness import derive_seed
from cerebro_spark.trainer.checkpoints.reading import open_checkpoint
from cerebro_spark.types import Checkpoint


def logged(store: Store, run: str) -> list[Event]:
    return list(EventLog(store, run).read())


def judged(events: Sequence[Event]) -> tuple[MopScheduler, dict[str, list[UnitFinished]]]:
    """What a scheduler makes of a log: its end, and by trial the training units that count, in their order."""
    start = events[0]
    assert isinstance(start, RunStarted)
    scheduler = MopScheduler(start.settings)
    counted: dict[str, list[UnitFinished]] = {}
    for event in events:
        if isinstance(event, UnitFinished) and scheduler.expects(event) and event.unit.kind == "train":
            counted.setdefault(event.unit.trial, []).append(event)
        scheduler.handle(event)
        scheduler.check_invariants()
    return scheduler, counted


def plain_torch_loop(
    dataset: Dataset, params: Mapping[str, Any], order: Sequence[UnitFinished], seed: int, smallest: int
) -> dict[str, np.ndarray[Any, Any]]:
    """It shares no code with the trainer."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(derive_seed(seed, order[0].unit.trial))
    made = torch_model_fn(dict(params))
    made.module.train()
    for event in order:
        arrays = load_arrays(dataset, dataset.partition(event.unit.partition))
        rows = row_order(len(arrays["label"]), seed, event.unit.trial, event.unit.epoch, event.unit.partition)
        for chosen in np.split(rows, cuts(len(rows), params["batch_size"], smallest)):
            made.optimizer.zero_grad()
            features, label = (torch.from_numpy(arrays[name][chosen]) for name in ("features", "label"))
            loss = made.loss(made.module(features), label)
            loss.backward()
            made.optimizer.step()
    return {name: value.detach().numpy() for name, value in made.module.state_dict().items()}


def cuts(rows: int, size: int, smallest: int) -> list[int]:
    """Where the batches of a unit end, but for the last: a batch that is too small joins the one before it."""
    found = list(range(size, rows, size))
    return found[:-1] if found and rows - found[-1] < smallest else found


def stored_weights(store: Store, run: str, checkpoint: Checkpoint) -> list[np.ndarray[Any, Any]]:
    with open_checkpoint(store.read(paths.checkpoint(run, checkpoint))) as reader:
        names = [name for name in reader.names() if name.startswith("model/parameters/")]
        return [read_array(reader, name) for name in names]


def check_run(dataset: Dataset, run: str, trials: int, epochs: int, seed: int) -> list[Event]:
    """The run is finished; each unit counted once; the best epochs have the weights of a plain loop up to there."""
    events = logged(dataset.store, run)
    start = events[0]
    assert isinstance(start, RunStarted)
    scheduler, counted = judged(events)
    assert scheduler.finished
    units = [event.unit for order in counted.values() for event in order]
    assert len(units) == len(set(units)) == trials * epochs * len(dataset.train)
    for trial, order in counted.items():
        record = scheduler.state.trials[trial]
        assert record.best is not None, record.error
        until = [event for event in order if event.unit.epoch <= record.best.epoch]
        expected = plain_torch_loop(dataset, record.params, until, seed, start.settings.smallest_batch)
        found = stored_weights(dataset.store, run, record.best)
        assert {w.tobytes() for w in found} == {w.tobytes() for w in expected.values()}, trial
    return events
