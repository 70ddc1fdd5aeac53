"""Real workers train a few batches of a few configurations, and everything that takes time is measured. It decides
nothing, and leaves nothing in the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.job import Job
from cerebro_spark.engine import Engine
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import GroupGaveUp, Settings, UnitFailed, UnitFinished
from cerebro_spark.forecast.measured import Measurements, Watch
from cerebro_spark.planning.configurations import PilotSearch
from cerebro_spark.scheduling.settings import with_todays_rules
from cerebro_spark.store import paths
from cerebro_spark.trainer.feed import SMALLEST_BATCH
from cerebro_spark.turns import Turn
from cerebro_spark.types import Objective, TrialId, Unit


@dataclass(slots=True)
class PilotRecord:
    """What a pilot has measured.

    Attributes:
        batches: How many batches units took at most, by their epoch.
        rows: By kind of unit, the rows of the largest partition.
        bytes: The bytes of the largest training partition in memory.
        finished: The units that were done, in the order of their ends.
        failed: The units that failed.
        refused: By trial that no group can train, the reason.
        params: By trial, its params.
        memory: The most bytes of memory that a worker has had; 0 if none said it.
        lead: Seconds from the start until the first order, one batch tried before and its partition's load included.
        seen: What else was measured: waits, loads.
    """

    batches: tuple[int, ...]
    rows: Mapping[str, int]
    bytes: int
    finished: list[UnitFinished] = field(default_factory=list)
    failed: list[UnitFailed] = field(default_factory=list)
    refused: dict[TrialId, str] = field(default_factory=dict)
    params: Mapping[TrialId, Mapping[str, Any]] = field(default_factory=dict)
    memory: int = 0
    lead: float = 0.0
    seen: Measurements = field(default_factory=Measurements)

    def length_of(self, unit: Unit) -> int:
        """Return how many batches a unit took at most, of each of its partitions."""
        return self.batches[(unit.epoch - 1) % len(self.batches)]

    @property
    def epoch_seconds(self) -> float:
        """The seconds from the end of one epoch to that of the next, of a pilot of one trial; 0 if there was only one.

        Whatever a unit takes is in it, the time to save a large state too.
        """
        ends: dict[int, float] = {}
        for done in self.finished:
            ends[done.unit.epoch] = max(done.at, ends.get(done.unit.epoch, 0.0))
        return (max(ends.values()) - min(ends.values())) / (len(ends) - 1) if len(ends) > 1 else 0.0


def run_pilot(
    job: Job,
    objective: Objective,
    backend: Backend,
    configurations: Sequence[Mapping[str, Any]],
    *,
    together: int | None = None,
    fuse: int = 1,
    group: int = 1,
    seconds: float = float("inf"),
    ahead: float = 0.0,
) -> PilotRecord:
    """Train configurations for as many epochs as `job.batches` has numbers, and return what that took.

    Args:
        job: What workers work on: a data set with a training partition for each worker, and `batches`.
        objective: The metric of the search.
        backend: Where units run.
        configurations: What is trained, the most important first.
        together: How many are under way at a time, if each is trained by itself. Defaults to one for each worker.
        fuse: How many may be trained in one bundle. Defaults to 1: each by itself.
        group: How many workers train each of them together. Defaults to 1.
        seconds: The time by which all is to be done: no configuration begins that would end later.
        ahead: The seconds that those take that are under way at a time. Defaults to 0.0: not known.

    Returns:
        What was measured.

    Raises:
        ConfigurationError: Every configuration failed.
        PreflightFailed: One batch of the first ones was tried, and each failed.
    """
    partitions = job.dataset.partitions
    record = PilotRecord(
        job.batches,
        {"train": _most_rows(job.dataset.train), "eval": _most_rows(job.dataset.validation)},
        max(partition.bytes for partition in job.dataset.train),
    )
    settings = Settings(
        partitions,
        backend.num_workers,
        seed=job.trainer.seed,
        queue_ahead=1,
        objective=objective,
        smallest_batch=SMALLEST_BATCH,
        digest=job.digest,
        fuse=fuse,
        group=group,
    )
    workers = max(1, backend.num_workers // group)
    at_once = max(workers * fuse, together or workers)
    search = PilotSearch(configurations, len(job.batches), at_once, seconds, ahead)
    engine = Engine(
        search, with_todays_rules(settings), backend, DiscardingLog(), job.run, [_Recorder(record, backend)]
    )
    watch = Watch(engine.scheduler)
    backend.bind(job)
    try:
        engine.run()
    finally:
        job.store.delete(paths.run_folder(job.run))
    record.seen = watch.seen
    record.params = dict(watch.seen.params)
    if not record.finished:
        raise ConfigurationError(f"nothing can be planned: every configuration that was tried failed. {_first(record)}")
    return record


class _Recorder:
    """An observer of the pilot: it notes when the first order was given, and what became of units."""

    def __init__(self, record: PilotRecord, backend: Backend) -> None:
        self._record = record
        self._backend = backend
        self._begun = False

    def __call__(self, turn: Turn) -> None:
        if not self._begun and any(outcome.orders for outcome in turn.outcomes):
            self._begun = True
            self._record.lead = self._backend.now()
        for event in turn.events:
            if isinstance(event, UnitFinished):
                self._record.memory = max([self._record.memory, *self._backend.peak_memory.values()])
                self._record.finished.append(event)
            elif isinstance(event, UnitFailed):
                self._record.failed.append(event)
            elif isinstance(event, GroupGaveUp) and event.lasting:
                self._record.refused.setdefault(event.unit.trial, event.reason)


def _most_rows(partitions: Sequence[Any]) -> int:
    return max((partition.rows for partition in partitions), default=0)


def _first(record: PilotRecord) -> str:
    failure = record.failed[0]
    return f"The first failed with params {dict(record.params[failure.unit.trial])}: {failure.error}"
