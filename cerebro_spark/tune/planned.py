"""A plan for a search: what there is to plan with, and a search that follows its plan. It measures nothing itself."""

from __future__ import annotations

import copy
import logging
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.checks import check_at_least, check_seconds, is_number
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.base import is_spark_frame
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.planning.dry_runs import demand_of
from cerebro_spark.planning.plan import Plan
from cerebro_spark.planning.planner import Planner
from cerebro_spark.planning.sizes import parse_bandwidth, parse_bytes
from cerebro_spark.planning.values import Cluster, Demand, Setting, Wish, Workload
from cerebro_spark.recipe import Recipe
from cerebro_spark.result.listing import read_view
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store
from cerebro_spark.trainer.feed import batch_size_of
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.tune import arguments
from cerebro_spark.tune.training import Training

if TYPE_CHECKING:
    from cerebro_spark.tune.estimator import ModelSearch

_log = logging.getLogger("cerebro_spark")
# Rows of a sample for each worker: some hundred batches, and at least so many.
_BATCHES = 200
_LEAST_ROWS = 4096
# With fewer batches a unit of a pilot would say nothing of longer ones.
_LEAST_BATCHES = 8
# Where the driver of NVIDIA lists its devices, whichever framework is installed.
_GPUS = Path("/proc/driver/nvidia/gpus")


@dataclass(frozen=True, slots=True)
class PlanArguments:
    """What users say of a plan, as they say it; see `ModelSearch.plan`."""

    deadline: datetime | float | None = None
    budget: float | None = None
    price: float | None = None
    rows: int | None = None
    hosts: int | None = None
    cores: int | None = None
    memory: str | int | None = None
    network: str | float | None = None
    failure_rate: float = 0.0
    seconds: float = 60.0

    def wish(self) -> Wish:
        """Return what is wanted. Raises ConfigurationError for what cannot be."""
        for name in ("budget", "price"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and 0 < float(value) < math.inf):
                raise ConfigurationError(f"`{name}` is {value!r}, but must be a number above 0")
        if self.budget is not None and self.price is None:
            raise ConfigurationError(
                f"`budget` is {self.budget!r}, but what a worker costs is not known: give price=, money for a worker"
                " and hour"
            )
        return Wish(self._seconds_left(), self.budget, self.price)

    def _seconds_left(self) -> float | None:
        if not isinstance(self.deadline, datetime):
            if self.deadline is not None:
                check_seconds("deadline", self.deadline)
            return self.deadline
        left = self.deadline.timestamp() - time.time()
        if left <= 0:
            raise ConfigurationError(f"`deadline` is {self.deadline}, which is over: give a time that is to come")
        return left

    def cluster(self, there: Cluster) -> Cluster:
        """Return the cluster that is described, or the one that is there. Raises ConfigurationError for nonsense."""
        for name in ("hosts", "cores", "rows"):
            if getattr(self, name) is not None:
                check_at_least(name, getattr(self, name), 1)
        if not (is_number(self.failure_rate) and 0 <= float(self.failure_rate) < 1):
            raise ConfigurationError(f"`failure_rate` is {self.failure_rate!r}, but must be at least 0 and below 1")
        check_seconds("seconds", self.seconds)
        described = self.hosts is not None or self.cores is not None
        return Cluster(
            self.hosts or (1 if described else there.hosts),
            self.cores or there.cores,
            there.memory if self.memory is None and not described else _bytes_or_none("memory", self.memory),
            None if self.network is None else parse_bandwidth("network", self.network),
            float(self.failure_rate),
        )


def plan_search(search: ModelSearch, data: Any, backend: Backend, asked: PlanArguments) -> Plan:
    """Return a plan for a search.

    Args:
        search: The search.
        data: What it would be fitted to.
        backend: Where pilots run.
        asked: What the user wants.
    """
    there = backend.machines
    wish, cluster = asked.wish(), asked.cluster(there)
    group = arguments.group_of(search.workers_per_trial)
    slots = cluster.hosts * cluster.cores
    arguments.check_group(search.workers_per_trial, slots, partitions=slots)
    training, store = search._training(), open_store(search.store)
    training.check(data, store, backend)
    with backend.turn(), _sample(search, training, data, store, there, asked) as (sample, workload):
        resources = search.resources or Resources()
        recipe = Recipe(
            search._stopping_algorithm(1),
            training.objective,
            backend.located(sample),
            TrainerSpec(training.hooks.with_modules(), search.seed, training.framework, resources),
            unit_timeout=search.unit_timeout,
        )
        planner = Planner(
            recipe.job(_new_pilot(), store),
            training.objective,
            search._stopping_algorithm,
            partial(search._stopping_algorithm, timed=False),
            lambda setting: backend.resized(setting.at_once * there.hosts, setting.threads),
            cluster,
            workload,
            there.hosts,
            arguments.fused_trials(search.fuse),
            search.replicas,
            search.max_kills,
            search.time_budget,
            group.size,
            group.auto,
            asked.seconds,
        )
        demand = demand_of(search._stopping_algorithm(1, timed=False), training.objective, 1)
        _check_sample(sample, workload, demand)
        settings = _settings(backend, there, cluster, resources, min(len(sample.train), demand.trials * group.size))
        fewest = min(setting.threads for setting in settings)
        slots = cluster.hosts * max(1, cluster.cores // fewest)
        arguments.check_group(search.workers_per_trial, slots, workload.partitions or workload.train)
        return Plan(planner.plan(settings, wish))


def follow(search: ModelSearch, plan: Plan, data: Any, backend: Backend) -> ModelSearch:
    """Return a copy of a search that runs as its plan says.

    Args:
        search: The search.
        plan: Its plan.
        data: What it is fitted to.
        backend: Where it would run.

    Raises:
        ConfigurationError: There are fewer slots than the plan needs, or the data has other partitions.
    """
    if not isinstance(plan, Plan):
        raise ConfigurationError(f"`plan` is {plan!r}, but must be what search.plan returned")
    best, there = plan.best, backend.machines
    if best.workers * best.threads > there.hosts * there.cores:
        raise ConfigurationError(
            f"the plan has {best.workers} workers with {best.threads} threads each, but there are"
            f" {there.hosts * there.cores} cores: use it on the cluster that it was made for, or plan for this one"
        )
    if isinstance(data, Dataset) and len(data.train) != best.partitions:
        raise ConfigurationError(
            f"the plan has {best.partitions} partitions, but the data set has {len(data.train)}, and is never"
            f" partitioned again: prepare it with partitions={best.partitions}, or plan for this data set"
        )
    planned = copy.copy(search)
    planned.backend = backend.resized(best.workers, best.threads)
    planned.resources = replace(search.resources or Resources(), threads=best.threads)
    planned.replicas = best.replicas
    if not isinstance(data, Dataset):
        planned.partitions = best.partitions
    return planned


def hold_against(plan: Plan, store: Store, run_id: str) -> None:
    """Keep beside the log of a run that followed a plan what was planned and what it took, and say so.

    Args:
        plan: The plan.
        store: The store of the run.
        run_id: The id of the run.
    """
    found = plan.compare(read_view(store, run_id))
    store.write(paths.plan(run_id), found.to_json())
    _log.log(logging.WARNING if found.is_noteworthy else logging.INFO, "run %s: %s", run_id, found)


def _settings(backend: Backend, there: Cluster, cluster: Cluster, resources: Resources, workers: int) -> list[Setting]:
    """Return what to measure with: all cores of a host, shared in different ways, by at most so many workers in all."""
    cores = min(there.cores, cluster.cores)
    gpus = 0 if resources.device == "cpu" else count_gpus(backend)
    if gpus:
        # Workers on one GPU wait for each other: each has its own, and its share of the cores.
        choices = [resources.threads or max(1, cores // gpus)]
        cores = min(cores, gpus * choices[0])
    elif resources.threads is not None:
        choices = [resources.threads]
    elif there.hosts > 1:
        choices = [getattr(backend, "threads", 1)]
    else:
        choices = [2**n for n in range(cores.bit_length()) if 2**n <= cores]
    most = max(1, workers // there.hosts)
    full = [Setting(threads, max(1, min(cores // threads, most))) for threads in choices]
    # One worker alone says what the others cost it.
    alone = [Setting(full[0].threads, 1)] if full[0].at_once > 1 and there.hosts == 1 else []
    return [*full[:2], *alone, *full[2:]]


def count_gpus(backend: Backend) -> int:
    """Return how many GPUs the workers of a backend on this machine have; 0 if there are none, or none is known.

    Args:
        backend: The backend.
    """
    named = [device for device in getattr(backend, "devices", ()) if device.startswith("cuda")]
    if named:
        return len(set(named))
    if not isinstance(backend, LocalBackend):
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    there = len(list(_GPUS.iterdir())) if _GPUS.is_dir() else 0
    return there if visible is None else min(there, len([one for one in visible.split(",") if one.strip()]))


@contextmanager
def _sample(
    search: ModelSearch, training: Training, data: Any, store: Store, there: Cluster, asked: PlanArguments
) -> Iterator[tuple[Dataset, Workload]]:
    """Give a data set for pilots, and say how much there is: of a DataFrame a few rows are prepared, and deleted."""
    if isinstance(data, Dataset):
        yield data, _workload(data, asked.rows, prepared=True)
        return
    workers = there.hosts * there.cores
    demand = demand_of(search._stopping_algorithm(workers, timed=False), training.objective, workers)
    batch = max(batch_size_of(params) for params in demand.params)
    wanted = workers * max(_LEAST_ROWS, _BATCHES * batch)
    total = asked.rows or _count(data)
    sample = prepare(
        _first(data, wanted),
        store=store,
        features=search.features,  # type: ignore[arg-type]
        label=search.label,  # type: ignore[arg-type]
        validation=search.validation,
        partitions=workers,
        seed=search.seed,
        weight=search.weight,
        allow_nan=search.allow_nan,
        name=_new_pilot(),
    )
    try:
        yield sample, replace(_workload(sample, total, prepared=False), partitions=search.partitions)
    finally:
        store.delete(sample.folder)


def _check_sample(sample: Dataset, workload: Workload, demand: Demand) -> None:
    """Raise ConfigurationError for a sample of which units are too short to tell what those of all rows take."""
    rows, largest = sum(part.rows for part in sample.train), max(part.rows for part in sample.train)
    batch = max(batch_size_of(params) for params in demand.params)
    if rows < workload.train and largest < _LEAST_BATCHES * batch:
        raise ConfigurationError(
            f"the sample has {rows} training rows, {largest} for a worker, but with batches of {batch} that is too few"
            f" to tell what {workload.train} rows take: give a sample of at least"
            f" {_LEAST_BATCHES * batch * len(sample.train)} training rows"
        )


def _workload(data: Dataset, rows: int | None, prepared: bool) -> Workload:
    """Return how much there is to train on, if all of the data is like this and there are so many rows."""
    train, held_out = (sum(part.rows for part in split) for split in (data.train, data.validation))
    share = 1.0 if rows is None else rows / (train + held_out)
    size = round(share * sum(part.bytes for part in data.partitions))
    if prepared:
        return Workload(round(share * train), round(share * held_out), size, len(data.train), len(data.validation))
    return Workload(round(share * train), round(share * held_out), size)


def _new_pilot() -> str:
    return paths.pilot(time.time_ns(), secrets.token_hex(4))


def _count(data: Any) -> int:
    if is_spark_frame(data):
        return int(data.count())
    return len(next(iter(data.values()))) if isinstance(data, Mapping) else len(data)


def _first(data: Any, rows: int) -> Any:
    if is_spark_frame(data):
        return data.limit(rows)
    if isinstance(data, Mapping):
        return {name: column[:rows] for name, column in data.items()}
    return data.head(rows)


def _bytes_or_none(name: str, value: str | int | None) -> int | None:
    return None if value is None else parse_bytes(name, value)
