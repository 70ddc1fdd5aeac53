"""Places of a Spark cluster that are held for later, and how they are given back before a job needs one. It holds none.

Whoever holds places between two runs says so here; whoever starts a Spark job of this package asks for room first.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol


class SlotHolder(Protocol):
    """Holds places of a cluster while nothing runs there."""

    def make_room(self, context: Any) -> None:
        """Give back what is held of this SparkContext's cluster, if no place is free there. It does not wait."""


_holders: weakref.WeakSet[SlotHolder] = weakref.WeakSet()


def add_holder(holder: SlotHolder) -> None:
    """Have a holder asked for room from now on, for as long as it exists or until it is removed."""
    _holders.add(holder)


def remove_holder(holder: SlotHolder) -> None:
    """Ask a holder no more."""
    _holders.discard(holder)


def make_room(context: Any, besides: SlotHolder | None = None) -> None:
    """Ask all holders for room. Call it before a Spark job.

    Args:
        context: The SparkContext of the job.
        besides: A holder that is not asked: the places are for its own job. Default: none.
    """
    for holder in list(_holders):
        if holder is not besides:
            holder.make_room(context)
