"""Whose fault it is when something goes wrong, and how it is said. Nothing here mends anything."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cerebro_spark.errors import CerebroError, CheckpointError, TrialFailed
from cerebro_spark.trainer.batch_keys import explained
from cerebro_spark.trainer.checkpoints.file import Reader
from cerebro_spark.trainer.feed import Columns
from cerebro_spark.trainer.sharing.footprint import Change
from cerebro_spark.types import TrialId, Unit

_GENERATORS = (
    "is a generator that no checkpoint carries: draw from the framework's default generator, np.random or random"
)

_OPTIMIZERS = (
    "is in neither its `state` nor its `param_groups`, which are what hops of an optimizer: keep it there, or use"
    " another optimizer"
)


@contextmanager
def building(trial: TrialId, params: Mapping[str, Any], columns: Columns) -> Iterator[None]:
    """Whatever goes wrong inside is the trial's fault, whose `model_fn` was called."""
    try:
        yield
    except CerebroError:
        raise
    except Exception as error:
        raise TrialFailed(
            f"building trial {trial} with params {dict(params)!r} failed:\n{traceback.format_exc()}"
            + explained(error, columns, params)
        ) from error


@contextmanager
def running(unit: Unit, params: Mapping[str, Any], columns: Columns) -> Iterator[None]:
    """Whatever goes wrong inside is the fault of the trial whose unit it is."""
    try:
        yield
    except CerebroError:
        raise
    except Exception as error:
        raise TrialFailed(
            f"trial {unit.trial} failed in epoch {unit.epoch} on partition {unit.partition} with params"
            f" {dict(params)!r}:\n{traceback.format_exc()}" + explained(error, columns, params)
        ) from error


@contextmanager
def fitting(reader: Reader, framework: str) -> Iterator[None]:
    """Whatever goes wrong inside is the checkpoint's fault, which does not fit, and is named."""
    found = reader.meta.get("framework") if isinstance(reader.meta, dict) else None
    if found != framework:
        raise CheckpointError(
            f"{reader.label} was written by {found!r}, but this search trains with {framework!r}: a checkpoint is"
            " loaded by the framework that wrote it"
        )
    try:
        yield
    except (CerebroError, OSError):
        raise
    except Exception as error:
        raise CheckpointError(
            f"{reader.label} does not fit the model that params build ({type(error).__name__}: {error}): a"
            " checkpoint fits only the architecture that wrote it"
        ) from error


def left_behind(change: Change, unit: Unit, params: Mapping[str, Any], remedy: str) -> TrialFailed:
    """The error of a unit that has changed what hops with no checkpoint."""
    doing = "training" if unit.kind == "train" else "evaluating"
    if str(change.after).startswith("a generator"):
        remedy = _GENERATORS
    elif change.place.startswith("optimizer"):
        remedy = _OPTIMIZERS
    return TrialFailed(
        f"trial {unit.trial} failed in epoch {unit.epoch} on partition {unit.partition}: {change} while {doing} and"
        f" {remedy} (it is at {change.place}; params {dict(params)!r})"
    )
