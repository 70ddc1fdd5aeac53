"""What is known of a structure of trials: whether they are stacked, how many at once, and the stacks made so far."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

# Stacks that are kept of one structure: they hold the memory of their members.
_KEPT = 4
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Structure:
    """Trials whose models are alike, with batches of one shape.

    Attributes:
        name: What it is called in the log.
        trace: The traced step of one member; None before the first bundle.
        stacks: Stacks that were made, by the mode of their members and their width.
        reason: Why its members are trained one by one; None if they are stacked, or if that is not known yet.
        limit: The most members that are stacked; None for any number.
        judged: Whether it is known how many members are best stacked.
        single_seconds: The time of the fastest single step that was seen.
    """

    name: str
    trace: Any = None
    stacks: dict[Any, Any] = field(default_factory=dict)
    reason: str | None = None
    limit: int | None = None
    judged: bool = False
    single_seconds: float = float("inf")

    def refuse(self, reason: str) -> None:
        """Have its members trained one by one from now on."""
        self.reason, self.judged, self.trace = reason, True, None
        self.stacks.clear()
        _log.info("trials of %s are trained one by one: %s", self.name, reason)

    def note_single(self, seconds: float) -> None:
        """Take note of the time of a single step."""
        self.single_seconds = min(self.single_seconds, seconds)

    def refuse_slower(self, stacked: float) -> bool:
        """Have its members trained one by one if stacked steps, which take so many seconds a member, are not faster.

        >>> Structure("a model", single_seconds=0.5).refuse_slower(0.4)
        False
        """
        slower = self.single_seconds <= stacked
        if slower:
            alone, together = (f"{seconds * 1e3:.3f} ms" for seconds in (self.single_seconds, stacked))
            self.refuse(f"a single step takes {alone}, a stacked one {together} a member")
        return slower

    def keep(self, key: Any, stack: Any) -> None:
        """Keep a stack. The oldest go if there are too many."""
        self.stacks[key] = stack
        while len(self.stacks) > _KEPT:
            del self.stacks[next(iter(self.stacks))]

    def halve(self, width: int) -> None:
        """Stack at most half of this many members from now on."""
        self.stacks.clear()
        self.limit, self.judged = width // 2, True
        _log.info("%s trials of %s do not fit into memory together", width, self.name)
        if self.limit < 2:
            self.refuse("there is no memory for two of them")

    def widths(self, members: int) -> list[int]:
        """Return how many of so many members are stacked at a time: shares that differ by one at most.

        >>> Structure("a model", limit=4).widths(9), Structure("a model").widths(9)
        ([3, 3, 3], [9])
        """
        most = self.limit or members
        parts = -(-members // most)
        least, more = divmod(members, parts)
        return [least + 1] * more + [least] * (parts - more)


def explain(error: Exception) -> str:
    """Return the first line of an error, as a reason.

    >>> explain(ValueError("no parameter has a gradient"))
    'no parameter has a gradient'
    """
    lines = str(error).strip().splitlines() or [""]
    return lines[0] if type(error) is ValueError else f"{type(error).__name__}: {lines[0]}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory is used up; PyTorch has no class for that on a CPU.

    >>> is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ..."))
    True
    """
    said: Any = str(error)
    return isinstance(error, MemoryError) or "can't allocate memory" in said or "out of memory" in said
