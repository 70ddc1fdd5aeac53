"""The strategy by which models of one structure and batch size train, and why it is that one. It tries nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cerebro_spark.types import Strategy


@dataclass(frozen=True, slots=True)
class FailedTry:
    """A try that came to nothing.

    Attributes:
        strategy: The strategy.
        reason: Why, in words.
        seconds: What it took, until all was as before.
        left: The bytes of the device that it has left behind.
    """

    strategy: Strategy
    reason: str
    seconds: float
    left: int


@dataclass(slots=True)
class Choice:
    """Where models of one structure and batch size are on the ladder.

    Attributes:
        name: What they are called in the log.
        rungs: The strategies that may still be tried; the first is the present one.
        eagerly: Whether "plain" records no graphs, which take memory of their own.
        made_room: Whether all has been given up that other models keep on the device.
        reasons: Why the others are not it.
        is_logged: Whether the log says what is chosen.
        has_trained: Whether a unit was trained by the present strategy.

    >>> choice = Choice("Net", ("plain", "recompute", "offload"))
    >>> choice.climb("out of memory", lambda strategy: "it has hooks" if strategy == "recompute" else "")
    >>> choice.strategy, choice.explain()
    ('offload', "'plain': out of memory; 'recompute': it has hooks")
    """

    name: str
    rungs: Sequence[Strategy]
    eagerly: bool = False
    made_room: bool = False
    reasons: list[str] = field(default_factory=list)
    is_logged: bool = False
    has_trained: bool = False

    @property
    def strategy(self) -> Strategy:
        """The present strategy; "" if none is left."""
        return self.rungs[0] if self.rungs else ""

    def climb(self, reason: str, find_obstacle: Callable[[Strategy], str]) -> None:
        """Go on to the next strategy for which there is no obstacle.

        Args:
            reason: Why the present one is given up.
            find_obstacle: Returns why one cannot be tried; "" if it can.
        """
        while reason:
            self.reasons.append(f"{self.strategy!r}: {reason}")
            self.rungs, self.has_trained, self.is_logged = self.rungs[1:], False, False
            reason = find_obstacle(self.strategy) if self.rungs else ""

    def explain(self) -> str:
        """Return why it is this strategy; "" if it is the first."""
        return "; ".join(self.reasons)
