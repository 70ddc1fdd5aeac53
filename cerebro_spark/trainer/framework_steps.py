"""The steps of a trial that differ between frameworks, each of which defines them. It knows no framework."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Protocol

from cerebro_spark.trainer.base import Params, Trainer
from cerebro_spark.trainer.checkpoints.arrays import StateArray
from cerebro_spark.trainer.checkpoints.tree import Tree
from cerebro_spark.trainer.feed import Array, Batch, Feed
from cerebro_spark.trainer.label_rules import LabelRule
from cerebro_spark.trainer.sharing.built_model import M
from cerebro_spark.trainer.sharing.inspection import Inspector
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot
from cerebro_spark.types import Metrics


class StateBefore(Protocol):
    """A copy of the state of a built model."""

    def is_current(self) -> bool:
        """Whether the model still has this state, bit by bit."""


class FrameworkSteps(Trainer, Generic[M]):
    """What the trainer of a framework defines, for `FrameworkTrainer` to call."""

    _remedy: str
    """What a user can do about an unsaved change. It completes "... changed while training and ..."."""

    @abstractmethod
    def _claim_resources(self) -> None:
        """Set threads and device, once a process."""

    def _libraries(self) -> Mapping[str, Any]:
        """Return the modules and classes of libraries that all trials share, by name."""
        return {}

    @abstractmethod
    def _build(self, params: Params, seed: int) -> M:
        """Seed the generators, call `model_fn` and return the built model. The caller puts the generators back."""

    def _prepare(self, model: M, params: Params) -> None:
        """Prepare a built model that is going to be kept."""

    @abstractmethod
    def _sign(self, model: M) -> str:
        """Return the signature of a built model: equal for models that differ only in what `restore` replaces."""

    @abstractmethod
    def _take_snapshot(self, model: M) -> ObjectSnapshot:
        """Return a snapshot of all that can be reached from the model and that its state does not have."""

    @abstractmethod
    def _make_inspector(self) -> Inspector:
        """Return an inspector for the framework's objects that a user's function refers to."""

    def _copy_state(self, model: M) -> StateBefore | None:
        """Return a copy of the state of a model; None where it is as well compared by its digest."""
        return None

    def _label_rules(self, model: M) -> Mapping[str, LabelRule]:
        """Return which labels the losses of a model are made for, by the names of the labels."""
        return {}

    def _begin_unit(self, model: M, training: bool) -> None:
        """Set the mode of the unit, whatever the last unit left."""

    def _watch_function(self, model: M, function: Callable[..., Any]) -> AbstractContextManager[None]:
        """Watch a unit that a function of the user's runs inside the block."""
        return nullcontext()

    @abstractmethod
    def _train(self, model: M, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics:
        """Train on the batches of the feed."""

    @abstractmethod
    def _evaluate(self, model: M, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics:
        """Measure the batches of the feed."""

    @abstractmethod
    def _predict(self, model: M, batches: Iterable[Batch]) -> Iterator[dict[str, Array]]:
        """Yield the outputs of each batch, by name."""

    @abstractmethod
    def _finish(self, model: M, metrics: Metrics) -> dict[str, float]:
        """Return the values of those metrics that have a state."""

    def _end_epochs(self, model: M, count: int) -> None:
        """Step what goes by epochs. Called before the first unit of a later epoch."""

    @abstractmethod
    def _wrap_array(self, name: str, leaf: Any) -> StateArray | None:
        """Return the framework's array as an array of the state; None for anything else."""

    @abstractmethod
    def _capture_generators(self) -> Tree:
        """Return the states of the generators of the process."""

    @abstractmethod
    def _restore_generators(self, tree: Tree) -> None:
        """Put the generators of the process into these states."""

    @abstractmethod
    def _versions(self) -> dict[str, str]:
        """Return the versions and the thread count that the bits of training depend on."""
