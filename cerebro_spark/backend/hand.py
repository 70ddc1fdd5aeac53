"""A worker as the driver knows it. A value that changes; whoever holds the backend's lock may change it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cerebro_spark.types import WorkerId


@dataclass(slots=True, eq=False)
class Hand:
    """A worker as the driver knows it: `peer` is its wire once it has said hello, `running` the attempt it is at.

    `ended` is set when nothing is left of its process. `launched` is for the kind of backend that launched it.
    """

    name: WorkerId
    host: str = ""
    pid: int | None = None
    peer: int | None = None
    running: int | None = None
    dismissed: bool = False
    useful: bool = False
    launched: Any = None
    ended: threading.Event = field(default_factory=threading.Event)
    words: deque[str] = field(default_factory=lambda: deque(maxlen=40))


def wait_for_ends(hands: Iterable[Hand], seconds: float) -> list[Hand]:
    """Wait until nothing is left of these workers, but no longer than that; returns those that are still there."""
    deadline = time.monotonic() + seconds
    return [hand for hand in hands if not hand.ended.wait(max(0.0, deadline - time.monotonic()))]
