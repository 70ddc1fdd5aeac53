"""Dispatch policies: plain functions with one signature, in a table by name."""

from __future__ import annotations

from cerebro_spark.dispatch.base import Changes, Policy, PolicyView, UnitChoice
from cerebro_spark.dispatch.greedy import longest_first, random_choice
from cerebro_spark.dispatch.hopper import hopper
from cerebro_spark.dispatch.rearrangement import rearrangement
from cerebro_spark.errors import ConfigurationError

POLICIES: dict[str, Policy] = {
    "hopper": hopper,
    "longest-first": longest_first,
    "random": random_choice,
    "rearrangement": rearrangement,
}

# These never let a worker wait on purpose, and plan nothing: whatever restricts trials, they come to an end.
GREEDY = ("longest-first", "random")


def get_policy(name: str) -> Policy:
    """The policy of that name.

    >>> get_policy("random") is random_choice
    True
    """
    if name not in POLICIES:
        raise ConfigurationError(f"policy {name!r} is unknown: use one of {', '.join(POLICIES)}")
    return POLICIES[name]


__all__ = ["GREEDY", "POLICIES", "Changes", "Policy", "PolicyView", "UnitChoice", "get_policy"]
