"""The contract of a trainer: it runs units of many trials, one by one. It knows no store, scheduler or data format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from cerebro_spark.errors import CerebroError
from cerebro_spark.trainer.batch_keys import complete
from cerebro_spark.trainer.blame import building, fitting, left_behind, running
from cerebro_spark.trainer.checkpoints.file import Entry, MemorySource, digest_of, open_checkpoint, write_checkpoint
from cerebro_spark.trainer.checkpoints.randomness import Tree, derive_seed
from cerebro_spark.trainer.checkpoints.state import flatten, numpy_array, unflatten
from cerebro_spark.trainer.feed import Array, Batch, Columns, Feed
from cerebro_spark.trainer.outcomes import check_loss, user_metrics
from cerebro_spark.trainer.resources import Resources as Resources
from cerebro_spark.trainer.sharing.footprint import Change, Footprint, Look
from cerebro_spark.trainer.sharing.hooks import Hooks as Hooks
from cerebro_spark.trainer.sharing.hooks import Params as Params
from cerebro_spark.trainer.sharing.hooks import WatchedHooks
from cerebro_spark.trainer.sharing.resident import Resident, Residents
from cerebro_spark.trainer.sharing.structure import signature
from cerebro_spark.types import Metrics, TrialId, Unit


class Saved(NamedTuple):
    """The size of a checkpoint that was written, and the digest of the training state in it.

    Weights, optimizer state, learning rates, schedule and counters count; the generators and the trial's name do not.
    """

    bytes: int
    digest: str


@dataclass(slots=True)
class Live:
    """The trial whose state a trainer holds right now.

    `digest` is that of a checkpoint with this state, as far as one is known. Once something was `measured` with it, it
    is only what it was before.
    """

    trial: TrialId
    params: Params
    resident: Resident
    random: Tree
    epoch: int = 0
    units: int = 0
    digest: str = field(default="")
    measured: bool = False


class Trainer(ABC):
    """Trains and evaluates trials of one search on one worker, keeping the models it has built.

    Who calls it: the worker, from one thread. One trial at a time is current: `build` or `load` make it so, the other
    methods work on it. `train` and `evaluate` draw randomness only from generators that the checkpoint carries, and
    leave the process's own as they were.

    The law: train(A), save, load in another process, train(B) leaves the same bits as train(A), train(B), on CPUs of
    one type with the same versions and thread count; whatever other trials did here in between, and whatever was
    evaluated. What a unit changes either hops with the checkpoint, or the unit fails and says what it was; the built
    model is then let go, before another trial can take it on.

    Raises: TrialFailed for what only this trial can be blamed for (its functions raise, its loss is not finite);
    ConfigurationError for a `model_fn` that returns something else than it must; CheckpointError for a file that does
    not fit. After any of them no trial is current and others are unharmed.
    """

    framework: str
    returns: str

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        self._watched_hooks = WatchedHooks(hooks, self._look)
        self.columns = columns
        self.seed = seed
        self.resources = resources or Resources()
        self.residents = Residents(self.resources.model_memory)
        self.builds = 0
        self.traces = 0
        self._seen: dict[str, tuple[str, Any]] = {}
        self._live: Live | None = None
        self._claim_resources()

    def warm_up(self) -> None:  # noqa: B027 (not every framework puts things off)
        """Have the framework load what it puts off until it is first used; called while nobody waits yet."""

    # The trial's life

    def build(self, trial: TrialId, params: Params) -> None:
        """Make `trial` current with its initial state: the same on every worker for one (seed, trial, params)."""
        self._live = None
        made, random = self._make(trial, params)
        shared = self._register(params, made)
        if shared is not made:
            json, entries = flatten({"model": made.state()}, self._entry)
            shared.restore(MemorySource(entries, json))
            made.close()
        self._live = Live(trial, params, shared, random)

    def load(
        self,
        trial: TrialId,
        params: Params,
        source: Path | BinaryIO | bytes,
        *,
        digest: str = "",
        warm_start: bool = False,
    ) -> None:
        """Make `trial` current with the state in a checkpoint; a `digest` is checked.

        With `warm_start` the file may be another trial's: weights, optimizer state, counters and generators come from
        it, learning rates and other numbers from `params`.
        """
        if not warm_start and self.holds(trial, digest) and signature(params) == signature(self._current().params):
            return
        self._live = None
        resident, numbers = self._resident(trial, params)
        with open_checkpoint(source, digest=digest) as reader, fitting(reader, self.framework):
            resident.restore(reader, numbers if warm_start else None)
            random = unflatten(reader.meta["rng"], lambda name: numpy_array(reader, name))
            counters = reader.meta["counters"]
        self._live = Live(
            trial, params, resident, random, counters["epoch"], counters["units"], "" if warm_start else digest
        )

    def save(self, target: Path | BinaryIO) -> Saved:
        """Write the current trial's whole training state."""
        live = self._unchanged()
        written = write_checkpoint(target, *self._contents(live))
        live.digest = written.digest
        return Saved(*written)

    def holds(self, trial: TrialId, digest: str) -> bool:
        """Whether the current state is just that checkpoint of that trial, so that loading it would change nothing."""
        live = self._live
        claimed = live is not None and bool(digest) and (live.trial, live.digest) == (trial, digest)
        return claimed and not self._moved(self._current())

    def train(self, unit: Unit, feed: Feed | Iterable[Batch], carried: Metrics | None = None) -> Metrics:
        """Train the current trial on one partition; the metrics are those of this partition alone.

        `carried` is what the trial's unit before this one of the same epoch returned: only metrics that cannot be
        merged look at it.
        """
        live = self._unchanged()
        self._live = None
        live.digest = ""
        with self._watched(live, unit), running(unit, live.params, self.columns), self._randomness(live):
            if live.epoch and unit.epoch > live.epoch:
                self._epochs_passed(live.resident, unit.epoch - live.epoch)
            self._begin(live.resident, training=True)
            if self.hooks.train_fn is not None:
                batches = self._batches(feed, live.params)
                metrics = user_metrics(self.hooks.train_fn(self._users(live.resident), batches, live.params))
            else:
                metrics = self._train(live.resident, self._input(feed, live.params), carried)
            check_loss(metrics, unit, live.params)
        live.epoch, live.units = unit.epoch, live.units + 1
        self._live = live
        return metrics

    def evaluate(self, unit: Unit, feed: Feed | Iterable[Batch], carried: Metrics | None = None) -> Metrics:
        """Measure the current trial on one partition; its state stays as it is.

        Statistics and generators are put back. Should a user's function have changed anything else of the state, the
        trainer does not hold that checkpoint any more, and will not train on from here: load it again.
        """
        live = self._current()
        self._live = None
        with (
            self._watched(live, unit),
            running(unit, live.params, self.columns),
            self._randomness(live, keep=False),
            self._measuring(live),
        ):
            self._begin(live.resident, training=False)
            if self.hooks.eval_fn is not None:
                batches = self._batches(feed, live.params)
                metrics = user_metrics(self.hooks.eval_fn(self._users(live.resident), batches, live.params))
            else:
                metrics = self._evaluate(live.resident, self._input(feed, live.params), carried)
        self._live = live
        return metrics

    def predict(self, feed: Feed | Iterable[Batch]) -> dict[str, Array]:
        """The current trial's outputs for every row, in the order of the feed, by output name ("prediction" if one)."""
        live = self._current()
        with self._randomness(live, keep=False), self._measuring(live):
            batches = complete(self._batches(feed, live.params), self.columns.inputs)
            parts = list(self._predict(live.resident, batches))
        return {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}

    def finish(self, metrics: Metrics) -> dict[str, float]:
        """The values of merged metrics; states become numbers through the current trial's metric objects."""
        return {**metrics.values(), **self._finish(self._current().resident, metrics)}

    def forget(self, key: str) -> None:  # noqa: B027 (not every framework keeps arrays)
        """Let go of a partition's arrays, if they are kept on a device; `key` is that of its feeds."""

    def model(self) -> Any:
        """The current trial's live model: a compiled Keras model, or the TorchModel."""
        return self._users(self._current().resident)

    # What a framework does

    @abstractmethod
    def _claim_resources(self) -> None:
        """Set threads and device, once a process."""

    @abstractmethod
    def _build(self, params: Params, seed: int) -> tuple[Resident, Tree]:
        """Call `model_fn` under that seed: the built model and its generators' states. The process's stay."""

    @abstractmethod
    def _signature(self, resident: Resident) -> str:
        """Equal for built models that only differ in what `restore` replaces."""

    @abstractmethod
    def _footprint(self, resident: Resident) -> Footprint:
        """Everything that can be reached from the model and that its state does not have, as it is now."""

    @abstractmethod
    def _look(self) -> Look:
        """The framework's way to see its things where a user's function holds on to them."""

    @property
    @abstractmethod
    def _remedy(self) -> str:
        """How a user makes something hop in this framework; finishes "it changed while training and ..."."""

    @abstractmethod
    def _users(self, resident: Resident) -> Any: ...

    def _begin(self, resident: Resident, training: bool) -> None:  # noqa: B027 (not every framework has such modes)
        """Put the model into the mode of a unit, whatever the one before it left."""

    @abstractmethod
    def _train(self, resident: Resident, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics: ...

    @abstractmethod
    def _evaluate(self, resident: Resident, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics: ...

    @abstractmethod
    def _predict(self, resident: Resident, batches: Iterable[Batch]) -> Iterator[dict[str, Array]]: ...

    @abstractmethod
    def _finish(self, resident: Resident, metrics: Metrics) -> dict[str, float]: ...

    @abstractmethod
    def _entry(self, name: str, leaf: Any) -> Entry | None: ...

    @abstractmethod
    def _capture(self) -> Tree: ...

    @abstractmethod
    def _restore(self, tree: Tree) -> None: ...

    @abstractmethod
    def _versions(self) -> dict[str, str]: ...

    def _epochs_passed(self, resident: Resident, count: int) -> None:  # noqa: B027 (Keras has nothing to do)
        """Called before the first unit of a later epoch, for what goes by epochs."""

    # The steps in between

    def _current(self) -> Live:
        if self._live is None:
            raise CerebroError("no trial is current in this trainer: call build or load first")
        return self._live

    def _make(self, trial: TrialId, params: Params) -> tuple[Resident, Tree]:
        self.builds += 1
        with building(trial, params, self.columns):
            return self._build(params, derive_seed(self.seed, trial))

    def _register(self, params: Params, made: Resident) -> Resident:
        """Remember what `params` build; the resident to use, which is another one when an equal one is kept."""
        key = self._signature(made)
        self._seen[signature(params)] = (key, made.numbers())
        kept = self.residents.get(key)
        if kept is not None:
            return kept
        made.footprint = self._footprint(made)
        self.residents.put(key, made)
        return made

    def _resident(self, trial: TrialId, params: Params) -> tuple[Resident, Any]:
        key, numbers = self._seen.get(signature(params), ("", None))
        kept = self.residents.get(key)
        if kept is None:
            made, _ = self._make(trial, params)
            kept = self._register(params, made)
            if kept is not made:
                made.close()
            _, numbers = self._seen[signature(params)]
        return kept, numbers

    @property
    def hooks(self) -> Hooks:
        return self._watched_hooks.hooks

    def _contents(self, live: Live) -> tuple[list[Entry], Any]:
        """The whole training state, as a checkpoint's arrays and JSON."""
        json, entries = flatten({"model": live.resident.state(), "rng": live.random}, self._entry)
        meta = {
            **json,
            "framework": self.framework,
            "versions": self._versions(),
            "trial": live.trial,
            "counters": {"epoch": live.epoch, "units": live.units},
        }
        return entries, meta

    def _moved(self, live: Live) -> bool:
        """Whether measuring has changed the state. It is looked at only once somebody wants to go on from there."""
        if live.measured and digest_of(*self._contents(live)) != live.digest:
            return True
        live.measured = False
        return False

    def _unchanged(self) -> Live:
        """The current trial, to be trained on or saved."""
        live = self._current()
        if self._moved(live):
            self._live = None
            raise CerebroError(
                f"evaluating or predicting has changed the state of trial {live.trial}: load its checkpoint again"
            )
        return live

    @contextmanager
    def _measuring(self, live: Live) -> Iterator[None]:
        live.digest = live.digest or digest_of(*self._contents(live))
        live.measured = True
        kept = live.resident.volatile()
        try:
            yield
        finally:
            live.resident.settle(kept)
            if live.resident.footprint is not None:
                live.resident.footprint.tidy()

    @contextmanager
    def _watched(self, live: Live, unit: Unit) -> Iterator[None]:
        """Fail the unit if it left a change that hops with no checkpoint, and see to it that nobody else gets that."""
        finished = False
        try:
            yield
            finished = True
        finally:
            change = self._forsake(live.resident)
            if change is not None and finished:
                raise left_behind(change, unit, live.params, self._remedy)

    def _forsake(self, resident: Resident) -> Change | None:
        """What a unit has left that it must not; the model, or the functions, that have it are not used again."""
        change = resident.footprint.change() if resident.footprint is not None else None
        if change is not None and resident.footprint is not None:
            resident.footprint.put_back()
            self.residents.drop(resident)
        beside = self._watched_hooks.change()
        if beside is not None:
            self._watched_hooks.renew()
            self.residents.clear()
            self._seen.clear()
        return change or beside

    def _input(self, feed: Feed | Iterable[Batch], params: Params) -> Feed | Iterable[Batch]:
        return feed if self.hooks.input_fn is None else complete(self._batches(feed, params), self.columns.names)

    def _batches(self, feed: Feed | Iterable[Batch], params: Params) -> Iterator[Batch]:
        for batch in feed:
            yield batch if self.hooks.input_fn is None else self.hooks.input_fn(batch, params)

    def _sample(self, params: Params) -> Batch:
        """Two rows that look like what a step gets, to build with."""
        batch = self.columns.zeros(2)
        if self.hooks.input_fn is None:
            return batch
        return next(complete([self.hooks.input_fn(batch, params)], self.columns.names))

    @contextmanager
    def _randomness(self, live: Live, *, keep: bool = True) -> Iterator[None]:
        outer = self._capture()
        self._restore(live.random)
        try:
            yield
            if keep:
                live.random = self._capture()
        finally:
            self._restore(outer)
