"""The errors of builds and units that are the trial's fault. It only words them; it repairs nothing."""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cerebro_spark.errors import CerebroError, TrialFailed
from cerebro_spark.trainer.feed import Columns
from cerebro_spark.trainer.hook_results import list_names
from cerebro_spark.trainer.sharing.patches import LIBRARY
from cerebro_spark.trainer.sharing.snapshot import GLOBAL, StateChange
from cerebro_spark.types import Metrics, TrialId, Unit

EXPLODED = 1e30
"""The largest loss of a row. Nothing learns from more: float32 ends at 3e38, and the square is infinite already."""

_GENERATORS = (
    "is a generator that no checkpoint carries: draw from the framework's default generator, np.random or random"
)
_OPTIMIZERS = (
    "does not hop: of an optimizer do so its `state` and the numbers in those `param_groups` that model_fn gave it."
    " Make all groups there, and keep what the optimizer notes in `state`, or use another one"
)
_OTHER_OPTIMIZERS = (
    "belongs to an optimizer beside the one that the model was compiled with, and only that one hops: let one optimizer"
    " take all steps (with learning rates of their own by scaling losses or gradients)"
)
_SCHEDULES = (
    "is not in the `state_dict` of lr_scheduler, which is what hops of it: keep it there, and let `load_state_dict` put"
    " it back"
)
_SCALERS = (
    "does not hop with the checkpoint: Resources(precision='float16') has one that hops, without a train_fn; or make a"
    " scaler in each call of train_fn"
)
_LIBRARIES = (
    "is shared by all trials of a worker (it was put back): use a class or function of your own in the model, or"
    " replace it where the module of the function is imported, for all trials alike"
)
_SHAPES = (
    "has another shape or dtype now, but the checkpoints of a trial must all fit the model that model_fn builds: give"
    " the buffer its last shape there. If a first batch finds it (quantization per channel), call the module once in"
    " model_fn, with inputs that are typical"
)


@contextmanager
def blaming_trial(running: Unit | TrialId, params: Mapping[str, Any], columns: Columns) -> Iterator[None]:
    """Raise TrialFailed for any error inside the block, which runs a unit, or builds the model of a trial."""
    try:
        yield
    except CerebroError:
        raise
    except Exception as error:
        given = f"with params {dict(params)!r}"
        what = f"{_where(running)} {given}" if isinstance(running, Unit) else f"building trial {running} {given} failed"
        raise TrialFailed(f"{what}:\n{traceback.format_exc()}{_explain_key(error, columns, params)}") from error


def unsaved_change(change: StateChange, unit: Unit, params: Mapping[str, Any], remedy: str) -> TrialFailed:
    """Return the error of a unit that has changed what no checkpoint saves."""
    doing = "training" if unit.kind == "train" else "evaluating"
    if str(change.after).startswith("a generator"):
        remedy = _GENERATORS
    elif change.place.startswith("optimizer"):
        remedy = _OPTIMIZERS
    elif ".variable " in change.place:
        remedy = _OTHER_OPTIMIZERS
    elif change.place.startswith("lr_scheduler"):
        remedy = _SCHEDULES
    elif change.place.startswith(LIBRARY):
        remedy = _LIBRARIES
    elif change.what.startswith("GradScaler."):
        remedy = _SCALERS
    elif all(str(value).startswith("'buffer of ") for value in (change.before, change.after)):
        remedy = _SHAPES
    elif GLOBAL in change.place:
        remedy += ". Other trials see the same global: if model_fn sets it, keep it on the model instead"
    elif ".__class__." in change.place:
        remedy += ". All trials share the class: if model_fn sets it, keep it on the object instead"
    return TrialFailed(
        f"{_where(unit)}: {change} while {doing} and {remedy} (it is at {change.place}; params {dict(params)!r})"
    )


def replaced_function(change: StateChange, trial: TrialId, params: Mapping[str, Any]) -> TrialFailed:
    """Return the error of a trial whose `model_fn` has replaced a function of a library."""
    return TrialFailed(
        f"building trial {trial} with params {dict(params)!r} failed: {change} while building and {_LIBRARIES}"
    )


def check_loss(metrics: Metrics, unit: Unit, params: Mapping[str, Any]) -> None:
    """Raise TrialFailed if a loss of the unit has exploded: NaN, infinite, or beyond 1e30 a row."""
    for name, total in metrics.sums.items():
        value = total / (metrics.weights.get(name) or 1.0)
        if (name == "loss" or name.endswith("_loss")) and not abs(value) <= EXPLODED:
            what = "which is no number" if math.isnan(value) else f"which is beyond {EXPLODED:g}"
            raise TrialFailed(
                f"{_where(unit)}: its {name} is {value}, {what}; params {dict(params)!r}. Lower"
                " the learning rate, clip the gradients, or look for odd rows"
            )


def _where(unit: Unit) -> str:
    return f"trial {unit.trial} failed in epoch {unit.epoch} on partition {unit.partition}"


def _explain_key(error: BaseException, columns: Columns, params: Mapping[str, Any]) -> str:
    """Return, for a missing key, a line with the keys that there are, beginning with a line end; else "".

    A batch itself stays a plain dict: the tree functions of Keras and PyTorch would take any other class for a leaf.

    >>> _explain_key(KeyError("age"), Columns({"features": None}, {"label": None}), {"lr": 0.1}).strip()
    "KeyError: 'age'. A batch has the keys 'features', 'label'; params has 'lr'"
    """
    if not isinstance(error, KeyError):
        return ""
    there = f"A batch has the keys {list_names(columns.names)}; params has {list_names(params) or 'none'}"
    return f"\nKeyError: {', '.join(map(repr, error.args))}. {there}"
