"""One batch of a trial, trained and evaluated before a run, so that what is broken shows then. It keeps nothing."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from cerebro_spark.backend.job import Job
from cerebro_spark.data.loading.arrays import first_rows
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.errors import CerebroError, ConfigurationError
from cerebro_spark.trainer.base import Trainer
from cerebro_spark.trainer.feed import Feed, batch_size_of
from cerebro_spark.types import Unit

_TRIAL = "rehearsal"


def rehearse(params: Mapping[str, Any], job: Job, cache: Cache, trainer: Callable[[], Trainer]) -> str | None:
    """Train, save and evaluate one batch; return None if that went well, else what went wrong."""
    try:
        cache.enter()  # a folder that cannot be used is reported now, and not by the first load
        _try_one_batch(params, job, trainer)
    except (CerebroError, MemoryError) as known:
        return f"{type(known).__name__}: {known}"
    except Exception:
        return traceback.format_exc()
    return None


def _try_one_batch(params: Mapping[str, Any], job: Job, ready: Callable[[], Trainer]) -> None:
    partition = job.dataset.train[0]
    size = batch_size_of(params)
    arrays = first_rows(job.dataset, partition, size)
    trainer = ready()
    trainer.build(_TRIAL, params)
    trainer.train(Unit(_TRIAL, 1, partition.id), Feed(arrays, batch_size=size))
    with open(os.devnull, "wb", buffering=0) as nowhere:
        trainer.save(nowhere)  # a state that no checkpoint can hold shows here
    measured = trainer.evaluate(Unit(_TRIAL, 1, partition.id, "eval"), Feed(arrays, batch_size=size))
    _check_metric(trainer.finish(measured), job)
    trainer.build(_TRIAL, params)  # as the next trial will be: what this one has trained must not be in it


def _check_metric(measured: Mapping[str, float], job: Job) -> None:
    """Check that the model measures what the search goes by."""
    found = [*measured, *(f"val_{name}" for name in measured if job.dataset.validation)]
    if job.metric is not None and job.metric not in found:
        raise ConfigurationError(
            f"`metric` is {job.metric!r}, but the model measures {', '.join(found)}: choose one of them, or"
            " have the model measure it"
        )
