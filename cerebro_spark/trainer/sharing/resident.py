"""The built models that a worker keeps, least recently used out. It never lets go of the one in use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Any

from cerebro_spark.trainer.checkpoints.file import Source
from cerebro_spark.trainer.sharing.footprint import Footprint


class Resident(ABC):
    """A built model that can take on the state of any trial of its architecture.

    `footprint` is everything of it that `restore` does not reset, as it was when built: a model that a unit has left
    otherwise can be nobody else's.
    """

    footprint: Footprint | None = None

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The memory that keeping it costs, about."""

    @abstractmethod
    def state(self) -> Any:
        """Its whole training state as a tree whose array leaves are its own live arrays, not copies."""

    @abstractmethod
    def restore(self, source: Source, numbers: Any = None) -> None:
        """Take on the state in `source`; hyperparameters come from `numbers` where that is given."""

    @abstractmethod
    def numbers(self) -> Any:
        """Its numeric hyperparameters (learning rate, weight decay, ...), JSON-able."""

    @abstractmethod
    def volatile(self) -> Any:
        """Copies of what an evaluation may change by itself (statistics, generators), for `settle`."""

    @abstractmethod
    def settle(self, kept: Any) -> None:
        """Put back what `volatile` copied, where it has changed."""

    def close(self) -> None:  # noqa: B027 (most have nothing to do)
        """Called once it is let go."""


class Residents:
    """Residents by signature, within a memory budget.

    >>> class Small(Resident):
    ...     nbytes = 10
    ...     def state(self): ...
    ...     def restore(self, source, numbers=None): ...
    ...     def numbers(self): ...
    ...     def volatile(self): ...
    ...     def settle(self, kept): ...
    >>> kept = Residents(budget=25)
    >>> for name in "abc":
    ...     kept.put(name, Small())
    >>> [kept.get(name) is not None for name in "abc"]
    [False, True, True]
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self._residents: OrderedDict[str, Resident] = OrderedDict()

    def __len__(self) -> int:
        return len(self._residents)

    def get(self, signature: str) -> Resident | None:
        """The resident of that signature, now the most recently used."""
        if signature not in self._residents:
            return None
        self._residents.move_to_end(signature)
        return self._residents[signature]

    def put(self, signature: str, resident: Resident) -> None:
        """Keep it; those unused for longest go until the rest fit, or only this one is left."""
        self._residents[signature] = resident
        self._residents.move_to_end(signature)
        while len(self._residents) > 1 and sum(r.nbytes for r in self._residents.values()) > self.budget:
            _, gone = self._residents.popitem(last=False)
            gone.close()

    def drop(self, resident: Resident) -> None:
        """Let go of a resident that must not be used again, whatever it is kept under."""
        for signature in [signature for signature, kept in self._residents.items() if kept is resident]:
            del self._residents[signature]
        resident.close()

    def clear(self) -> None:
        """Let go of all."""
        for resident in list(self._residents.values()):
            self.drop(resident)
