"""The frozen values that every other module speaks in. It holds no behaviour beyond what a value knows of itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

TrialId = str
WorkerId = str
PartitionId = str

Split = Literal["train", "validation"]
UnitKind = Literal["train", "eval"]
Mode = Literal["min", "max"]
DigestName = Literal["sha256", "xxh3"]
Steps = Literal["", "eager", "graph", "traced", "stacked"]
"""How training steps are taken: kernel by kernel, as CUDA graphs, on a CPU as traced programs, or stacked with others.

It is "" where that is not known or no choice.
"""
Strategy = Literal["", "plain", "recompute", "offload", "offload+recompute", "shard"]
"""How a model that trains lies on its device: as it is, with parts computed again, with parts kept on the host, or in
parts at the members of a group.

It is "" where that is not known or no choice.
"""


@dataclass(frozen=True, slots=True)
class Partition:
    """A fixed, shuffled, equal share of the training or the validation rows.

    Args:
        id: The name of the partition, such as "train-00000".
        split: "train" or "validation". Defaults to "train".
        rows: The number of rows. Defaults to 0.
        bytes: The bytes of its arrays in memory. Defaults to 0.
        files: The names of its files in the store. Defaults to `()`.
        hosts: The hosts that hold its HDFS blocks, and so read it from their own disk. Defaults to `()`.

    Examples:
        >>> Partition("train-00000", rows=1000).split
        'train'
    """

    id: PartitionId
    split: Split = "train"
    rows: int = 0
    bytes: int = 0
    files: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


class Unit(NamedTuple):
    """One (trial, epoch, partition) of training or of evaluation; the smallest thing that runs. Never pre-empted.

    Epochs count from 1. A training unit of a group of workers covers several partitions at once, one a worker: those
    of the other workers are `beside`, in the order of their ranks.

    >>> str(Unit("t3", 1, "train-00000"))
    't3/1/train-00000'
    >>> str(Unit("t3", 1, "validation-00000", "eval"))
    't3/1/validation-00000 (eval)'
    >>> unit = Unit("t3", 1, "train-00000", beside=("train-00001",))
    >>> str(unit), unit.partitions
    ('t3/1/train-00000+train-00001', ('train-00000', 'train-00001'))
    """

    trial: TrialId
    epoch: int
    partition: PartitionId
    kind: UnitKind = "train"
    beside: tuple[PartitionId, ...] = ()

    @property
    def partitions(self) -> tuple[PartitionId, ...]:
        """All partitions that it covers, by rank."""
        return (self.partition, *self.beside)

    def __str__(self) -> str:
        suffix = "" if self.kind == "train" else f" ({self.kind})"
        return f"{self.trial}/{self.epoch}/{'+'.join(self.partitions)}{suffix}"


class Checkpoint(NamedTuple):
    """The name of a trial's whole training state after `step` training units of `epoch`.

    `attempt` is the number of the assignment that wrote it, unique in a run: a worker that was given up for dead and
    comes back writes under another name than the one that replaced it.

    >>> Checkpoint("t3", epoch=1, step=4, attempt=17).name
    't3/e0001-s00004-a17'
    """

    trial: TrialId
    epoch: int
    step: int
    attempt: int
    bytes: int = 0
    digest: str = ""

    @property
    def name(self) -> str:
        return f"{self.trial}/e{self.epoch:04d}-s{self.step:05d}-a{self.attempt}"


class CarriedFile(NamedTuple):
    """Where carried metric states lie that are too large for a log: a name in the store, "" where nobody needs them."""

    name: str
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of some rows as sums and weights, so that they add up exactly over partitions.

    A `train_fn` or an `eval_fn` may return it; it needs only `sums` and `weights`. A trainer turns the rest into values
    (`Trainer.finish`).

    Args:
        sums: By metric, the sum over the rows. Empty by default.
        weights: By metric, what the sum is divided by, mostly the number of rows. Empty by default.
        states: By metric that is no average (an AUC), a state of fixed size that adds up. Empty by default.
        carried: By metric that can only be updated row after row, its state as JSON values. It goes from partition to
            partition in series. Empty by default.
        stored: Where the carried states are, if they are too large for the log. Defaults to None.

    Examples:
        >>> a = Metrics({"loss": 6.0}, {"loss": 3.0})
        >>> b = Metrics({"loss": 2.0}, {"loss": 1.0})
        >>> Metrics.merge([a, b]).values()
        {'loss': 2.0}
    """

    sums: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    states: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    carried: Mapping[str, Any] = field(default_factory=dict)
    stored: CarriedFile | None = None

    @property
    def carries(self) -> bool:
        """Whether there is a state for the next partition, here or in the store."""
        return bool(self.carried) or self.stored is not None

    @staticmethod
    def merge(parts: Iterable[Metrics]) -> Metrics:
        """Add up the metrics of several partitions.

        Args:
            parts: The metrics of each, in the order in which they were measured.

        Returns:
            Sums, weights and states added by name, and the last carried state.
        """
        sums: dict[str, float] = {}
        weights: dict[str, float] = {}
        states: dict[str, tuple[float, ...]] = {}
        carried: dict[str, Any] = {}
        stored: CarriedFile | None = None
        for part in parts:
            for name, value in part.sums.items():
                sums[name] = sums.get(name, 0.0) + value
                weights[name] = weights.get(name, 0.0) + part.weights[name]
            for name, state in part.states.items():
                before = states.get(name, (0.0,) * len(state))
                states[name] = tuple(a + b for a, b in zip(before, state, strict=True))
            if part.carries:
                carried = {} if part.stored else {**carried, **part.carried}
                stored = part.stored
        return Metrics(sums, weights, states, carried, stored)

    def values(self, prefix: str = "") -> dict[str, float]:
        """Return the averages.

        Args:
            prefix: Put before each name. Defaults to "".

        Returns:
            The averages by name; NaN where the weight is 0.
        """
        return {
            prefix + name: total / self.weights[name] if self.weights[name] else float("nan")
            for name, total in self.sums.items()
        }


@dataclass(frozen=True, slots=True)
class Objective:
    """Which metric of an epoch matters, and whether more or less of it is better.

    >>> Objective("val_auc", "max").better(0.9, than=0.8)
    True
    """

    metric: str
    mode: Mode

    def better(self, value: float, than: float) -> bool:
        """Whether `value` beats `than`; what is not finite never does and is always beaten."""
        if not math.isfinite(value):
            return False
        if not math.isfinite(than):
            return True
        return value > than if self.mode == "max" else value < than


@dataclass(frozen=True, slots=True)
class Work:
    """What a search asks for: train `trial` up to and including `until_epoch`.

    A promotion is another Work for the same trial with a later `until_epoch`; a `warm_start` makes the trial go on from
    that checkpoint (of any trial) instead of its own, its epochs counting on.
    """

    trial: TrialId
    params: Mapping[str, Any]
    until_epoch: int
    warm_start: Checkpoint | None = None


ENDED_BY_A_PERSON = "ended by a person"
"""The error of a Report of a trial that did not fail."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a search is told: an epoch of a trial was trained and evaluated, or the trial will not go on.

    It failed, or a person ended it. To a search both are the same at first: nothing more of the trial will be reported,
    and none of its checkpoints can be started from. So a report that the trial `ended` is one that it `failed`, too.

    >>> Report("t3", 2, error=ENDED_BY_A_PERSON).ended, Report("t3", 2, error="out of memory").ended
    (True, False)
    """

    trial: TrialId
    epoch: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    at: float = 0.0
    checkpoint: Checkpoint | None = None
    error: str | None = None

    @property
    def failed(self) -> bool:
        """Whether the search hears nothing more of the trial."""
        return self.error is not None

    @property
    def ended(self) -> bool:
        """Whether that is so because a person ended it: what it reported before counts."""
        return self.error == ENDED_BY_A_PERSON
