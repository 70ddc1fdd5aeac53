"""What makes a run what it is, kept beside its log so that another driver can go on with it. It runs nothing.

The one pickle of a run: it holds the user's functions, so whoever may write the store may run code with it. The log
has its digest, and a file with another one is not even opened.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from cerebro_spark.backend.job import Framework, Job
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import ConfigurationError, EventLogError
from cerebro_spark.events import Settings
from cerebro_spark.search import Search
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.types import Objective


@dataclass(frozen=True, slots=True)
class Recipe:
    """A run before it began: `search` has not been asked anything yet, and whoever runs it works on a copy."""

    search: Search
    objective: Objective
    dataset: Dataset
    hooks: Hooks
    seed: int = 0
    framework: Framework = "auto"
    resources: Resources = field(default_factory=Resources)
    cache: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    policy: str = "hopper"
    kind: str | None = None

    def job(self, run: str, store: Store) -> Job:
        """The run as its workers see it; its checkpoints go to `store`."""
        return Job(
            run,
            store,
            self.dataset,
            self.hooks,
            self.seed,
            self.framework,
            self.resources,
            self.cache,
            self.objective.metric,
        )

    def settings(self, workers: int) -> Settings:
        """The run as its scheduler sees it, on so many workers."""
        return Settings(
            self.dataset.partitions,
            workers,
            replicas=self.replicas,
            policy=self.policy,
            seed=self.seed,
            queue_ahead=1,
            objective=self.objective,
        )


def pack(recipe: Recipe) -> bytes:
    """The recipe as bytes. Raises ConfigurationError where a function of the user cannot be sent anywhere."""
    return _pickled(recipe)


def check_functions(hooks: Hooks) -> None:
    """Raise ConfigurationError where a function of the user cannot be sent anywhere."""
    _pickled(hooks)


def _pickled(value: Recipe | Hooks) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(value)
    except Exception as error:
        raise ConfigurationError(
            f"the run's functions cannot be pickled: {type(error).__name__}: {error}. Let `model_fn` and the other"
            " functions make what they need (sessions, locks, open files) inside, instead of using it from outside"
        ) from error
    return data


def digest(data: bytes) -> str:
    """What the log says of a recipe's bytes."""
    return hashlib.sha256(data).hexdigest()


def read(store: Store, run: str, expected: str) -> Recipe:
    """The recipe of a run in a store, if it is the one that the log speaks of. Only then is it unpickled."""
    data = store.read(paths.functions(run))
    if digest(data) != expected:
        raise EventLogError(
            f"{paths.functions(run)} is not what run {run} was started with: its digest differs from the one in the log"
        )
    return unpack(data)


def unpack(data: bytes) -> Recipe:
    """The recipe that `pack` made these bytes from: a copy, which shares nothing with the original.

    They run code as they are unpacked: only bytes of one's own, or with the right digest.
    """
    try:
        recipe = pickle.loads(data)
    except Exception as error:
        raise ConfigurationError(
            f"the run's functions cannot be unpickled here: {type(error).__name__}: {error}. Use the Python version of"
            " the run, with the modules that its functions come from"
        ) from error
    assert isinstance(recipe, Recipe)
    return _completed(recipe)


def _completed(recipe: Recipe) -> Recipe:
    """A recipe of an older version lacks the fields that came later: they are what they are if not given."""
    for known in dataclasses.fields(recipe):
        if not hasattr(recipe, known.name):
            object.__setattr__(recipe, known.name, known.default)
    return recipe
