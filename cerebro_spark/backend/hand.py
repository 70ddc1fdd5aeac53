"""A worker as the driver knows it. A value that changes; whoever holds the backend's lock may change it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from cerebro_spark.types import WorkerId

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Hand:
    """A worker as the driver knows it: `peer` is its wire once it has said hello, `running` the attempt it is at.

    `orders` are those it has not said the end of, and `since` is when it was last seen to begin or to end one.
    `leaving` is one that shall go after its unit, `dismissed` one that was told so. `tried` is one that was given a
    trial to try, `useful` one that has done something. `kept_away` are the seconds for which its place was left empty
    before it came, because too much had failed there. `cause` is what it died of, where that was not its unit. `ended`
    is set when nothing is left of its process. `launched` is for the kind of backend that launched it.
    """

    name: WorkerId
    host: str = ""
    pid: int | None = None
    peer: int | None = None
    running: int | None = None
    leaving: bool = False
    dismissed: bool = False
    tried: bool = False
    useful: bool = False
    kept_away: float = 0.0
    cause: str = ""
    launched: Any = None
    orders: dict[Any, Any] = field(default_factory=dict)
    since: float = 0.0
    ended: threading.Event = field(default_factory=threading.Event)
    words: deque[str] = field(default_factory=lambda: deque(maxlen=40))


def see_off(left: Collection[Hand], kill: Callable[[Hand], None], seconds: float) -> None:
    """Wait until nothing is left of these workers, which know that they shall end; after that long they are killed.

    `left` gets smaller by itself, as they end.
    """
    for hand in list(left):
        if hand.peer is None:
            kill(hand)
    for hand in _still_there(left, seconds):
        kill(hand)
    for hand in _still_there(left, seconds):
        _log.warning("worker %s on %s did not end when it was killed", hand.name, hand.host)


def _still_there(hands: Collection[Hand], seconds: float) -> list[Hand]:
    deadline = time.monotonic() + seconds
    return [hand for hand in list(hands) if not hand.ended.wait(max(0.0, deadline - time.monotonic()))]
