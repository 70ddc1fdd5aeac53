"""Which of the configurations that a search will ask for are worth measuring. PURE."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from cerebro_spark.planning.values import Demand
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.search import Done, Search, Wait, make_trial_ids
from cerebro_spark.types import Report, TrialId, Work

MOST = 32
"""How many configurations are measured at most."""


def representatives(demand: Demand, most: int = MOST) -> list[Mapping[str, Any]]:
    """Return configurations to measure: of each structure one, those first that train longest, then second ones.

    Of the first structure two come at once: they tell what each trial takes to begin, and what a structure does.

    >>> units = (8, 8, 8, 9, 9)
    >>> demand = Demand(tuple({"units": count, "lr": lr / 10} for lr, count in enumerate(units)), (1,) * 5)
    >>> [(params["units"], params["lr"]) for params in representatives(demand, most=4)]
    [(8, 0.0), (8, 0.1), (9, 0.3), (8, 0.2)]
    """
    kin: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    epochs: dict[str, int] = defaultdict(int)
    for params, count in zip(demand.params, demand.epochs, strict=True):
        name = kin_of(params)
        kin[name].append(params)
        epochs[name] += count
    ranked = sorted(kin, key=lambda name: -epochs[name])
    turns = [(max(0, depth - (name == ranked[0])), params) for name in ranked for depth, params in enumerate(kin[name])]
    return [params for _, params in sorted(turns, key=lambda turn: turn[0])[:most]]


class PilotSearch(Search):
    """Asks for configurations one after another, for as long as there is time.

    Args:
        configurations: What to train.
        epochs: The epochs of each.
        at_once: How many are trained at a time.
        seconds: The time by which all are to be done: none is asked for that would end later, but for the first ones.
        ahead: The seconds that those take that are trained at a time. Defaults to 0.0: not known.
    """

    def __init__(
        self,
        configurations: Sequence[Mapping[str, Any]],
        epochs: int,
        at_once: int,
        seconds: float = float("inf"),
        ahead: float = 0.0,
    ) -> None:
        self._waiting = list(zip(make_trial_ids(len(configurations)), configurations, strict=True))[::-1]
        self._open: set[TrialId] = set()
        self._epochs = epochs
        self._at_once = at_once
        self._last_start = seconds - ahead
        self._now = 0.0
        self._asked = 0

    def ask(self) -> Work | Wait | Done:
        if not self._waiting or (self._now > self._last_start and self._asked >= self._at_once):
            return Done()
        if len(self._open) >= self._at_once:
            return Wait()
        trial, params = self._waiting.pop()
        self._open.add(trial)
        self._asked += 1
        return Work(trial, params, self._epochs)

    def tell(self, report: Report) -> None:
        self._now = report.at
        if report.failed or report.epoch == self._epochs:
            self._open.discard(report.trial)
