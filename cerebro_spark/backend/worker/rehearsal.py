"""One batch of a trial, trained and evaluated before a run, so that what is broken shows then. It keeps nothing."""

from __future__ import annotations

import os
import sys
import time
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
# So many batches are timed, unless they take longer than so many seconds.
_MOST_TIMED = 16
_LONGEST_TIMED = 1.0


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


def estimate_seconds(params: Mapping[str, Any], job: Job, trainer: Callable[[], Trainer]) -> float | None:
    """Train some batches of a trial; return what a unit may take, on a partition of average size.

    Returns:
        The seconds; None if these batches do not tell: on a GPU, where the steps of a long unit become faster than
        those of a short one, or if they fail.
    """
    try:
        return _time_batches(params, job, trainer())
    except Exception as error:
        print(f"no batches of {dict(params)} could be timed: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def _time_batches(params: Mapping[str, Any], job: Job, trainer: Trainer) -> float | None:
    if trainer.on_gpu:
        return None
    partitions = job.dataset.train
    size, unit = batch_size_of(params), Unit(_TRIAL, 1, partitions[0].id)
    arrays = first_rows(job.dataset, partitions[0], _MOST_TIMED * size)
    trainer.build(_TRIAL, params)
    a_row = 0.0
    for batches in (1, 1, _MOST_TIMED):  # the first one does what is done only once
        rows = {name: array[: batches * size] for name, array in arrays.items()}
        count = len(next(iter(rows.values())))
        if count * a_row > _LONGEST_TIMED:
            break
        began = time.perf_counter()
        trainer.train(unit, Feed(rows, batch_size=size))
        a_row = (time.perf_counter() - began) / count
    trainer.build(_TRIAL, params)
    return a_row * sum(partition.rows for partition in partitions) / len(partitions)


def _check_metric(measured: Mapping[str, float], job: Job) -> None:
    """Check that the model measures what the search goes by."""
    found = [*measured, *(f"val_{name}" for name in measured if job.dataset.validation)]
    if job.metric is not None and job.metric not in found:
        raise ConfigurationError(
            f"`metric` is {job.metric!r}, but the model measures {', '.join(found)}: choose one of them, or"
            " have the model measure it"
        )
