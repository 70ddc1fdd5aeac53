"""Checks of what Optuna's users give to `optimize`, before anything is prepared or started."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import optuna
from optuna.study import StudyDirection

from cerebro_spark.checks import check_at_least, is_number
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.tune.objective import inferred_mode, objective_for

Callback = Callable[[optuna.Study, optuna.trial.FrozenTrial], None]


def list_callbacks(callbacks: Iterable[Callback] | None) -> tuple[Callback, ...]:
    """Return the callbacks. Raises ConfigurationError for what is no function."""
    if callable(callbacks) or not isinstance(callbacks, Iterable | None):
        raise ConfigurationError(f"`callbacks` is {callbacks!r}, but must be a list of functions: write [callback]")
    called = tuple(callbacks or ())
    for callback in called:
        if not callable(callback):
            raise ConfigurationError(
                f"`callbacks` has {callback!r}, but must be functions, called as callback(study, trial)"
            )
    return called


def check_study(study: optuna.Study, n_trials: int | None, timeout: float | None, called: bool) -> None:
    """Raise ConfigurationError unless a run can train the trials of a study, and ends.

    Args:
        study: The study.
        n_trials: How many trials are begun; None for no limit.
        timeout: The seconds after which none is begun; None for no limit.
        called: Whether there are callbacks, which may stop the study.
    """
    if not isinstance(study, optuna.Study):
        raise ConfigurationError(f"`study` is {study!r}, but must be a study: make one with optuna.create_study()")
    if len(study.directions) != 1:
        raise ConfigurationError(
            f"the study has {len(study.directions)} objectives, but a run has one `metric`: use a study with one"
        )
    if n_trials is None and timeout is None and not called:
        raise ConfigurationError(
            "neither `n_trials` nor `timeout` is given, so it would never end: give one of them, or `callbacks` that"
            " stop the study"
        )
    if n_trials is not None:
        check_at_least("n_trials", n_trials, 1)
    if timeout is not None and not (is_number(timeout) and timeout > 0):
        raise ConfigurationError(f"`timeout` is {timeout!r}, but must be above 0 seconds")


def check_space(space: Any) -> None:
    """Raise ConfigurationError for what is neither a function nor a dict of distributions."""
    if callable(space):
        return
    if not isinstance(space, Mapping):
        raise ConfigurationError(
            f"`space` is {space!r}, but must be a function of a trial that returns params, or a dict of distributions"
        )
    for name, given in space.items():
        if not isinstance(given, optuna.distributions.BaseDistribution):
            raise ConfigurationError(
                f"`{name}` of `space` is {given!r}, but must be a distribution of Optuna, such as"
                " optuna.distributions.CategoricalDistribution([0.1, 0.01]); for values that stay the same let `space`"
                " be a function"
            )


def find_mode(study: optuna.Study, metric: str, mode: str | None) -> str:
    """Return the study's direction, unless it contradicts `mode`, or what is known of the metric."""
    direction, other = ("max", "min") if study.direction == StudyDirection.MAXIMIZE else ("min", "max")
    objective_for(metric, mode or direction)  # refuses what is no metric or no mode
    if (mode or inferred_mode(metric)) != other:
        return direction
    better = "less" if other == "min" else "more"
    raise ConfigurationError(
        f"the study would {direction}imize {metric!r}, of which {better} is better: make it with"
        f" direction='{other}imize', or say mode='{direction}' if it is the other way round"
    )
