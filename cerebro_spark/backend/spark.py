"""Workers as long-lived Spark tasks: each is a job of its own, so that one lost worker is one lost worker.

It looks at the cluster before anything is launched. It never polls: a job that ends says so through its thread, and the
workers themselves are heard over their wires.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cloudpickle

from cerebro_spark.backend import cluster
from cerebro_spark.backend.hand import Hand
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.spark_task import Errand, Lacking, run_errand
from cerebro_spark.backend.wire import Message
from cerebro_spark.backend.wired import WiredBackend
from cerebro_spark.backend.worker import Posting
from cerebro_spark.checks import check_whole
from cerebro_spark.data.cluster import explain_missing_package, find_replica_hosts, use_this_python
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import BackendError, ConfigurationError
from cerebro_spark.store import paths
from cerebro_spark.types import WorkerId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_STOPPED = "the Spark session was stopped: make a new one, and a new SparkBackend of it"


class SparkBackend(WiredBackend):
    """One Spark task a worker, for as long as a run lasts.

    `spark` is the active session if not given, `num_workers` as many as the cluster has free places for tasks. Each
    worker is its own Spark job with one barrier stage of one task; a plain task where dynamic allocation is on, which
    barrier stages do not allow. `threads` are those of one worker; `spark.task.cpus` if not given. Workers dial
    `host` (the driver's own if not given) on `port` (any free one if 0; fix it where a firewall stands between).

    For `heartbeat`, `start_timeout` and `max_restarts` see LocalBackend.

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
    ) -> None:
        self._spark: Any = spark if spark is not None else _active_session()
        self._context = _context_of(self._spark)
        use_this_python(self._context)
        self._cluster = cluster.look(self._context) if num_workers is not None else cluster.settled(self._context)
        super().__init__(
            num_workers if num_workers is not None else max(1, self._cluster.slots),
            heartbeat=heartbeat,
            start_timeout=start_timeout,
            max_restarts=max_restarts,
        )
        if threads is not None:
            check_whole("threads", threads)
        if not 0 <= port <= 65535:
            raise ConfigurationError(f"`port` is {port}, but must be 0 (any free one) or a number up to 65535")
        self.threads = threads or self._cluster.task_cpus
        cluster.advise(cluster.check(self._context, self.num_workers), self.threads)
        self.host = host or self._cluster.driver_host
        self.port = port

    def located(self, dataset: Dataset) -> Dataset:
        hosts = find_replica_hosts(self._spark, dataset)
        return dataset.with_hosts(hosts) if hosts else dataset

    # -- what this kind of backend says

    def _where(self) -> tuple[str, int, str]:
        return self._cluster.bind_address, self.port, self.host

    def _check(self, job: Job) -> None:
        self._check_session()
        self._cluster = cluster.check(self._context, self.num_workers)
        if job.resources.threads is not None:
            cluster.advise(self._cluster, job.resources.threads)
        self._libraries = cluster.libraries_of(job)
        self._hide_console_progress()

    def _check_session(self) -> None:
        if self._context._jsc is None:
            raise BackendError(f"{_STOPPED}; a run that was under way goes on with cs.resume")

    def _hide_console_progress(self) -> None:
        """Spark would draw a bar for each worker's stage, over everything else, and none of them would ever move."""
        bar = self._context._jsc.sc().progressBar()
        if bar.isDefined():
            bar.get().stop()

    def _job_of(self, name: WorkerId, job: Job) -> Job:
        return replace(job, resources=replace(job.resources, threads=job.resources.threads or self.threads))

    def _launch(self, hand: Hand, posting: Posting) -> None:
        from pyspark import InheritableThread

        assert self._job is not None
        self._check_session()
        hand.launched = f"cerebro-{self._job.run}-{hand.name}"
        errand = Errand(cloudpickle.dumps(posting), self._libraries)
        # And not inheritable_thread_target, which warns on Spark 4 unless it gets a session, as 3.5 does not take one.
        InheritableThread(target=self._run_job, args=(hand, errand), name=f"job-{hand.name}", daemon=True).start()

    def _run_job(self, hand: Hand, errand: Errand) -> None:
        """Run a worker's job to its end, in a thread of its own: whatever it ends with, the worker is gone then."""
        try:
            self._context.setJobGroup(hand.launched, f"worker {hand.name}", interruptOnCancel=True)
            rdd = self._context.parallelize([errand], 1)
            with explain_missing_package():
                said = (rdd if self._cluster.dynamic else rdd.barrier()).mapPartitions(run_errand).collect()
            hand.words.extend(word for word in said if not isinstance(word, Lacking))
            for lacking in (word for word in said if isinstance(word, Lacking)):
                self._trouble(hand, cluster.lacking(lacking.host, lacking.libraries))
        except BackendError as error:
            self._trouble(hand, str(error))
        except Exception as error:
            _log.debug("the job of worker %s ended: %s", hand.name, error)
            hand.words.extend(_short(error))
            if taken_away(str(error)):
                self._explain(hand, "its executor was taken away")
        finally:
            self._gone(hand)

    def _hurry(self, hand: Hand) -> None:
        """A worker's time counts from when its task began; one without a place is waited for as long as others work."""
        waiting = hand.peer is None and not hand.ended.is_set() and not self._closing
        task = self._task_of(hand) if waiting else None
        if task is None:
            left = self.start_timeout if waiting and self.workers else 0.0
        else:
            left = self.start_timeout - (time.time() - task.launchTime().getTime() / 1000)
        if not waiting or left <= 0:
            super()._hurry(hand)
            return
        again = threading.Timer(left, self._hurry, [hand])
        again.daemon = True
        again.start()

    def _welcome(self, peer: int, message: Message) -> None:
        """A worker knows only the address it dials from; blocks are on hosts as Spark's scheduler calls them."""
        hand = self._hands.get(str(message.get("name")))
        task = self._task_of(hand) if hand is not None else None
        super()._welcome(peer, message if task is None else {**message, "host": str(task.host())})
        if hand is not None and hand.peer == peer:
            self._hiring.submit(self._look_for, str(message["probe"]))

    def _look_for(self, probe: str) -> None:
        """Whether the driver sees what a worker wrote; the run cannot go on if not."""
        assert self._job is not None
        for trouble in cluster.unseen(self._job.store, [probe]):
            self._fail(BackendError(trouble))

    def _probe(self, job: Job) -> str:
        # Beside the run, not in it: one that is killed may write it after its run was cleared away.
        return paths.probe(uuid.uuid4().hex)

    def _explained(self, host: str, trouble: Mapping[str, str]) -> str:
        assert self._job is not None
        return cluster.explained(host, trouble, self._job.store)

    def _task_of(self, hand: Hand) -> Any:
        """What Spark's scheduler says of the worker's task; None while that waits for a place."""
        tracker, store = self._context.statusTracker(), self._context._jsc.sc().statusStore()
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(hand.launched)]
        for stage in (number for job in jobs if job is not None for number in job.stageIds):
            tasks = store.taskList(stage, 0, 1)
            if tasks.size():
                return tasks.apply(0)
        return None

    def _kill(self, hand: Hand) -> None:
        if hand.launched is None:
            return
        try:
            self._context.cancelJobGroup(hand.launched)
        except Exception as error:
            # The session may be stopped already, and with it all its jobs.
            _log.debug("the job of worker %s could not be cancelled: %s", hand.name, error)


def taken_away(error: str) -> bool:
    """Whether Spark says that an executor was lost for a reason of its own: preempted, decommissioned, its node gone.

    >>> taken_away("ExecutorLostFailure (executor 1 exited unrelated to the running tasks) Reason: preempted")
    True
    >>> taken_away("ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: out of memory")
    False
    """
    return "ExecutorLostFailure" in error and "unrelated to the running tasks" in error


def _active_session() -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigurationError(
            "SparkBackend needs pyspark, which is not installed: pip install 'cerebro-spark[spark]', or work without"
            " Spark in a LocalBackend"
        ) from error
    session = SparkSession.getActiveSession()
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
        kind = type(session)
        connect = kind.__module__.startswith("pyspark.sql.connect")
        remedy = (
            "Spark Connect gives no access to its cluster's tasks: run the search in a classic session, such as that"
            " of spark-submit"
            if connect
            else "leave it out for the active one"
        )
        raise ConfigurationError(
            f"`spark` is a {f'{kind.__module__}.' if connect else ''}{kind.__name__}, but must be a SparkSession with a"
            f" SparkContext: {remedy}"
        ) from error
    if context._jsc is None:
        raise ConfigurationError(_STOPPED)
    return context


def _short(error: Exception) -> list[str]:
    """The lines of a Spark error that say something: those of Python, not the JVM's stack."""
    lines = str(error).splitlines()
    return [line for line in lines if not line.lstrip().startswith(("at ", "... "))][:40]
