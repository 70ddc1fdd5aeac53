"""Observers for tests that look at one event after another."""

from __future__ import annotations

from collections.abc import Callable

from cerebro_spark.engine import Observer
from cerebro_spark.events import Event
from cerebro_spark.turns import Turn


def each_event(look: Callable[[Event], object]) -> Observer:
    """An observer that has `look` see every event of a turn."""

    def observe(turn: Turn) -> None:
        for event in turn.events:
            look(event)

    return observe
