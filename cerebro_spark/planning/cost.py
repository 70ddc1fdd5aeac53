"""What units take, as a formula. A value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cost:
    """What units of one kind and structure take: so much each, and so much for each batch, in seconds.

    >>> Cost(unit=0.5, batch=0.01).of(batches=100)
    1.5
    """

    unit: float
    batch: float
    spread: float = 0.0

    def of(self, batches: int) -> float:
        return self.unit + self.batch * batches
