"""The rules by which a run that begins now deals with faults. PURE. Older runs have those of their own log."""

from __future__ import annotations

from dataclasses import replace

from cerebro_spark.events import Settings

QUARANTINE = 60.0
"""Seconds after which a worker that was let go for its failures is replaced, the first time on its host."""
MAX_KILLS = 2
LEAST_TIMEOUT = 300.0
"""Seconds that any unit and any load may take, however short they usually are."""


def with_todays_rules(
    settings: Settings, *, max_kills: int | None = None, unit_timeout: float | None = None
) -> Settings:
    """The settings of a run that begins now.

    `max_kills` is how many workers a unit may lose in a row, on different hosts, before its trial fails; if not given,
    that depends on how often workers die by themselves. `unit_timeout` is how many seconds a unit or a load may take;
    if not given, that depends on how long they usually take.

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
    )
