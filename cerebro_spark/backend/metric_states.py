"""Metric states that go from unit to unit: through the store where they are too large for log and wire.

A state that can only be updated may grow with the rows it has seen. What exceeds LIMIT is written once, under the name
of the unit's attempt, and log and wire have its name and digest alone. The last unit of an epoch needs no file: it has
made values of its state.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from cerebro_spark.backend.job import Job
from cerebro_spark.codec import from_plain, to_plain
from cerebro_spark.errors import StoreError
from cerebro_spark.events import Event, UnitFinished
from cerebro_spark.scheduling.records import TrialRecord
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.types import CarriedFile, Metrics, TrialId

LIMIT = 64_000
"""Bytes of carried states, as JSON, that a log entry may have."""

_log = logging.getLogger(__name__)


def store_large_states(metrics: Metrics, job: Job, trial: TrialId, attempt: int, *, final: bool) -> Metrics:
    """Return the metrics as log and wire may have them: a large state is stored, or dropped after the final unit."""
    if not metrics.carried:
        return metrics
    data = _pack(metrics.carried)
    if len(data) <= LIMIT:
        return metrics
    name = "" if final else paths.carried(job.run, trial, attempt)
    if name:
        job.store.write(name, data)
    return dataclasses.replace(metrics, carried={}, stored=CarriedFile(name, len(data), _digest(data)))


def load_states(metrics: Metrics | None, store: Store) -> Metrics | None:
    """Return the metrics with the state that was stored, if one was. Raises StoreError for a file that is not it."""
    if metrics is None or metrics.stored is None:
        return metrics
    data = store.read(metrics.stored.name)
    if _digest(data) != metrics.stored.digest:
        raise StoreError(f"{metrics.stored.name} is not the metric state that was written there: the file is damaged")
    carried: dict[str, Any] = from_plain(dict[str, Any], json.loads(data))
    return dataclasses.replace(metrics, carried=carried, stored=None)


def digest_states(metrics: Metrics) -> str:
    """Return a digest that is equal for equal carried states, wherever they lie; "" where there are none."""
    if metrics.stored is not None:
        return metrics.stored.digest
    return _digest(_pack(metrics.carried)) if metrics.carried else ""


class MetricStateFiles:
    """Deletes the files of one run that no unit can need any more, in a thread of its own.

    It is told of every event, after the scheduler. What a driver that died left is deleted at the run's end.

    Args:
        store: The run's store.
        run: The run's id.
    """

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._known: defaultdict[TrialId, set[str]] = defaultdict(set)
        self._any = False
        self._pool = ThreadPoolExecutor(1, "metric-states")

    def note(self, event: Event, trials: Mapping[TrialId, TrialRecord]) -> None:
        """Take notice of an event: a unit that ended has made the state before its own superfluous."""
        if not isinstance(event, UnitFinished) or event.unit.trial not in trials:
            return
        trial = event.unit.trial
        if event.metrics.stored is not None and event.metrics.stored.name:
            self._known[trial].add(event.metrics.stored.name)
            self._any = True
        if not self._known[trial]:
            return
        idle = self._known[trial] - files_in_use(trials[trial])
        self._known[trial] -= idle
        for name in sorted(idle):
            self._pool.submit(self._delete, name)

    def clear(self, *, inherited: bool) -> None:
        """Delete all files: the run is over. A run that was `inherited` may have some of an earlier driver."""
        if self._any or inherited:
            self._pool.submit(self._delete, paths.carried_folder(self._run))

    def __enter__(self) -> MetricStateFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=error is not None)

    def _delete(self, name: str) -> None:
        try:
            self._store.delete(name)
        except OSError as error:
            _log.warning("a metric state that is not needed any more stays: %s", error)


def files_in_use(trial: TrialRecord) -> set[str]:
    """Return the files that a next unit of the trial would need: of its epoch, and of epochs that are evaluated."""
    parts = [trial.trained, *(evaluation.measured for evaluation in trial.evaluations.values())]
    stored = [Metrics.merge(part.values()).stored for part in parts if part]
    return {file.name for file in stored if file is not None}


def _pack(carried: Mapping[str, Any]) -> bytes:
    return json.dumps(to_plain(carried, "carried"), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
