"""Says when tracing a step is worth its cost, and whether traced steps gain enough. It takes no step.

Tracing a step takes as long as 150 to 300 such steps of a small model, and fewer of a large one. Only what has trained
for much longer is traced, so that short runs never pay, and a run that ends just then loses a few per cent at most.
"""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE = 5000
"""Eager steps of a structure in a process before it is traced."""
# As many steps are timed in turn, so often.
_IN_A_ROW, _ROUNDS = 4, 4
# Traced steps must take at most this share of the time of eager ones: times of single steps vary.
_MOST = 0.9


@dataclass(slots=True)
class Pace:
    """What was counted and timed of the steps of one structure, in seconds.

    Attributes:
        waited: The eager steps before the structure was traced.
        eager: The fastest eager step of those that were timed in turn.
        traced: The fastest traced step of those.
        switching: The shortest time to fill the buffers and to leave them.
        turns: How many steps were timed in turn.

    >>> pace = Pace(waited=PATIENCE)
    >>> pace.is_due, pace.is_timed, pace.traces_next
    (True, False, False)
    """

    waited: int = 0
    eager: float = float("inf")
    traced: float = float("inf")
    switching: float = float("inf")
    turns: int = 0

    @property
    def is_due(self) -> bool:
        """Whether tracing is worth a try by now."""
        return self.waited >= PATIENCE

    @property
    def traces_next(self) -> bool:
        """Whether the next step that is timed is a traced one."""
        return self.turns // _IN_A_ROW % 2 == 1

    @property
    def is_timed(self) -> bool:
        """Whether enough steps were timed."""
        return self.turns >= 2 * _IN_A_ROW * _ROUNDS

    def note_turn(self, seconds: float) -> None:
        """Note the time of the step that was next."""
        if self.traces_next:
            self.traced = min(self.traced, seconds)
        else:
            self.eager = min(self.eager, seconds)
        self.turns += 1

    def traced_share(self, steps: int) -> float:
        """Return the time of a traced step as a share of that of an eager one, in units of so many steps.

        >>> Pace(eager=4.0, traced=2.0, switching=10.0).traced_share(steps=10)
        0.75
        """
        return (self.traced + self.switching / steps) / self.eager

    def gains(self, steps: int) -> bool:
        """Whether units of so many steps are clearly faster with traced ones."""
        return self.traced_share(steps) <= _MOST
