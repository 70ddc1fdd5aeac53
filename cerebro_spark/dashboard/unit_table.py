"""The finished units of a run in columns: 160,000 of them take 15 MB, and a window of time is found at once. PURE."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cerebro_spark.events import UnitFinished

UNIT = np.dtype(
    [
        ("worker", "i4"),
        ("trial", "i4"),
        ("partition", "i4"),
        ("steps", "i4"),
        ("epoch", "i4"),
        ("width", "i4"),
        ("group", "i2"),
        ("rank", "i2"),
        ("train", "i1"),
        ("start", "f8"),
        ("end", "f8"),
        ("at", "f8"),
        ("seconds", "f8"),
        ("loss", "f8"),
        ("attempt", "i8"),
        ("version", "i8"),
    ]
)
Rows = NDArray[Any]
_FIRST_ROWS = 256


class Names:
    """Numbers for names, in the order in which they first came."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The number of a name."""
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = len(self.names)
            self.names.append(name)
        return found

    def find(self, name: str) -> int:
        """The number of a name, or -1 if it never came."""
        return self._numbers.get(name, -1)


class UnitTable:
    """Units in the order of their ends. Rows are only added; their number is their place.

    A unit that a group of workers trained has a row for each of them, with its rank and its partition.

    Units of one order that were not computed together may all be reported at its end: then those before the last one
    end where the next one begins.
    """

    def __init__(self) -> None:
        self.workers = Names()
        self.trials = Names()
        self.partitions = Names()
        self.steps = Names()
        self._rows: Rows = np.zeros(_FIRST_ROWS, UNIT)
        self._count = 0
        self._longest = self._now = 0.0
        self._of_trial: dict[int, list[int]] = {}
        self._orders: dict[int, tuple[int, list[int]]] = {}
        """By worker, its newest order of several units: its number, and the rows of it that have ended."""

    def __len__(self) -> int:
        return self._count

    @property
    def rows(self) -> Rows:
        """All rows."""
        return self._rows[: self._count]

    def add(self, event: UnitFinished, order: int | None, version: int) -> None:
        """Add a unit that counts.

        Args:
            event: Its end.
            order: The number of its order, where that has units of several trials; else None.
            version: The version of the run that has it.
        """
        self._now = max(self._now, event.at)  # the column must be sorted, whatever a log says
        for rank, (worker, partition) in enumerate(zip(event.workers, event.unit.partitions, strict=True)):
            self._add_row(event, rank, worker, partition, order, version)

    def _add_row(
        self, event: UnitFinished, rank: int, of_worker: str, partition: str, order: int | None, version: int
    ) -> None:
        """Add what one worker did of a unit."""
        if self._count == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros(self._count, UNIT)])
        unit, number = event.unit, self._count
        worker, trial = self.workers.number(of_worker), self.trials.number(unit.trial)
        start = event.at - event.seconds * event.width
        self._rows[number] = (
            *(worker, trial, self.partitions.number(partition), self.steps.number(event.steps)),
            *(unit.epoch, event.width, len(event.workers), rank, unit.kind == "train"),
            *(start, event.at, self._now, event.seconds, _loss(event), event.attempt, version),
        )
        self._count += 1
        self._of_trial.setdefault(trial, []).append(number)
        if order is not None:
            self._straighten(worker, order, number)
        self._longest = max(self._longest, self._now - start)

    def of_trial(self, trial: str) -> Rows:
        """The rows of one trial."""
        return self._rows[self._of_trial.get(self.trials.find(trial), [])]

    def between(self, start: float, end: float) -> NDArray[np.intp]:
        """The numbers of the units that run at some moment between two times."""
        ends = self.rows["at"]
        first = int(np.searchsorted(ends, start, "left"))
        last = int(np.searchsorted(ends, end + self._longest, "right"))
        part = self.rows[first:last]
        return first + np.flatnonzero((part["start"] < end) & (part["end"] > start))

    def since(self, version: int) -> int:
        """The number of the first unit that came after a version."""
        return int(np.searchsorted(self.rows["version"], version, "right"))

    def _straighten(self, worker: int, order: int, number: int) -> None:
        """Let the units of an order that ran one by one follow each other."""
        known, members = self._orders.get(worker, (-1, []))
        if known != order:
            known, members = order, []
        self._orders[worker] = (order, [*members, number])
        begins = self._rows[number]["start"]
        for earlier in reversed(members):
            row = self._rows[earlier]
            if row["width"] > 1 or row["end"] <= begins:
                return
            lasted = row["end"] - row["start"]
            self._rows["end"][earlier], self._rows["start"][earlier] = begins, begins - lasted
            self._longest = max(self._longest, float(row["at"] - begins + lasted))
            begins -= lasted


def _loss(event: UnitFinished) -> float:
    weight = event.metrics.weights.get("loss", 0.0)
    return event.metrics.sums["loss"] / weight if weight else float("nan")
