"""How many bytes a run has moved, of checkpoints and between the members of groups, from its turns alone. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cerebro_spark.events import Event, UnitFinished, WorkAdded
from cerebro_spark.turns import TrialState
from cerebro_spark.types import Checkpoint, TrialId, WorkerId


@dataclass(slots=True)
class Traffic:
    """Bytes that were moved for the units that count: of checkpoints, before a store makes copies of what is written,
    and between the members of groups.

    With k epochs of S trials on p partitions and checkpoints of m bytes, `written` is kmSp and `trained_from` is
    kmSp - mS: a trial's first unit builds its model. A worker that still has in memory what it starts from reads
    nothing of it, so what `hopped` is what cannot be spared. Groups of g workers write a g-th of that; each member
    starts from the checkpoint, so all members together are given as much as before, but for what they build: mSg.

    In each step the members of a group of g add up their gradients, which takes 2(g-1)m bytes around a ring, m being
    the bytes of what is added up. So a unit of D rows exchanges 2(g-1)m ceil(D/B) in its steps, with B rows in a batch
    of all members together, and k epochs of S trials by groups of all p workers 2kmS(p-1) ceil(D/B), with D rows in
    all; a last batch that is too small by itself is no step of its own. PyTorch adds up the gradients of trained
    parameters, in float32 at least, and a number for each parameter that counts who has one. Keras on TensorFlow has no
    such counts, and gathers the rows of embeddings. Models in parts (strategy "shard") gather their parameters too. At
    the end of a unit each member tells what it measured and learned: 2(g-1)g(8 + n) bytes, n being those of the longest
    of these notes. All of that counts, but not how members find each other.

    Attributes:
        written: What training units left.
        trained_from: What training units started from, once for each worker of a group.
        evaluated_from: What evaluations started from.
        hopped: What one worker wrote and another trained from, or evaluated.
        hops: How often that was so.
        exchanged: What the members of groups sent each other while they trained, in all that they did together.

    >>> from cerebro_spark.types import Unit
    >>> traffic = Traffic()
    >>> for number, worker in enumerate(("w0", "w1"), 1):
    ...     left = Checkpoint("t0", epoch=1, step=number, attempt=number, bytes=10)
    ...     traffic.add(UnitFinished(1.0, worker, Unit("t0", 1, f"p{number}"), number, 1.0, left))
    >>> traffic.written, traffic.trained_from, traffic.hopped
    (20, 10, 10)
    """

    written: int = 0
    trained_from: int = 0
    evaluated_from: int = 0
    hopped: int = 0
    hops: int = 0
    exchanged: int = 0
    _last: dict[TrialId, Checkpoint] = field(default_factory=dict)
    """What the next training unit of a trial starts from."""
    _ends: dict[tuple[TrialId, int], Checkpoint] = field(default_factory=dict)
    """What the evaluations of an epoch start from."""
    _writers: dict[int, WorkerId] = field(default_factory=dict)
    """Who wrote a checkpoint, by its attempt."""
    _sources: dict[TrialId, list[Checkpoint | None]] = field(default_factory=dict)
    """What each Work of a trial warm-starts from."""
    _works: dict[TrialId, int] = field(default_factory=dict)
    """How many Works of a trial have taken effect."""

    def add(self, event: Event) -> None:
        """Take in one event that counted."""
        if isinstance(event, WorkAdded):
            self._sources.setdefault(event.work.trial, []).append(event.work.warm_start)
        elif isinstance(event, UnitFinished):
            self._take_unit(event)

    def note_trials(self, states: Sequence[TrialState]) -> None:
        """Take notice of how trials stand now: a Work that takes effect may start them from another checkpoint."""
        for state in states:
            done = self._works.get(state.trial, 0)
            for source in self._sources.get(state.trial, [])[done : state.works]:
                if source is not None:
                    self._last[state.trial] = source
            self._works[state.trial] = max(done, state.works)

    def _take_unit(self, event: UnitFinished) -> None:
        trial, epoch = event.unit.trial, event.unit.epoch
        if event.unit.kind == "eval":
            self.evaluated_from += self._read(self._ends.get((trial, epoch)), event.workers)
            return
        self.exchanged += event.exchanged
        self.trained_from += self._read(self._last.get(trial), event.workers)
        if event.checkpoint is not None:
            self.written += event.checkpoint.bytes
            self._last[trial] = self._ends[trial, epoch] = event.checkpoint
            self._writers[event.checkpoint.attempt] = event.worker

    def _read(self, checkpoint: Checkpoint | None, workers: Sequence[WorkerId]) -> int:
        """Return how many bytes these workers start from, all together."""
        if checkpoint is None:
            return 0
        hops = sum(worker != self._writers.get(checkpoint.attempt) for worker in workers)
        self.hops += hops
        self.hopped += hops * checkpoint.bytes
        return checkpoint.bytes * len(workers)
