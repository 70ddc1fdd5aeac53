"""What it takes workers to begin with a structure, and with each of its trials, beyond the units themselves. PURE.

With PyTorch a worker builds the model of a structure once, for all trials; with Keras something of it is done again
for every trial that comes to a worker. Either is part of the seconds of a first unit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from cerebro_spark.types import TrialId, UnitKind, WorkerId

Key = tuple[UnitKind, str]
"""A kind of unit, and a structure."""


class Excess(NamedTuple):
    """By how many seconds the first unit of a trial on a worker was longer than others; and whose it was.

    `is_first` says whether the worker had never met the structure.
    """

    key: Key
    is_first: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Builds:
    """The seconds that first units take longer.

    Args:
        structure: By kind of unit and structure, when a worker meets the structure.
        trial: The same when it meets another trial of a structure that it knows.
    """

    structure: Mapping[Key, float]
    trial: Mapping[Key, float]

    @property
    def once(self) -> float:
        """The seconds that a worker needs for all structures, besides what each trial needs."""
        return sum(max(0.0, seconds - self.trial.get(key, 0.0)) for key, seconds in self.structure.items())

    def each_trial(self) -> Builds:
        """Return what is left where workers know all structures."""
        return Builds(self.trial, self.trial)

    def of(self, key: Key, is_first: bool) -> float:
        """Return the seconds of a meeting; of structures that were not measured those of most others."""
        found = self.structure if is_first else self.trial
        if key in found:
            return found[key]
        return median([seconds for (kind, _), seconds in found.items() if kind == key[0]] or [0.0])


def builds_of(excesses: Iterable[Excess]) -> Builds:
    """Return what first units took longer.

    Args:
        excesses: What was measured of first units.

    >>> cheap, dear = ("train", "cheap"), ("train", "dear")
    >>> builds_of([Excess(cheap, True, 0.4), Excess(cheap, False, 0.1), Excess(dear, True, 2.0)]).trial
    {('train', 'cheap'): 0.1, ('train', 'dear'): 0.5}
    """
    found: dict[bool, dict[Key, list[float]]] = {True: defaultdict(list), False: defaultdict(list)}
    for excess in excesses:
        found[excess.is_first][excess.key].append(excess.seconds)
    structure = {key: max(0.0, median(seconds)) for key, seconds in found[True].items()}
    trial = {key: max(0.0, median(seconds)) for key, seconds in found[False].items()}
    shares = [trial[key] / structure[key] for key in trial if structure.get(key)]
    # Where no second trial was measured, as much of it is done again as of others.
    usual = min(1.0, median(shares)) if shares else 0.0
    return Builds(structure, {key: trial.get(key, usual * seconds) for key, seconds in structure.items()})


class Meetings:
    """Remembers what each worker has met.

    Args:
        builds: What a meeting takes.
    """

    def __init__(self, builds: Builds) -> None:
        self._builds = builds
        self._structures: set[tuple[WorkerId, Key]] = set()
        self._trials: set[tuple[WorkerId, UnitKind, TrialId]] = set()

    def begin(self, worker: WorkerId, kind: UnitKind, trial: TrialId, structure: str) -> float:
        """Return how many seconds longer a unit takes since its worker has not met its trial yet. From now on it has.

        >>> train = ("train", "s")
        >>> meetings = Meetings(Builds({train: 2.0}, {train: 0.5}))
        >>> [meetings.begin("w0", "train", trial, "s") for trial in ("t0", "t1", "t0")]
        [2.0, 0.5, 0.0]
        """
        key = (kind, structure)
        if (worker, kind, trial) in self._trials:
            return 0.0
        self._trials.add((worker, kind, trial))
        is_first = (worker, key) not in self._structures
        self._structures.add((worker, key))
        return self._builds.of(key, is_first)

    def forget(self, worker: WorkerId) -> None:
        """A worker that comes has met nothing."""
        self._structures = {known for known in self._structures if known[0] != worker}
        self._trials = {known for known in self._trials if known[0] != worker}
