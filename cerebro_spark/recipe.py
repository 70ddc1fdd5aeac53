"""All that defines a run, kept beside its log so that another driver can continue it. It runs nothing.

It is the one pickle of a run. It has the user's functions, so write access to the store is enough to run code. The log
has its digest, and a file with another digest is never unpickled. Read access to the store is enough to read it: stores
are in it by their address alone, never with credentials.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cerebro_spark.backend.job import Job
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.manifest import read_manifest
from cerebro_spark.errors import CerebroError, ConfigurationError, EventLogError, NotFoundInStore
from cerebro_spark.events import Settings
from cerebro_spark.scheduling.settings import with_todays_rules
from cerebro_spark.search import Search
from cerebro_spark.store import paths, references
from cerebro_spark.store.base import Store
from cerebro_spark.store.references import Resolve
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.checkpoints.digest import DIGEST
from cerebro_spark.trainer.feed import SMALLEST_BATCH
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Objective


@dataclass(frozen=True, slots=True)
class Recipe:
    """A run before it begins: `search` has not been asked anything yet. What runs is always a copy of it.

    `kind` is what the model puts out, if the user said so. Recipes of older releases are read: new fields come last,
    with a default.
    """

    search: Search
    objective: Objective
    dataset: Dataset
    trainer: TrainerSpec
    cache: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    policy: str = "hopper"
    max_kills: int | None = None
    kind: str | None = None
    unit_timeout: float | None = None
    fuse: int = 1
    group: int = 1
    group_auto: bool = False

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Set the fields in their order; those that an older release did not have get their defaults."""
        if isinstance(state[3], Hooks):  # before there was a TrainerSpec, its four fields were the recipe's own
            hooks, seed, framework, resources = state[3:7]
            state = [*state[:3], TrainerSpec(hooks, seed, framework, resources, metric_rule="guess"), *state[7:]]
        for index, known in enumerate(dataclasses.fields(self)):
            object.__setattr__(self, known.name, state[index] if index < len(state) else known.default)

    def job(self, run: str, store: Store) -> Job:
        """Return what workers need of the run; its checkpoints go to `store`."""
        return Job(
            run, store, self.dataset, self.trainer, self.cache, self.objective.metric, unit_timeout=self.unit_timeout
        )

    def settings(self, workers: int) -> Settings:
        """Return what the scheduler needs of the run, for a number of workers."""
        settings = Settings(
            self.dataset.partitions,
            workers,
            replicas=self.replicas,
            policy=self.policy,
            seed=self.trainer.seed,
            queue_ahead=1,
            objective=self.objective,
            smallest_batch=SMALLEST_BATCH,
            digest=DIGEST,
            fuse=self.fuse,
            group=self.group,
            group_auto=self.group_auto,
            group_on_host=self.trainer.resources.strategy == "shard",
        )
        return with_todays_rules(settings, max_kills=self.max_kills, unit_timeout=self.unit_timeout)


def pack(recipe: Recipe, home: Store | None = None) -> tuple[bytes, Resolve]:
    """Return the recipe as bytes, for the store `home`; and what `unpack` needs to find its stores in this process.

    Raises ConfigurationError if a function of the user cannot be pickled.
    """
    data, stores = _pickled(recipe, home)
    return data, lambda reference: stores[reference.number]


def check_functions(hooks: Hooks) -> None:
    """Raise ConfigurationError if a function of the user cannot be pickled."""
    _pickled(hooks)


def _pickled(value: Recipe | Hooks, home: Store | None = None) -> tuple[bytes, list[Store]]:
    try:
        return references.dumps(value, home)
    except Exception as error:
        raise ConfigurationError(
            f"the run's functions cannot be pickled: {type(error).__name__}: {error}. Let `model_fn` and the other"
            " functions make what they need (sessions, locks, open files) inside, instead of using it from outside"
        ) from error


def digest(data: bytes) -> str:
    """Return the digest of a recipe's bytes, as it is in the log."""
    return hashlib.sha256(data).hexdigest()


def read(store: Store, run: str, expected: str) -> Recipe:
    """Return the recipe of a run. It is unpickled only if its digest is the one in the log.

    Its stores are opened as they are now, as far as that is known: see `references.resolver_from`, and `with_data`.
    """
    data = store.read(paths.functions(run))
    if digest(data) != expected:
        raise EventLogError(
            f"{paths.functions(run)} is not what run {run} was started with: its digest differs from the one in the log"
        )
    return unpack(data, references.resolver_from(store))


def unpack(data: bytes, resolve: Resolve) -> Recipe:
    """Return the recipe that `pack` made these bytes from: a copy, which shares nothing with the original.

    Unpacking runs code: use it for bytes of this process, or with the right digest, only.
    """
    try:
        recipe = references.loads(data, resolve)
    except Exception as error:
        raise ConfigurationError(
            f"the run's functions cannot be unpickled here: {type(error).__name__}: {error}. Use the Python version of"
            " the run, with the modules that its functions come from"
        ) from error
    assert isinstance(recipe, Recipe)
    return recipe


def with_data(recipe: Recipe, run: str, store: Store, data_store: Store | None = None) -> Recipe:
    """Return the recipe with its data in a store that can be read now. Raises StoreError if there is none.

    That store is `data_store` if it is given; or the store of the run, as it is opened now, if it has the data set; or
    the address that the data set had.
    """
    dataset = recipe.dataset
    places = [data_store] if data_store is not None else [store, dataset.store]
    trouble = ""
    for place in places:
        try:
            if _holds(place, dataset, as_opened=place is dataset.store or place is data_store):
                return replace(recipe, dataset=replace(dataset, store=place))
        except CerebroError as error:
            trouble = f" ({error})"
    where = " or ".join(dict.fromkeys(place.url for place in places))
    raise NotFoundInStore(
        f"the data of run {run}, {dataset.folder or dataset.id!r}, cannot be read in {where}{trouble}: give the store"
        f" that has it now, as in cs.resume(..., data_store=cs.open_store({dataset.store.url!r}, ...)), with the"
        " credentials that it needs"
    )


def _holds(store: Store, dataset: Dataset, as_opened: bool) -> bool:
    """Return whether this data set is in the store. Raises DataError if its files were written again."""
    if dataset.made.get("by") == "prepare":
        try:
            return read_manifest(store, dataset.folder).made.get("token") == dataset.made.get("token")
        except NotFoundInStore:
            return False
    if not as_opened or not store.exists(dataset.partitions[0].files[0]):
        return False
    from cerebro_spark.data.foreign import check_unchanged

    check_unchanged(replace(dataset, store=store))
    return True
