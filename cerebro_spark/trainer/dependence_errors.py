"""The errors of trials whose functions depend on what they kept outside of the model. It only words them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro_spark.errors import TrialFailed
from cerebro_spark.trainer.sharing.dependence import FILLED
from cerebro_spark.trainer.sharing.snapshot import StateChange
from cerebro_spark.trainer.unit_errors import unsaved_change
from cerebro_spark.types import TrialId, Unit

_OTHERS = "Take it from params, or set it anew in each call of model_fn; a count that nothing depends on may stay"
_CACHES = (
    "A function with a cache must draw no random numbers, also not for weights that it then replaces: draw them in"
    " model_fn, or inside `with torch.random.fork_rng():` after a seed of its own"
)


def depends_on_growth(change: StateChange, differs: str, unit: Unit, params: Mapping[str, Any]) -> TrialFailed:
    """Return the error of a unit that added to a container on which something depends.

    Args:
        change: The container, and its growth.
        differs: What depends on it, such as "the state of the trial".
        unit: The unit.
        params: The configuration of its trial.
    """
    remedy = (
        f"is read again: with what was added, {differs} is another for the same batch, and no checkpoint carries it."
        " Keep it in a buffer of the model (Keras: a weight), which hops, or make it anew in each call; a log that"
        " nothing depends on may stay"
    )
    return unsaved_change(change, unit, params, remedy)


def depends_on_builds(change: StateChange, differs: str, trial: TrialId, params: Mapping[str, Any]) -> TrialFailed:
    """Return the error of a trial for which `model_fn` builds something else each time it is called.

    Args:
        change: What `model_fn` has changed.
        differs: What depends on it, such as "the first weights".
        trial: The trial.
        params: Its configuration.
    """
    remedy = _CACHES if change.after == FILLED else _OTHERS
    return TrialFailed(
        f"building trial {trial} with params {dict(params)!r} failed: {change} while building and is read again, so"
        f" that {differs} would depend on what a worker has built before. {remedy} (it is at {change.place})"
    )
