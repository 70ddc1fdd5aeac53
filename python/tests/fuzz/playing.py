"""Plays orders of events, drawn at random, against the scheduler."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from test_scheduler_stateful import SchedulerMachine

# Orders that hypothesis draws before it begins anew: with more it would look for ever rarer ones, and slow down.
_ROUND = 100
_STEPS = 40


class Played(NamedTuple):
    """What was played.

    Attributes:
        events: How many events the scheduler has heard, those of repetitions aside.
        orders: How many orders they were in.
    """

    events: int
    orders: int


def play(events: int, begin: int, orders: int = _ROUND, shrinks: bool = True) -> Played:
    """Play orders until there were so many events.

    Args:
        events: How many there shall be, at least.
        begin: The seed of the first round; each round adds one.
        orders: The orders of a round.
        shrinks: Whether to look for a shorter order than the one that broke something, which may take minutes.

    Raises:
        Exception: What an order has broken, with the order.
    """
    heard: list[int] = []

    class Counting(SchedulerMachine):
        """The machine, whose events are counted."""

        def teardown(self) -> None:
            heard.append(len(getattr(self, "events", ())))
            super().teardown()

    drawn = settings(
        max_examples=orders,
        stateful_step_count=_STEPS,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink] if shrinks else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    number = begin
    while sum(heard) < events:
        run_state_machine_as_test(seed(number)(Counting), settings=drawn)
        number += 1
    return Played(sum(heard), len(heard))
