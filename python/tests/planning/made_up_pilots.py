"""Records of pilots that never ran: units take what a formula says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cerebro_spark.events import UnitFinished
from cerebro_spark.forecast.measured import Measurements, OrderSample
from cerebro_spark.planning.pilot import PilotRecord
from cerebro_spark.planning.profile import Profile
from cerebro_spark.planning.values import Setting
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.search import make_trial_ids
from cerebro_spark.types import Checkpoint, Steps, Unit

TWO = Setting(threads=1, at_once=2)
Seconds = Callable[[Mapping[str, Any], int], float]
"""From params and a number of batches to seconds."""


def made_record(
    configurations: Sequence[Mapping[str, Any]],
    train: Seconds,
    batches: tuple[int, ...] = (10, 40, 10, 40),
    workers: int = 2,
    build: float = 0.0,
    again: float = 0.0,
    steps: Steps = "",
    overhead: float = 0.0,
    lead: float = 1.0,
    memory: int = 0,
    checkpoint: int = 1000,
    epoch_seconds: float = 0.0,
) -> PilotRecord:
    """Return what a pilot would have measured; an evaluation takes half the time.

    The first training unit of a structure on a worker takes `build` more, that of each other of its trials `again`.
    An epoch ends `epoch_seconds` after the one before, whatever its units say.
    """
    record = PilotRecord(batches, {"train": 100_000, "eval": 100_000}, 1_000_000, memory=memory, lead=lead)
    params = dict(zip(make_trial_ids(len(configurations)), configurations, strict=True))
    met: set[tuple[str, int]] = set()
    attempt = 0
    for trial, own in params.items():
        for epoch, count in enumerate(batches, start=1):
            for worker in range(workers):
                structure = (kin_of(own), worker)
                first = 0.0 if epoch > 1 else again if structure in met else build
                met.add(structure)
                for kind, share in (("train", 1.0), ("eval", 0.5)):
                    attempt += 1
                    unit = Unit(trial, epoch, f"{kind}-{worker}", kind)  # type: ignore[arg-type]
                    left = Checkpoint(trial, epoch, worker + 1, attempt, checkpoint) if kind == "train" else None
                    seconds = share * train(own, count) + (first if kind == "train" else 0.0)
                    at, name = epoch * epoch_seconds, f"w{worker}"
                    record.finished.append(UnitFinished(at, name, unit, attempt, seconds, left, steps=steps))
    record.params = params
    record.seen = Measurements(
        orders=[OrderSample("train", overhead, 0.0, False), OrderSample("eval", overhead, 0.0, False)], loads=[0.5]
    )
    return record


def made_profile(
    configurations: Sequence[Mapping[str, Any]], train: Seconds, setting: Setting = TWO, **rest: Any
) -> Profile:
    """Return the profile of such a pilot."""
    return Profile(setting, made_record(configurations, train, **rest))


def group_record(size: int, unit: float, step: float, params: Mapping[str, Any], first: float = 0.0) -> PilotRecord:
    """A pilot of groups: a unit takes `unit` seconds and `step` for each of its steps, the first one `first` more."""
    record = made_record([params], lambda own, batches: 0.0, workers=1)
    grouped = [
        replace(
            done,
            partners=tuple(f"w{rank}" for rank in range(1, size)),
            seconds=unit + step * size * record.length_of(done.unit) + (first if done.unit.epoch == 1 else 0.0),
        )
        for done in record.finished
        if done.unit.kind == "train"
    ]
    record.finished = [done for done in record.finished if done.unit.kind == "eval"] + grouped
    return record
