"""The settings of a run: what is valid, and the rules for faults that a run gets which begins now. PURE.

An older run keeps the rules of its own log.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.events import KillRule, Settings

QUARANTINE = 60.0
"""Seconds after which a worker that was let go for its failures is replaced, the first time on its host."""
MAX_KILLS = 2
"""Deaths of its workers in a row after which a unit may be taken for their cause."""
LEAST_TIMEOUT = 300.0
"""Seconds that any unit and any load may take, however short they usually are."""


def with_todays_rules(
    settings: Settings, *, max_kills: int | None = None, unit_timeout: float | None = None
) -> Settings:
    """Return the settings with the rules of a run that begins now.

    Args:
        settings: The other settings of the run.
        max_kills: How many workers a unit may lose in a row, on different hosts, before its trial fails. By default
            that depends on how often workers die on this cluster.
        unit_timeout: Seconds that a unit or a load may take. By default that depends on how long they usually take.

    Returns:
        A copy of `settings`.

    >>> settings = with_todays_rules(Settings((), 1))
    >>> settings.kill_rule, settings.max_kills, settings.quarantine
    ('chance', 2, 60.0)
    """
    return replace(
        settings,
        max_kills=MAX_KILLS if max_kills is None else max_kills,
        kill_rule="chance" if max_kills is None else "hosts",
        quarantine=QUARANTINE,
        unit_timeout=unit_timeout,
        least_timeout=LEAST_TIMEOUT,
        fuse_evaluations=True,
        keep_last=True,
    )


def check_settings(settings: Settings) -> None:
    """Raise ConfigurationError for settings with which no run could work."""
    if not any(partition.split == "train" for partition in settings.partitions):
        raise ConfigurationError(
            f"`partitions` is {len(settings.partitions)}, but must be at least 1, one for training"
        )
    least = {"workers": 1, "replicas": 1, "queue_ahead": 0, "max_kills": 1, "max_failures": 1, "fuse": 1, "group": 1}
    for name, minimum in least.items():
        value = getattr(settings, name)
        if value < minimum:
            raise ConfigurationError(f"`{name}` is {value}, but must be at least {minimum}")
    for name in ("quarantine", "unit_timeout", "least_timeout"):
        seconds = getattr(settings, name)
        if seconds is not None and not 0 < seconds < float("inf"):
            raise ConfigurationError(f"`{name}` is {seconds}, but must be a number of seconds above 0")
    if settings.kill_rule not in get_args(KillRule):
        raise ConfigurationError(f"`kill_rule` is {settings.kill_rule!r}, but must be one of {get_args(KillRule)}")
