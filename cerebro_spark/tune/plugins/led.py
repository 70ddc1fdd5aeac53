"""Runs that somebody else leads: hyperopt's `fmin`, an Optuna study. It trains what they propose, and proposes nothing.

The leader is asked in the engine's own thread, one trial at a time, so it knows all that is known by then, and an
interrupt or a dead backend ends it like any other run.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

from cerebro_spark import runs
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import ConfigurationError, EventLogError
from cerebro_spark.events import RunStarted
from cerebro_spark.recipe import check_functions
from cerebro_spark.search import Done, Search, Wait
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store
from cerebro_spark.tune.algorithms.base import Algorithm, at_least
from cerebro_spark.tune.arguments import check_names
from cerebro_spark.tune.estimator import ModelFn, ModelSearch, Options, default_backend, fitted
from cerebro_spark.tune.objective import value_of
from cerebro_spark.tune.trackers.base import Tracking
from cerebro_spark.turns import Turn
from cerebro_spark.types import Objective, Report, TrialId, Work


@dataclass(slots=True)
class Course:
    """A trial under way: how far it was asked to go, how many epochs it reported, and the best of them."""

    trial: TrialId
    params: Mapping[str, Any]
    asked: int
    reported: int = 0
    best: float = float("nan")
    best_epoch: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)


class LedSearch(Search):
    """Asks a leader for trials, at most `at_once` under way, and tells it how each fares.

    A trial that is `sliced` is asked for an epoch at a time, so that the leader can end it early; nothing that is under
    way can be called back. A trial counts by its best epoch.
    """

    def __init__(self, objective: Objective, epochs: int, at_once: int, sliced: bool) -> None:
        at_least("epochs", epochs, 1)
        at_least("at_once", at_once, 1)
        self.objective = objective
        self.epochs = epochs
        self._at_once = at_once
        self._slice = 1 if sliced else epochs
        self._due: list[Course] = []
        self.run_id = ""
        self.under_way: dict[TrialId, Course] = {}

    # -- what a leader says

    @abstractmethod
    def propose(self) -> tuple[TrialId, Mapping[str, Any]] | None:
        """A trial to begin; None if there is to be no further one."""

    @abstractmethod
    def enough(self) -> bool:
        """Whether those under way are to end too, each with the epoch that it is in."""

    def epoch(self, course: Course, report: Report, value: float) -> bool:
        """An epoch was measured, and `value` is what it reached; returns whether the trial is to go on."""
        return True

    @abstractmethod
    def finished(self, course: Course) -> None:
        """A trial has come to its end."""

    @abstractmethod
    def failed(self, course: Course, error: str) -> None:
        """A trial failed."""

    # -- the protocol

    def ask(self) -> Work | Wait | Done:
        if self.enough():
            return Done()
        if self._due:
            course = self._due.pop(0)
            course.asked = min(self.epochs, course.asked + self._slice)
            return Work(course.trial, course.params, course.asked)
        proposed = self.propose() if len(self.under_way) < self._at_once else None
        if proposed is not None:
            course = Course(*proposed, asked=self._slice)
            self.under_way[course.trial] = course
            return Work(course.trial, course.params, course.asked)
        return Wait() if self.under_way else Done()

    def tell(self, report: Report) -> None:
        course = self.under_way.get(report.trial)
        if course is None:
            return
        if report.error is not None:
            del self.under_way[course.trial]
            self.failed(course, report.error)
            return
        value = value_of(report, self.objective)
        course.reported += 1
        if self.objective.better(value, than=course.best):
            course.best, course.best_epoch, course.metrics = value, report.epoch, dict(report.metrics)
        goes_on = self.epoch(course, report, value)
        # Counted, because an epoch may be measured before the one before it is.
        if goes_on and course.reported < self.epochs:
            if course.reported == course.asked:
                self._due.append(course)
            return
        del self.under_way[course.trial]
        if goes_on:
            self.finished(course)

    def state(self) -> dict[str, Any]:
        raise EventLogError(_ALIVE)

    def restore(self, state: Mapping[str, Any]) -> None:
        raise EventLogError(_ALIVE)


_ALIVE = "what a search that is led from outside goes by is not ours to save: it lives with its leader"


class Absent(Search):
    """Stands in a recipe for the leader of the run, which lived in the driver alone. All it can do is say so."""

    def __init__(self, leader: str, fix: str) -> None:
        self._leader, self._fix = leader, fix

    def ask(self) -> Work | Wait | Done:
        raise EventLogError(
            f"this run was led by {self._leader}, which is gone with its process: nobody can resume it. Its results"
            f" are kept (cs.Result), and {self._fix}"
        )

    def tell(self, report: Report) -> None:
        """There is nobody to tell."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """There is nothing to restore."""


def check_led_names(leader: str, given: Iterable[str], own: Collection[str], elsewhere: Mapping[str, str]) -> None:
    """Raise ConfigurationError for an argument that `leader` does not take, before anybody else speaks of it.

    `own` are its arguments beside those of all searches; `elsewhere` says where those belong that are not for it.

    >>> check_led_names("CerebroTrials", ["space"], ["data"], {"space": "hyperopt.fmin(fn, space, ...)"})
    Traceback (most recent call last):
    cerebro_spark.errors.ConfigurationError: CerebroTrials has no argument 'space': give it as hyperopt.fmin(fn, space,
    ...)
    """
    for name in given:
        if name in elsewhere:
            raise ConfigurationError(f"{leader} has no argument {name!r}: give it as {elsewhere[name]}")
    check_names(leader, given, {*own, *Options.__annotations__})


class LedTraining(ModelSearch):
    """A `model_fn`, data and options, trained as somebody else says."""

    def __init__(
        self,
        model_fn: ModelFn,
        absent: Absent,
        instead: Mapping[str, str],
        store: Store | str,
        metric: str,
        **options: Unpack[Options],
    ) -> None:
        for name, better in instead.items():
            if options.get(name) is not None:
                raise ConfigurationError(f"`{name}` is not for runs that are led from outside: use {better}")
        super().__init__(model_fn, space={}, store=store, metric=metric, **options)
        self._absent = absent
        self.backend = options.get("backend") or default_backend()
        self.store = open_store(store)

    def dataset(self, data: Any) -> Dataset:
        """The data set to train on: `data` itself, or what is prepared from it."""
        self.check(data)
        check_functions(self.hooks)
        return data if isinstance(data, Dataset) else self._prepared(data, self.store, self.backend)

    def check(self, data: Any) -> None:
        """Raise ConfigurationError for what is wrong with the arguments for this data, before any of it is read."""
        if data is None:
            raise ConfigurationError(
                "`data` is None, but must be a DataFrame, a dict of arrays, or what cs.prepare returned"
            )
        self._check_data(data)

    def lead(self, search: LedSearch, dataset: Dataset, progress: bool | None = None) -> None:
        """Train what `search` asks for, to its end. `search.run_id` is the id of the run, as soon as it has begun."""

        def note(turn: Turn) -> None:
            for event in turn.events:
                if isinstance(event, RunStarted):
                    search.run_id = event.run

        recipe = self._recipe(dataset, self.store, self.backend)
        with Tracking(self._options.get("trackers", ()), self.objective) as tracking:
            runs.execute(recipe, self.store, self.backend, None, [note, tracking], progress, led_by=search)
            tracking.finish(self.result(search.run_id))

    def result(self, run: str) -> Any:
        """The Result of a run."""
        return fitted(self.store, run)

    def _searching(self, workers: int) -> Search:
        return self._absent

    def _algorithm(self, max_concurrent: int | None, workers: int) -> Algorithm:
        raise AssertionError("it is led from outside")
