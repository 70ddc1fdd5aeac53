"""The protocol between a search algorithm and the engine: ask and tell. It never sees a scheduler, backend or clock."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.types import Report, Work


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until another report has come in."""


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing to do any more, whatever is reported."""


class Search(ABC):
    """Decides which trials to train, and how far.

    The engine calls it, from one thread. It asks until the answer is Wait or Done, tells all reports that one
    event made, and asks again. A search is deterministic: the same seed and the same order of reports give the same
    answers, because a run whose driver died is taken up again by repeating them. It takes the time from `report.at`,
    never from a clock.

    A trial whose report `failed` is not heard of again: it failed, or a person `ended` it, or lets it go on without the
    search. A search must not wait for it, nor start another trial from it; if it asks for it, it is told the same
    again. What people clone is no concern of a search, which never hears of it.

    A trial is dropped by not asking for it again. Asking again for a trial, with a later `until_epoch`, lets it go on;
    with a `warm_start` it goes on from that checkpoint instead of its own. After Done, `ask` is not called again.

    Attributes:
        unforeseeable: Why a copy of the search would not ask for the same, for people. Empty by default: it would.
    """

    unforeseeable = ""

    @abstractmethod
    def ask(self) -> Work | Wait | Done:
        """What to do next."""

    @abstractmethod
    def tell(self, report: Report) -> None:
        """An epoch of a trial was trained and evaluated, or a trial failed, or a person ended it."""


class FixedSearch(Search):
    """Train these configurations, all of them, for the same number of epochs.

    >>> search = FixedSearch([{"lr": 0.1}, {"lr": 0.2}], epochs=3)
    >>> search.ask()
    Work(trial='t0', params={'lr': 0.1}, until_epoch=3, warm_start=None)
    """

    def __init__(self, configurations: Sequence[Mapping[str, Any]], epochs: int) -> None:
        if epochs < 1:
            raise ConfigurationError(f"`epochs` is {epochs}, but must be at least 1")
        if not configurations:
            raise ConfigurationError("there is no configuration to train: give at least one")
        self._configurations = list(configurations)
        self._ids = make_trial_ids(len(configurations))
        self._epochs = epochs
        self._asked = 0

    def ask(self) -> Work | Wait | Done:
        if self._asked == len(self._configurations):
            return Done()
        number, self._asked = self._asked, self._asked + 1
        return Work(self._ids[number], self._configurations[number], self._epochs)

    def tell(self, report: Report) -> None:
        """Nothing depends on results here."""


def make_trial_ids(count: int) -> list[str]:
    """Return names for `count` trials, which sort as their numbers do.

    >>> make_trial_ids(11)[:3]
    ['t00', 't01', 't02']
    """
    width = len(str(max(count - 1, 0)))
    return [f"t{number:0{width}d}" for number in range(count)]
