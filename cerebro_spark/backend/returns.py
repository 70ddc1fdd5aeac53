"""Places that stay empty for a while, because too much failed there, before somebody tries again. It hires nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cerebro_spark.backend.hand import Hand

_LONGEST = 3600.0


class Returns:
    """Of one run. `hire(hand, seconds)` is called, from a thread of its own, once a place was empty for that long."""

    def __init__(self, hire: Callable[[Hand, float], None]) -> None:
        self._hire = hire
        self._timers: list[threading.Timer] = []

    def after(self, seconds: float, hand: Hand) -> None:
        """Somebody is to take the place of this one in so many seconds."""
        timer = threading.Timer(seconds, self._hire, [hand, seconds])
        timer.daemon = True
        self._timers = [waiting for waiting in self._timers if waiting.is_alive()] + [timer]
        timer.start()

    def later_still(self, hand: Hand) -> bool:
        """Whether this one came back and did nothing: then the place is as bad as it was, and is left for longer."""
        if hand.useful or not hand.kept_away:
            return False
        self.after(min(2 * hand.kept_away, _LONGEST), hand)
        return True

    def cancel(self) -> None:
        for timer in self._timers:
            timer.cancel()
