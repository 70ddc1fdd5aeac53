"""When the next forecast is due. PURE: whoever asks says what time it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

UNITS, CHANGED = b"u", b"c"
"""What the driver's process says of a turn: a byte for each unit that was done, and one if workers or plans changed."""


@dataclass(slots=True)
class Refresh:
    """Decides when a forecast is made anew.

    Args:
        units: After so many units.
        seconds: At most once in so many seconds.
        oldest: After so many seconds in any case: a unit that does not end is news, too.
        share: The share of the time that forecasts may take: the longer one takes, the rarer they are.

    >>> refresh = Refresh(units=2, seconds=5.0)
    >>> refresh.note(b"u", 0.0); refresh.due(0.0)
    True
    >>> refresh.made(0.0, 0.1); refresh.note(b"uu", 1.0); refresh.due(1.0), refresh.due(5.0)
    (False, True)
    """

    units: int = 1
    seconds: float = 5.0
    oldest: float = 60.0
    share: float = 0.2
    _done: int = 0
    _changed: bool = False
    _first: bool = True
    _not_before: float = -math.inf
    _made_at: float = 0.0

    def note(self, news: bytes, now: float) -> None:
        """Take notice of what the driver's process said."""
        self._done += news.count(UNITS)
        self._changed = self._changed or CHANGED in news

    def ask(self) -> None:
        """Take notice of a new question."""
        self._changed = True

    def made(self, now: float, cost: float) -> None:
        """A forecast was made just now, and took `cost` seconds."""
        self._done, self._changed, self._first, self._made_at = 0, False, False, now
        self._not_before = now + max(self.seconds, cost / self.share)

    def due(self, now: float) -> bool:
        """Whether a forecast is to be made now."""
        if now < self._not_before:
            return False
        if self._first:
            return self._done > 0
        return self._changed or self._done >= self.units or now - self._made_at >= self.oldest

    def wait(self, now: float) -> float | None:
        """Return after how many seconds one may be due without further news; None for never."""
        if self._first and not self._done:
            return None
        soon = self._changed or self._done >= self.units or self._first
        return max(0.0, (self._not_before if soon else max(self._not_before, self._made_at + self.oldest)) - now)
