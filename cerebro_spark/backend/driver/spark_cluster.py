"""What a Spark cluster can do for a run, found out before anything is launched. It changes nothing there.

It takes a SparkContext and asks it; pyspark itself is imported by its one home in this package, not here.
"""

from __future__ import annotations

import importlib.metadata
import logging
import platform
import re
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wire.messages import StartTrouble
from cerebro_spark.backend.worker.spark_task import missing_here, write_probe
from cerebro_spark.data.cluster import explain_missing_package
from cerebro_spark.errors import ConfigurationError, StoreError
from cerebro_spark.store.base import Store
from cerebro_spark.trainer.spec import detect_framework

_log = logging.getLogger(__name__)
_SECONDS_TO_REGISTER = 30.0
_SECONDS_OF_QUIET = 3.0
_SECONDS_BETWEEN_LOOKS = 0.1
LIBRARIES = {"torch": ("torch",), "keras": ("keras", "tensorflow")}
ALWAYS = ("numpy", "pyarrow", "safetensors", "cloudpickle", "xxhash")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster as the driver sees it now. `slots` are tasks that can run at a time, busy or not."""

    master: str
    slots: int
    task_cpus: int
    dynamic: bool
    driver_host: str
    bind_address: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What one executor says of itself: libraries it lacks, what went wrong with the store, its versions."""

    host: str
    missing: tuple[str, ...]
    store: str | None
    versions: Mapping[str, str] = field(default_factory=dict)


def look(context: Any) -> Cluster:
    """Ask the driver about its cluster."""
    settings = context.getConf()
    host = settings.get("spark.driver.host", "127.0.0.1")
    local = _is_local(context.master)
    return Cluster(
        context.master,
        _slots(context),
        int(settings.get("spark.task.cpus", "1")),
        settings.get("spark.dynamicAllocation.enabled", "false") == "true",
        "127.0.0.1" if local else host,
        "127.0.0.1" if local else settings.get("spark.driver.bindAddress", host),
    )


def count_hosts(context: Any) -> int:
    """Return on how many hosts there are executors; those of an embedded cluster are all on this one."""
    if context.master.startswith("local"):
        return 1
    listed = Counter(info.host() for info in context._jsc.sc().statusTracker().getExecutorInfos())
    # The driver is among them, and has no tasks.
    listed[context.getConf().get("spark.driver.host")] -= 1
    return max(1, sum(executors > 0 for executors in listed.values()))


def settled(context: Any, patience: float = _SECONDS_TO_REGISTER, enough: int | None = None) -> Cluster:
    """Ask again until all executors that were asked for have registered, or no new one has come for a while.

    Where `enough` slots are waited for, a pause between two executors is no reason to stop: only they are, or the end
    of patience. Spark tells Python of no event when an executor registers, so this looks again and again.
    """
    cluster = look(context)
    wanted = [slots for slots in (enough, expected_slots(context)) if slots is not None]
    end = time.monotonic() + patience
    changed = time.monotonic()

    def done() -> bool:
        return cluster.slots >= min(wanted) if wanted else time.monotonic() - changed >= _SECONDS_OF_QUIET

    while time.monotonic() < end and not done():
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        before, cluster = cluster, look(context)
        changed = time.monotonic() if cluster.slots != before.slots or not cluster.slots else changed
    return cluster


def expected_slots(context: Any) -> int | None:
    """How many slots there will be once all executors are there, if the settings say so."""
    cluster = look(context)
    if _is_local(cluster.master):
        return cluster.slots
    embedded = re.fullmatch(r"local-cluster\[\s*(\d+)\s*,\s*(\d+)\s*,.*\]", cluster.master)
    settings = context.getConf()
    if embedded:
        executors, cores = int(embedded[1]), int(embedded[2])
    elif settings.get("spark.executor.instances") and not cluster.dynamic:
        executors, cores = int(settings.get("spark.executor.instances")), int(settings.get("spark.executor.cores", "1"))
    else:
        return None
    return executors * tasks_an_executor(cores, cluster.task_cpus, dict(settings.getAll()))


def most_slots(context: Any) -> int | None:
    """How many tasks can run at a time at most, as the cluster is now; None if it may grow without a known limit."""
    cluster, settings = look(context), context.getConf()
    if not cluster.dynamic:
        return max(cluster.slots, expected_slots(context) or 0)
    executors, cores = settings.get("spark.dynamicAllocation.maxExecutors"), settings.get("spark.executor.cores")
    if executors is None or cores is None:
        return None
    tasks = int(executors) * tasks_an_executor(int(cores), cluster.task_cpus, dict(settings.getAll()))
    return max(cluster.slots, tasks)


def tasks_an_executor(cores: int, task_cpus: int, settings: Mapping[str, str]) -> int:
    """How many tasks run at a time on an executor, by its cores and by what else tasks ask for, such as GPUs.

    >>> gpus = {"spark.executor.resource.gpu.amount": "2", "spark.task.resource.gpu.amount": "1"}
    >>> tasks_an_executor(4, 1, gpus)
    2
    """
    most = cores // task_cpus
    for key, value in settings.items():
        asked = re.fullmatch(r"spark\.task\.resource\.(.+)\.amount", key)
        if asked and (share := float(value)) > 0:
            there = int(settings.get(f"spark.executor.resource.{asked[1]}.amount", "0"))
            # A share of less than one is of one device: what is left of two does not make another.
            most = min(most, there * int(1 / share) if share < 1 else int(there / share))
    return most


def check(context: Any, num_workers: int, patience: float = _SECONDS_TO_REGISTER) -> Cluster:
    """Raise ConfigurationError unless that many workers find a place; executors may take a while to register.

    Under dynamic allocation they are asked for as they are needed, so nothing can be said beforehand.
    """
    cluster = look(context)
    if cluster.slots < num_workers and not cluster.dynamic:
        cluster = settled(context, patience, enough=num_workers)
        if cluster.slots < num_workers:
            raise ConfigurationError(_too_few(cluster, num_workers))
    return cluster


def advise(cluster: Cluster, threads: int) -> None:
    """Warn of what works, but not well."""
    if cluster.dynamic:
        _log.warning(
            "dynamic allocation is on: workers run as plain tasks, and executors are asked for as they are needed;"
            " a search starts faster with spark.dynamicAllocation.enabled=false"
        )
    elif threads > cluster.task_cpus:
        _log.warning(
            "each worker computes with %(threads)d threads but owns spark.task.cpus=%(cpus)d: workers of one host will"
            " fight for cores; start Spark with --conf spark.task.cpus=%(threads)d",
            {"threads": threads, "cpus": cluster.task_cpus},
        )


def _too_few(cluster: Cluster, num_workers: int) -> str:
    remedy = f"num_workers={cluster.slots}" if cluster.slots else "smaller tasks"
    return (
        f"`num_workers` is {num_workers}, but {cluster.master} has room for {cluster.slots} tasks at a time"
        f" (spark.task.cpus is {cluster.task_cpus}): use {remedy}, or start Spark with more executors or cores"
        f" (--num-executors, --executor-cores; local[{num_workers * cluster.task_cpus}] on one machine)"
    )


def libraries_of(job: Job) -> tuple[str, ...]:
    """What a worker of this job must find where it runs."""
    spec = job.trainer
    framework = detect_framework(spec.hooks.model_fn) if spec.framework == "auto" else spec.framework
    return (*ALWAYS, *(LIBRARIES[framework] if isinstance(framework, str) else ()))


def ask_executors(context: Any, wanted: Sequence[str], store: Store | None, names: Sequence[str]) -> list[Finding]:
    """What executors find where they run: one task for each of these names, under which it writes a blob."""
    look_there = partial(look_around, tuple(wanted), store)
    with explain_missing_package():
        found: list[Finding] = context.parallelize(names, len(names)).mapPartitions(look_there).collect()
    return found


def look_around(wanted: Sequence[str], store: Store | None, names: Iterable[str]) -> Iterator[Finding]:
    """Look around on an executor: one look for each library, one blob into the store."""
    missing = missing_here(wanted)
    there = {one.name: one.version for one in importlib.metadata.distributions() if one.name in wanted}
    versions = {"Python": platform.python_version(), **there}
    for name in names:
        error = None if store is None else write_probe(store, name)
        yield Finding(socket.gethostname(), missing, error, versions)


def troubles(findings: Sequence[Finding], store: Store | None) -> list[str]:
    """What is wrong on the executors, with the fix; each trouble of a host once."""
    found: list[str] = []
    for finding in findings:
        if finding.missing:
            found.append(lacking(finding.host, finding.missing))
        if finding.store is not None and store is not None:
            found.append(explained(finding.host, StartTrouble("store", finding.store), store))
    return list(dict.fromkeys(found))


def lacking(host: str, libraries: Sequence[str]) -> str:
    return (
        f"executors on {host} lack {', '.join(libraries)}: install them there, or ship this environment with"
        " spark.archives (see docs/deploy)"
    )


def explained(host: str, trouble: StartTrouble, store: Store) -> str:
    """Return why a worker on this host cannot begin, with what to do."""
    if trouble.what == "functions":
        return (
            f"executors on {host} cannot load the run's functions: {trouble.error}. Python modules of your"
            " own travel with the functions; install packages and compiled modules there, or send them with"
            " spark.sparkContext.addPyFile('module.zip') or spark-submit --py-files"
        )
    return (
        f"executors on {host} cannot write to the store {store.url}: {trouble.error}. Give the user who runs them"
        " the right to, or use another store"
    )


def unseen(store: Store, names: Sequence[str]) -> list[str]:
    """What is wrong if the driver does not see what executors wrote under these names, which are deleted.

    A local folder is shared by one machine, not by a cluster.
    """
    try:
        lost = [name for name in names if not store.exists(name)]
        for name in names:
            store.delete(name)
    except StoreError as error:
        return [f"the driver cannot use the store {store.url}: {error}"]
    if not lost:
        return []
    return [
        f"the driver does not see what executors wrote to the store {store.url}: on several machines use a store"
        " that they share (hdfs://, s3://, a network folder)"
    ]


def _slots(context: Any) -> int:
    """How many tasks can run at a time, as Spark itself counts them for barrier stages."""
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def _is_local(master: str) -> bool:
    return master.startswith("local[") or master == "local"
