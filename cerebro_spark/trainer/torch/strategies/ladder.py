"""The strategies in the order in which they are tried. PURE: it tries none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from cerebro_spark.types import Strategy

LADDER: tuple[Strategy, ...] = ("plain", "recompute", "offload", "offload+recompute")
"""Of one worker, from the fastest to the one that needs the least memory."""


def recomputes(strategy: str) -> bool:
    """Whether a strategy computes parts of a model again.

    >>> [name for name in LADDER if recomputes(name)]
    ['recompute', 'offload+recompute']
    """
    return "recompute" in strategy


def offloads(strategy: str) -> bool:
    """Whether a strategy keeps parts of a model's state on the host.

    >>> [name for name in LADDER if offloads(name)]
    ['offload', 'offload+recompute']
    """
    return "offload" in strategy


def shards(strategy: str) -> bool:
    """Whether a strategy has members of a group keep a part of the model each.

    >>> [name for name in (*LADDER, "shard") if shards(name)]
    ['shard']
    """
    return strategy == "shard"


def rungs_of(asked: Literal["auto"] | Strategy, has_own_memory: bool) -> tuple[Strategy, ...]:
    """Return the strategies that may be tried by one worker, in their order.

    Args:
        asked: What the user asked for. "shard" is for groups: a unit that one worker has to train is trained as it can.
        has_own_memory: Whether the device has a memory apart from the host's. On a CPU all is on the host already, so
            that offloading changes nothing, and what does not fit there fits nowhere.

    >>> rungs_of("auto", True) == LADDER, rungs_of("auto", False), rungs_of("offload+recompute", False)
    (True, ('plain',), ('recompute',))
    """
    if asked == "auto" or shards(asked):
        return LADDER if has_own_memory else ("plain",)
    if has_own_memory or not offloads(asked):
        return (asked,)
    return ("recompute",) if recomputes(asked) else ("plain",)


def rungs_from(rungs: Sequence[Strategy], known: Strategy) -> tuple[Strategy, ...]:
    """Return the rest of a ladder from a strategy that is known to be needed, which comes first.

    >>> rungs_from(LADDER, "offload"), rungs_from(("plain",), "recompute")
    (('offload', 'offload+recompute'), ('recompute',))
    """
    return tuple(rungs[rungs.index(known) :]) if known in rungs else (known,)
