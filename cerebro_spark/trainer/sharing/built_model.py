"""Built models, and the cache in which a worker keeps them. It never trains one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from cerebro_spark.trainer.checkpoints.arrays import StateSource
from cerebro_spark.trainer.sharing.dependence import GrowthWatch
from cerebro_spark.trainer.sharing.signature import compute_signature
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot


class BuiltModel(ABC):
    """A built model that can take on the state of any trial of its architecture.

    `model` is what `model_fn` returned. `snapshot` is all of it that `restore` does not reset, as it was when built. A
    model that a unit left different must not be used for another trial. `growth` watches the tables that its methods
    fill; None watches none.
    """

    model: Any
    snapshot: ObjectSnapshot
    growth: GrowthWatch | None = None

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory that keeping it costs, in bytes, about."""

    @abstractmethod
    def state(self) -> Any:
        """Return the whole training state, a tree whose array leaves are the live arrays of the model, not copies."""

    @abstractmethod
    def restore(self, source: StateSource, hyperparameters: Any = None) -> None:
        """Take on the state in `source`; with `hyperparameters`, these replace those of the source.

        Raises CheckpointError, before anything is changed, for the state of another architecture.
        """

    @abstractmethod
    def hyperparameters(self) -> Any:
        """Return its numeric hyperparameters: learning rate, weight decay, ..."""

    @abstractmethod
    def copy_statistics(self) -> Any:
        """Return copies of what an evaluation may change by itself: statistics and generators."""

    @abstractmethod
    def restore_statistics(self, copies: Any) -> None:
        """Put back what `copy_statistics` returned, where it has changed."""

    def close(self) -> None:  # noqa: B027 (most have nothing to do)
        """Free its memory. It is not used afterwards."""


M = TypeVar("M", bound=BuiltModel)


class ModelCache(Generic[M]):
    """Built models by signature, within a memory budget; the least recently used go first.

    It also knows which params have built which model, so that a trial can take one without building it again.

    Args:
        budget: The memory of all models, in bytes. The model put last is kept even if it is larger.

    >>> class Small(BuiltModel):
    ...     nbytes = 10
    ...     def state(self): ...
    ...     def restore(self, source, hyperparameters=None): ...
    ...     def hyperparameters(self): ...
    ...     def copy_statistics(self): ...
    ...     def restore_statistics(self, copies): ...
    >>> cache = ModelCache(budget=25)
    >>> for name in "abc":
    ...     cache.put(name, Small())
    >>> [cache.get(name) is not None for name in "abc"]
    [False, True, True]
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._models: OrderedDict[str, M] = OrderedDict()
        self._builds: dict[str, tuple[str, Any]] = {}

    def __len__(self) -> int:
        return len(self._models)

    def get(self, signature: str) -> M | None:
        """Return the model of that signature, now the most recently used."""
        if signature not in self._models:
            return None
        self._models.move_to_end(signature)
        return self._models[signature]

    def put(self, signature: str, model: M) -> None:
        """Keep a model. Others are closed until the rest fit into the budget, or only this one is left."""
        self._models[signature] = model
        self._models.move_to_end(signature)
        while len(self._models) > 1 and sum(each.nbytes for each in self._models.values()) > self.budget:
            _, gone = self._models.popitem(last=False)
            gone.close()

    def note_build(self, params: Mapping[str, Any], signature: str, hyperparameters: Any) -> None:
        """Note which model these params build, and with which hyperparameters."""
        self._builds[compute_signature(params)] = signature, hyperparameters

    def find_build(self, params: Mapping[str, Any]) -> tuple[M | None, Any]:
        """Return the kept model that these params build, or None, and the hyperparameters that they give it."""
        signature, hyperparameters = self._builds.get(compute_signature(params), ("", None))
        return self.get(signature), hyperparameters

    def signature_of(self, model: M) -> str:
        """Return the signature of a kept model; "" for any other."""
        return next((signature for signature, kept in self._models.items() if kept is model), "")

    def drop(self, model: M) -> None:
        """Close a model that must not be used again."""
        self._models = OrderedDict((key, kept) for key, kept in self._models.items() if kept is not model)
        model.close()

    def keep_only(self, model: M) -> None:
        """Close all models but one."""
        for other in [kept for kept in self._models.values() if kept is not model]:
            self.drop(other)

    def nbytes_beside(self, model: M) -> int:
        """Return the memory of all models but one."""
        return sum(kept.nbytes for kept in self._models.values() if kept is not model)

    def clear(self) -> None:
        """Close all models and forget all builds."""
        for model in list(self._models.values()):
            self.drop(model)
        self._builds.clear()
