"""Which checkpoints may be needed again. PURE: it counts references, and returns what has none left."""

from __future__ import annotations

from collections import Counter

from cerebro_spark.errors import SchedulingError
from cerebro_spark.types import Checkpoint


class Retention:
    """Counts references to checkpoints: a running unit, the next one, an evaluation, the last report, the best epoch.

    >>> keep = Retention()
    >>> one = Checkpoint("t0", 1, 1, 0)
    >>> keep.hold(one); keep.hold(one)
    >>> keep.release(one), keep.release(one)
    ([], [Checkpoint(trial='t0', epoch=1, step=1, attempt=0, bytes=0, digest='')])
    """

    def __init__(self) -> None:
        self._reasons: Counter[Checkpoint] = Counter()

    def __contains__(self, checkpoint: Checkpoint) -> bool:
        return checkpoint in self._reasons

    def hold(self, checkpoint: Checkpoint | None) -> None:
        """Add a reference."""
        if checkpoint is not None:
            self._reasons[checkpoint] += 1

    def release(self, checkpoint: Checkpoint | None) -> list[Checkpoint]:
        """Remove a reference; return the checkpoint if that was the last one."""
        if checkpoint is None:
            return []
        if checkpoint not in self._reasons:
            raise SchedulingError(f"checkpoint {checkpoint.name} was released more often than it was held")
        self._reasons[checkpoint] -= 1
        if self._reasons[checkpoint]:
            return []
        del self._reasons[checkpoint]
        return [checkpoint]

    def exchange(self, old: Checkpoint | None, new: Checkpoint | None) -> list[Checkpoint]:
        """Refer to the new checkpoint instead of the old one; return the old one if nothing else refers to it."""
        self.hold(new)
        return self.release(old)

    def kept(self) -> dict[Checkpoint, int]:
        """Return all checkpoints that are kept, with the number of references."""
        return dict(self._reasons)
