"""The contract of a trainer: it runs units of many trials, one by one. It knows no store, scheduler or data format."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from cerebro_spark.errors import CerebroError, CheckpointError, ConfigurationError, TrialFailed
from cerebro_spark.trainer.batch_keys import complete, explained
from cerebro_spark.trainer.checkpoint import Entry, MemorySource, Reader, open_checkpoint, write_checkpoint
from cerebro_spark.trainer.feed import Array, Batch, Columns, Feed
from cerebro_spark.trainer.randomness import Tree, derive_seed
from cerebro_spark.trainer.resident import Resident, Residents
from cerebro_spark.trainer.resources import Resources as Resources
from cerebro_spark.trainer.state import flatten, numpy_array, unflatten
from cerebro_spark.trainer.structure import signature
from cerebro_spark.types import Metrics, TrialId, Unit

Params = Mapping[str, Any]

EXPLODED = 1e30


@dataclass(frozen=True, slots=True)
class Hooks:
    """The user's functions, as `api.md` names them. Only `model_fn` is needed."""

    model_fn: Callable[[Params], Any]
    input_fn: Callable[[Batch, Params], Batch] | None = None
    train_fn: Callable[[Any, Iterable[Batch], Params], Any] | None = None
    eval_fn: Callable[[Any, Iterable[Batch], Params], Any] | None = None


class Saved(NamedTuple):
    """The size of a checkpoint that was written, and the digest of the training state in it.

    Weights, optimizer state, learning rates, schedule and counters count; the generators and the trial's name do not.
    """

    bytes: int
    digest: str


@dataclass(slots=True)
class Live:
    """The trial whose state a trainer holds right now."""

    trial: TrialId
    params: Params
    resident: Resident
    random: Tree
    epoch: int = 0
    units: int = 0
    digest: str = field(default="")


class Trainer(ABC):
    """Trains and evaluates trials of one search on one worker, keeping the models it has built.

    Who calls it: the worker, from one thread. One trial at a time is current: `build` or `load` make it so, the other
    methods work on it. `train` and `evaluate` draw randomness only from generators that the checkpoint carries, and
    leave the process's own as they were.

    The law: train(A), save, load in another process, train(B) leaves the same bits as train(A), train(B), on CPUs of
    one type with the same versions and thread count.

    Raises: TrialFailed for what only this trial can be blamed for (its functions raise, its loss is not finite);
    ConfigurationError for a `model_fn` that returns something else than it must; CheckpointError for a file that does
    not fit. After any of them no trial is current and others are unharmed.
    """

    framework: str
    returns: str

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        self.hooks = hooks
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
        with open_checkpoint(source, digest=digest) as reader, self._fitting(reader):
            resident.restore(reader, numbers if warm_start else None)
            random = unflatten(reader.meta["rng"], lambda name: numpy_array(reader, name))
            counters = reader.meta["counters"]
        self._live = Live(
            trial, params, resident, random, counters["epoch"], counters["units"], "" if warm_start else digest
        )

    def save(self, target: Path | BinaryIO) -> Saved:
        """Write the current trial's whole training state."""
        live = self._current()
        tree = {"model": live.resident.state(), "rng": live.random}
        json, entries = flatten(tree, self._entry)
        meta = {
            **json,
            "framework": self.framework,
            "versions": self._versions(),
            "trial": live.trial,
            "counters": {"epoch": live.epoch, "units": live.units},
        }
        written = write_checkpoint(target, entries, meta)
        live.digest = written.digest
        return Saved(*written)

    def holds(self, trial: TrialId, digest: str) -> bool:
        """Whether the current state is just that checkpoint of that trial, so that loading it would change nothing."""
        live = self._live
        return live is not None and bool(digest) and (live.trial, live.digest) == (trial, digest)

    def train(self, unit: Unit, feed: Feed | Iterable[Batch], carried: Metrics | None = None) -> Metrics:
        """Train the current trial on one partition; the metrics are those of this partition alone.

        `carried` is what the trial's unit before this one of the same epoch returned: only metrics that cannot be
        merged look at it.
        """
        live = self._current()
        self._live = None
        live.digest = ""
        with self._blame(unit, live.params), self._randomness(live):
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
        """Measure the current trial on one partition; its state stays as it is."""
        live = self._current()
        self._live = None
        with self._blame(unit, live.params), self._randomness(live, keep=False):
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
        with self._randomness(live, keep=False):
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
        try:
            return self._build(params, derive_seed(self.seed, trial))
        except CerebroError:
            raise
        except Exception as error:
            raise TrialFailed(
                f"building trial {trial} with params {dict(params)!r} failed:\n{traceback.format_exc()}"
                + explained(error, self.columns, params)
            ) from error

    def _register(self, params: Params, made: Resident) -> Resident:
        """Remember what `params` build; the resident to use, which is another one when an equal one is kept."""
        key = self._signature(made)
        self._seen[signature(params)] = (key, made.numbers())
        kept = self.residents.get(key)
        if kept is not None:
            return kept
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

    @contextmanager
    def _fitting(self, reader: Reader) -> Iterator[None]:
        """Whatever goes wrong inside is the checkpoint's fault, which does not fit, and is named."""
        found = reader.meta.get("framework") if isinstance(reader.meta, dict) else None
        if found != self.framework:
            raise CheckpointError(
                f"{reader.label} was written by {found!r}, but this search trains with {self.framework!r}: a checkpoint"
                " is loaded by the framework that wrote it"
            )
        try:
            yield
        except (CerebroError, OSError):
            raise
        except Exception as error:
            raise CheckpointError(
                f"{reader.label} does not fit the model that params build ({type(error).__name__}: {error}): a"
                " checkpoint fits only the architecture that wrote it"
            ) from error

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

    @contextmanager
    def _blame(self, unit: Unit, params: Params) -> Iterator[None]:
        try:
            yield
        except CerebroError:
            raise
        except Exception as error:
            raise TrialFailed(
                f"trial {unit.trial} failed in epoch {unit.epoch} on partition {unit.partition} with params"
                f" {dict(params)!r}:\n{traceback.format_exc()}" + explained(error, self.columns, params)
            ) from error


def check_loss(metrics: Metrics, unit: Unit, params: Params) -> None:
    """Raise TrialFailed when a loss of the unit has exploded: NaN, infinite, or beyond 1e30 a row.

    Nothing learns from a loss of 1e30, float32 ends at 3e38, and the square of such a number is infinite already.
    """
    for name, total in metrics.sums.items():
        value = total / (metrics.weights.get(name) or 1.0)
        if (name == "loss" or name.endswith("_loss")) and not abs(value) <= EXPLODED:
            raise TrialFailed(
                f"trial {unit.trial} failed in epoch {unit.epoch} on partition {unit.partition}: its {name} is {value},"
                f" which is beyond {EXPLODED:g}; params {dict(params)!r}. Lower the learning rate, clip the gradients,"
                " or look for odd rows"
            )


def user_metrics(value: Any) -> Metrics:
    """What `train_fn` or `eval_fn` returned, as Metrics: sums with a row count, or Metrics itself.

    >>> user_metrics({"loss": 6.0, "rows": 3}).values()
    {'loss': 2.0}
    """
    if isinstance(value, Metrics):
        if value.sums.keys() != value.weights.keys():
            raise ConfigurationError(
                f"train_fn or eval_fn returned Metrics with sums of {sorted(value.sums)} but weights of"
                f" {sorted(value.weights)}: give each sum its weight, as in Metrics({{'loss': 12.5}}, {{'loss': 1000}})"
            )
        return value
    if not isinstance(value, Mapping) or "rows" not in value:
        raise ConfigurationError(
            f"train_fn or eval_fn returned {value!r}, but must return sums over the rows with their count, such as"
            " {'loss': 12.5, 'rows': 1000}, or cerebro_spark.types.Metrics"
        )
    rows = float(value["rows"])
    sums = {str(name): float(total) for name, total in value.items() if name != "rows"}
    return Metrics(sums, dict.fromkeys(sums, rows))
