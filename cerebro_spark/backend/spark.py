"""Workers as long-lived Spark tasks. It looks at the cluster before anything is launched."""

from __future__ import annotations

import logging
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cerebro_spark.backend.driver import spark_cluster
from cerebro_spark.backend.driver.launcher import HubAddress
from cerebro_spark.backend.driver.spark_launcher import STOPPED, SparkLauncher
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.machines import Cluster
from cerebro_spark.backend.remote import RemoteBackend
from cerebro_spark.backend.run_queue import RunQueue
from cerebro_spark.backend.tenancy import Tenancy
from cerebro_spark.checks import check_whole
from cerebro_spark.data.cluster import find_replica_hosts, use_this_python
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.slots import add_holder, make_room, remove_holder
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.spark_session import active_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

_INSTEAD_OF_CONNECT = (
    "Spark Connect gives no access to its cluster's tasks: run the search in a classic session, such as that of"
    " spark-submit"
)


class SparkBackend(RemoteBackend):
    """One Spark task a worker, for as long as a run lasts.

    Inside a `with` block tasks stay for a while when a run is over, so that the next one starts at once. They give
    their places back before `prepare`, `transform` or `evaluate` need one. Whoever leaves the block waits for a run
    that was started there; an exception that leaves it ends that run with a BackendError.

    Runs of `fit` on one backend follow one another, and so do those on all backends of one
    session that have no `num_workers`: each of them takes the whole cluster.

    Each worker is its own Spark job with one barrier stage of one task; a plain task where dynamic allocation is on,
    which barrier stages do not allow.

    Args:
        spark: The session. Default: the active one, which in a new thread is that of the process.
        num_workers: How many workers a run has. Default: as many as the cluster has places for tasks.
        threads: Threads of one worker. Default: `spark.task.cpus`.
        host: The host that workers dial. Default: the driver's own.
        port: The port that workers dial; to be fixed where a firewall stands between. Default: 0, any free one.
        heartbeat: Seconds after which a silent worker is given up and replaced. Default: 30.
        start_timeout: Seconds after which a worker whose task runs, but has not joined, is given up and replaced.
            Default: 120.
        max_restarts: How many workers may be replaced in a run. Default: 100.
        idle_timeout: Seconds for which tasks wait for the next run inside a `with` block, so that it starts at once; 0
            for not at all. They hold their places meanwhile: a job of yours that needs one waits no longer than this.
            Default: 30.

    Raises:
        ConfigurationError: If there is no usable session, the cluster has too few places, or a number is not valid.

    >>> with SparkBackend(spark, num_workers=4) as backend:     # doctest: +SKIP
    ...     search.fit(df)
    """

    def __init__(
        self,
        spark: SparkSession | None = None,
        num_workers: int | None = None,
        *,
        threads: int | None = None,
        host: str | None = None,
        port: int = 0,
        heartbeat: float = 30.0,
        start_timeout: float = 120.0,
        max_restarts: int = 100,
        idle_timeout: float = 30.0,
    ) -> None:
        self._spark: Any = spark if spark is not None else _active_session()
        context = _context_of(self._spark)
        use_this_python(context)
        cluster = spark_cluster.settled(context) if num_workers is None else spark_cluster.look(context)
        count = max(1, cluster.slots) if num_workers is None else num_workers
        expected = spark_cluster.expected_slots(context) if num_workers is None else None
        if expected is not None and count < expected:
            _log.warning(
                "%s has room for %d tasks although its settings ask for executors with room for %d: they may still be"
                " starting. Runs have %d workers; if there shall be more, make the backend when they are there, or have"
                " Spark wait for them with spark.scheduler.maxRegisteredResourcesWaitingTime",
                *(cluster.master, cluster.slots, expected, count),
            )
        super().__init__(
            count,
            heartbeat=heartbeat,
            start_timeout=start_timeout,
            max_restarts=max_restarts,
            idle_timeout=idle_timeout,
        )
        if num_workers is None:
            self._tenancy = Tenancy(_queue_of(context))
        if threads is not None:
            check_whole("threads", threads)
        if not 0 <= port <= 65535:
            raise ConfigurationError(f"`port` is {port}, but must be 0 (any free one) or a number up to 65535")
        self.threads = threads or cluster.task_cpus
        spark_cluster.advise(spark_cluster.check(context, self.num_workers), self.threads)
        self.host = host or cluster.driver_host
        self.port = port
        self._context = context
        self._launcher = SparkLauncher(context, self.threads, HubAddress(cluster.bind_address, port, self.host))

    @property
    def machines(self) -> Cluster:
        cluster, hosts = spark_cluster.look(self._context), spark_cluster.count_hosts(self._context)
        return Cluster(hosts, max(1, cluster.slots * cluster.task_cpus // hosts))

    def resized(self, num_workers: int, threads: int) -> SparkBackend:
        return SparkBackend(
            self._spark,
            num_workers,
            threads=threads,
            host=self.host,
            port=self.port,
            heartbeat=self.heartbeat,
            start_timeout=self.start_timeout,
            max_restarts=self.max_restarts,
            idle_timeout=self.idle_timeout,
        )

    def located(self, dataset: Dataset) -> Dataset:
        hosts = find_replica_hosts(self._spark, dataset)
        return dataset.with_hosts(hosts) if hosts else dataset

    def _begin_run(self, job: Job, at: float) -> None:
        make_room(self._context, besides=self)
        super()._begin_run(job, at)

    def make_room(self, context: Any) -> None:
        """Give back the places of tasks that wait for the next run, if the cluster has no other that is free.

        Args:
            context: The SparkContext of the job that needs room.
        """
        parents = self._parents
        if parents is None or context is not self._context or context._jsc is None or not parents.idle:
            return
        if spark_cluster.look(context).slots <= parents.held:
            parents.end_idle()

    def __enter__(self) -> Self:
        add_holder(self)
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            if not self._entered:
                remove_holder(self)


_queues: weakref.WeakKeyDictionary[Any, RunQueue] = weakref.WeakKeyDictionary()
"""Where runs that take a whole cluster wait for each other, by the SparkContext of the cluster."""
_queues_lock = threading.Lock()


def _queue_of(context: Any) -> RunQueue:
    with _queues_lock:
        return _queues.setdefault(context, RunQueue())


def _active_session() -> Any:
    try:
        import pyspark.sql  # noqa: F401 (without it no session is looked for)
    except ImportError as error:
        raise ConfigurationError(
            "SparkBackend needs pyspark, which is not installed: pip install 'cerebro-spark[spark]', or work without"
            " Spark in a LocalBackend"
        ) from error
    session = active_session()
    if session is None:
        raise ConfigurationError(
            "there is no active Spark session: make one with SparkSession.builder.getOrCreate(), and give it as `spark`"
        )
    return session


def _context_of(session: Any) -> Any:
    """The session's SparkContext, of which workers are tasks; ConfigurationError if it has none."""
    try:
        context = session.sparkContext
    except Exception as error:
        module, name, remedy = type(session).__module__, type(session).__name__, "leave it out for the active one"
        if module.startswith("pyspark.sql.connect"):
            name, remedy = f"{module}.{name}", _INSTEAD_OF_CONNECT
        said = f"`spark` is a {name}, but must be a SparkSession with a SparkContext: {remedy}"
        raise ConfigurationError(said) from error
    if context._jsc is None:
        raise ConfigurationError(STOPPED)
    return context
