"""What workers are called, and who takes the place of whom: no name is ever used twice. It launches nobody."""

from __future__ import annotations

from cerebro_spark.backend.hand import Hand
from cerebro_spark.errors import BackendError
from cerebro_spark.types import WorkerId

_MOST_USELESS = 3


class Succession:
    """Of one run. Whoever calls it holds the backend's lock.

    >>> names = Succession(max_restarts=9)
    >>> names.newcomer(), names.newcomer()
    ('w0', 'w1')
    >>> names.heir(Hand("w1")), names.heir(Hand("w1.1"))
    ('w1.1', 'w1.2')
    """

    def __init__(self, max_restarts: int) -> None:
        self._restarts_left = max_restarts
        self._named = 0
        self._useless: dict[str, int] = {}

    def newcomer(self) -> WorkerId:
        """A name for somebody in a place of his own."""
        self._named += 1
        return f"w{self._named - 1}"

    def heir(self, hand: Hand) -> WorkerId:
        """The name of who takes this one's place.

        Raises BackendError if nobody shall: too many were replaced, or several in this place did nothing but die. Who
        died of a trial that it tried is the trial's doing, not the place's.
        """
        place = hand.name.partition(".")[0]
        self._useless[place] = 0 if hand.useful or hand.tried else self._useless.get(place, 0) + 1
        if self._restarts_left == 0 or self._useless[place] >= _MOST_USELESS:
            why = "no restart is left" if self._restarts_left == 0 else "so did those before it, having done nothing"
            words = "\n".join(hand.words)
            raise BackendError(f"worker {hand.name} died, and {why}; its last words:\n{words}")
        return self._next(hand)

    def returning(self, hand: Hand) -> WorkerId | None:
        """The name of who tries again, after a while, where this one had to leave; None if no restart is left.

        The run can do without him, so that nothing he may do there can end it.
        """
        return self._next(hand) if self._restarts_left else None

    def _next(self, hand: Hand) -> WorkerId:
        place, _, life = hand.name.partition(".")
        self._restarts_left -= 1
        return f"{place}.{int(life or 0) + 1}"
