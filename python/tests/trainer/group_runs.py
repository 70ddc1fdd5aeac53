"""Trains units in groups and by one process, on the same rows. Nothing here asserts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import accumulate
from typing import Any
from unittest import mock

import numpy as np
from trainer_data import arrays, columns

from cerebro_spark.trainer import Feed, Hooks, Resources
from cerebro_spark.trainer.group import GroupBroken, GroupRefused, Meeting, Seat
from cerebro_spark.trainer.group_notes import MemberNote
from cerebro_spark.trainer.shares import split_steps
from cerebro_spark.types import Metrics, Unit

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class GroupRun:
    """Some units of one trial.

    Attributes:
        model_fn: Makes the model.
        kind: The data; see `trainer_data`.
        rows: The rows of each member's partition.
        batch: The rows of a batch.
        epochs: How many units, one an epoch.
        params: The params of the trial.
        framework: "torch" or "keras".
        hooks: Other functions.
        source: The checkpoint to start from, with its digest.
        first: The first epoch.
        resources: What trainers compute with.
        change: Changes the arrays of a partition.
    """

    model_fn: Callable[[Any], Any]
    kind: str = "tabular"
    rows: Sequence[int] = (100, 93)
    batch: int = 16
    epochs: int = 1
    params: Any = None
    framework: str = "torch"
    hooks: Any = None
    source: tuple[bytes, str] | None = None
    first: int = 1
    resources: Any = None
    change: Callable[[Arrays], Arrays] | None = None

    def make_trainer(self) -> Any:
        """Return a new trainer."""
        hooks = Hooks(self.model_fn, **(self.hooks or {}))
        resources = Resources(**{"threads": 1, "device": "cpu", **(self.resources or {})})
        if self.framework == "torch":
            from cerebro_spark.trainer.torch.trainer import TorchTrainer

            return TorchTrainer(hooks, columns(self.kind), seed=7, resources=resources)
        from cerebro_spark.trainer.keras.trainer import KerasTrainer

        return KerasTrainer(hooks, columns(self.kind), seed=7, resources=resources)

    @property
    def given(self) -> dict[str, Any]:
        """The params of the trial."""
        return {"batch_size": self.batch, **(self.params or {})}

    def start(self, trainer: Any) -> None:
        """Make the trial current."""
        if self.source is None:
            trainer.build("t", self.given)
        else:
            trainer.load("t", self.given, self.source[0], digest=self.source[1])

    def unit(self, epoch: int) -> Unit:
        return Unit("t", epoch, "p0", beside=tuple(f"p{rank}" for rank in range(1, len(self.rows))))

    def partition(self, rank: int) -> Arrays:
        made = arrays(self.kind, rank, self.rows[rank])
        return made if self.change is None else self.change(made)

    def order(self, rank: int, epoch: int) -> np.ndarray[Any, Any]:
        return np.random.default_rng([rank, epoch, 99]).permutation(self.rows[rank])

    def feed(self, rank: int, epoch: int) -> Feed:
        """The rows of a member."""
        return Feed(self.partition(rank), self.order(rank, epoch), batch_size=self.batch, key=f"p{rank}", smallest=2)

    def whole(self, epoch: int) -> Feed:
        """The rows of all, in the batches in which the group trains on them."""
        parts = [self.partition(rank) for rank in range(len(self.rows))]
        starts = list(accumulate(self.rows, initial=0))
        orders = [starts[rank] + self.order(rank, epoch) for rank in range(len(self.rows))]
        steps = [split_steps(self.rows, self.batch, 2, rank) for rank in range(len(self.rows))]
        places, taken = [], [0] * len(self.rows)
        for number in range(len(steps[0])):
            for rank, own in enumerate(steps):
                places.append(orders[rank][taken[rank] : taken[rank] + own[number].rows])
                taken[rank] += own[number].rows
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return Feed(joined, np.concatenate(places), batch_size=self.batch, key="all", smallest=2)

    def after(self, outcome: Outcome, **changes: Any) -> GroupRun:
        """The same from a checkpoint."""
        return replace(self, source=(outcome.checkpoint, outcome.digest), **changes)


@dataclass(frozen=True)
class Outcome:
    """What one process has in the end.

    Of a member `exchanged` are the bytes that all members told each other in each unit, and `noted` those of what this
    one said at the end of it.
    """

    weights: np.ndarray[Any, Any]
    digest: str
    checkpoint: bytes
    metrics: Sequence[Metrics]
    drawn: str
    seconds: float = 0.0
    exchanged: Sequence[int] = ()
    noted: Sequence[int] = ()


def train_member(meeting: Meeting, run: GroupRun) -> Outcome | str:
    """Train the units of a run at one member; return what came of it, or why that was not done."""
    trainer = run.make_trainer()
    run.start(trainer)
    metrics, seconds = [], 0.0
    exchanged: list[int] = []
    noted: list[int] = []
    for number in range(run.epochs):
        with ExitStack() as links, _noting(noted):
            seat = Seat(Renamed(meeting, str(number)), tuple(run.rows), time.perf_counter(), links)
            epoch = run.first + number
            current = trainer._current
            try:
                done = trainer.train_in_group(run.unit(epoch), run.feed(meeting.rank, epoch), seat)
            except (GroupRefused, GroupBroken) as error:
                return f"{type(error).__name__}: {error}"
            metrics.append(done.metrics)
            seconds += done.seconds
            exchanged.append(done.exchanged)
            # A member other than rank 0 has the state, too, but does not say so.
            assert (trainer._current is not None) == (meeting.rank == 0)
            trainer._current = current
    return replace(describe(trainer, metrics, seconds), exchanged=exchanged, noted=noted)


@contextmanager
def _noting(sizes: list[int]) -> Iterator[None]:
    """Note the bytes of all that this member says at the end of a unit."""
    pack = MemberNote.pack

    def note(said: MemberNote) -> bytes:
        data = pack(said)
        sizes.append(len(data))
        return data

    with mock.patch.object(MemberNote, "pack", note):
        yield


def exchanged_by_formula(rows: Sequence[int], batch: int, summed: int, outcomes: Sequence[Outcome]) -> list[int]:
    """Return what members exchange in each unit, by the formulas of a ring.

    Args:
        rows: The rows of each member's partition.
        batch: The rows of a batch.
        summed: The bytes of what is added up in a step.
        outcomes: What came of all members, which say of different length at the end what they have learned.
    """
    size = len(rows)
    in_steps = 2 * (size - 1) * summed * -(-sum(rows) // batch)
    longest = [max(lengths) for lengths in zip(*(outcome.noted for outcome in outcomes), strict=True)]
    # The lengths of all, then what they say, each in as much room as the longest takes.
    return [in_steps + 2 * (size - 1) * (8 * size + size * length) for length in longest]


class Renamed(Meeting):
    """A meeting of the same members at another time."""

    def __init__(self, meeting: Meeting, name: str) -> None:
        self._meeting, self._name = meeting, name
        self.rank, self.size, self.address, self.left = meeting.rank, meeting.size, meeting.address, meeting.left

    def set(self, key: str, value: bytes) -> None:
        self._meeting.set(f"{self._name}/{key}", value)

    def get(self, key: str) -> bytes:
        return self._meeting.get(f"{self._name}/{key}")

    def add(self, key: str, amount: int) -> int:
        return self._meeting.add(f"{self._name}/{key}", amount)

    def has(self, keys: Sequence[str]) -> bool:
        return self._meeting.has([f"{self._name}/{key}" for key in keys])


def train_alone(run: GroupRun) -> Outcome:
    """Train the same global batches in one process."""
    trainer = run.make_trainer()
    run.start(trainer)
    metrics = []
    for number in range(run.epochs):
        epoch = run.first + number
        metrics.append(trainer.train(run.unit(epoch), run.whole(epoch)))
    return describe(trainer, metrics)


def describe(trainer: Any, metrics: Sequence[Metrics], seconds: float = 0.0) -> Outcome:
    from cerebro_spark.trainer.checkpoints.digest import compute_digest
    from cerebro_spark.trainer.checkpoints.tree import flatten

    buffer = BytesIO()
    saved = trainer.save(buffer)
    model = trainer.model()
    if trainer.framework == "torch":
        parts = [parameter.detach().float().cpu().numpy().reshape(-1) for parameter in model.module.parameters()]
    else:
        parts = [np.asarray(weight).reshape(-1) for weight in model.get_weights()]
    json, states = flatten({"drawn": trainer._current.generators}, trainer._wrap_array)
    return Outcome(
        np.concatenate(parts), saved.digest, buffer.getvalue(), metrics, compute_digest(states, json), seconds
    )
