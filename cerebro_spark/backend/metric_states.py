"""Metric states that go from unit to unit: through the store where they are too large for log and wire.

A state that can only be updated may grow with the rows it has seen. What exceeds LIMIT is written once, under the name
of the unit's attempt, and log and wire have its name and digest alone. The last unit of an epoch needs no file: it has
made values of its state.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cerebro_spark.backend.job import Job
from cerebro_spark.codec import from_plain, to_plain
from cerebro_spark.errors import StoreError
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.types import CarriedFile, Metrics, TrialId

LIMIT = 64_000
"""Bytes of carried states, as JSON, that a log entry may have."""


def store_large_states(metrics: Metrics, job: Job, trial: TrialId, attempt: int, *, final: bool) -> Metrics:
    """Return the metrics as log and wire may have them: a large state is stored, or dropped after the final unit."""
    data = _pack(metrics.carried) if metrics.carried else b""
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


def _pack(carried: Mapping[str, Any]) -> bytes:
    return json.dumps(to_plain(carried, "carried"), sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
