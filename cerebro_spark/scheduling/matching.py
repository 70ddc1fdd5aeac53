"""Which workers can train on which partitions at the same time, each on one of its own. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Matching:
    """Workers and columns, each at most once: a worker that is added may move others to another of their columns.

    Args:
        columns: By worker, the columns that it could have, the best first.

    >>> matching = Matching({0: [0, 1], 1: [0], 2: [1]})
    >>> matching.add(0), matching.add(1), matching.pairs(), matching.add(2)
    (True, True, [(0, 1), (1, 0)], False)
    """

    def __init__(self, columns: Mapping[int, Sequence[int]]) -> None:
        self._columns = columns
        self._holder: dict[int, int] = {}
        self._workers: list[int] = []

    def add(self, worker: int) -> bool:
        """Find a column for a worker; return whether there is one."""
        found = self._seat(worker, set())
        if found:
            self._workers.append(worker)
        return found

    def pairs(self) -> list[tuple[int, int]]:
        """Return the workers, in the order in which they came, with their columns."""
        columns = {worker: column for column, worker in self._holder.items()}
        return [(worker, columns[worker]) for worker in self._workers]

    def _seat(self, worker: int, tried: set[int]) -> bool:
        for column in self._columns[worker]:
            if column not in tried:
                tried.add(column)
                if column not in self._holder or self._seat(self._holder[column], tried):
                    self._holder[column] = worker
                    return True
        return False
