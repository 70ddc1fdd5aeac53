"""Starts workers as Spark tasks: each is a job of its own, so that losing one worker loses no other.

It never polls: a job that ends says so through its thread, and the workers are heard over their connections.
"""

from __future__ import annotations

import logging
import time
import uuid
from dataclasses import replace
from typing import Any, NamedTuple

import cloudpickle

from cerebro_spark.backend.driver import spark_cluster
from cerebro_spark.backend.driver.launcher import HubAddress, Launcher, ProcessWatcher
from cerebro_spark.backend.driver.spark_cluster import Cluster
from cerebro_spark.backend.driver.workers import WorkerHandle
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wire.messages import Hello, StartTrouble
from cerebro_spark.backend.worker.parent import ParentSpec
from cerebro_spark.backend.worker.session import WorkerSpec
from cerebro_spark.backend.worker.spark_task import MissingLibraries, TaskSpec, run_task
from cerebro_spark.data.cluster import explain_missing_package
from cerebro_spark.errors import BackendError, StoreError
from cerebro_spark.store import paths
from cerebro_spark.types import WorkerId

_log = logging.getLogger(__name__)
STOPPED = "the Spark session was stopped: make a new one, and a new SparkBackend of it"


class SparkLauncher(Launcher):
    """Starts each worker as a Spark job with one barrier task; with a plain task under dynamic allocation.

    Args:
        context: The SparkContext.
        threads: Threads of a worker whose job asks for no number.
        address: Where the driver listens, and the host that workers dial.
    """

    keeps = True
    echoes = True
    _cluster: Cluster
    _job: Job
    _libraries: tuple[str, ...]

    def __init__(self, context: Any, threads: int, address: HubAddress) -> None:
        self._context = context
        self._threads = threads
        self.hub_address = address
        self._probes: set[str] = set()
        self._launches: dict[WorkerId, Moment] = {}
        """When the jobs began that have not ended yet."""

    def prepare(self, job: Job, num_workers: int) -> None:
        self._check_session()
        self._cluster = spark_cluster.check(self._context, num_workers)
        if job.trainer.resources.threads is not None:
            spark_cluster.advise(self._cluster, job.trainer.resources.threads)
        self._libraries = spark_cluster.libraries_of(job)
        self._job = job
        self._hide_console_progress()

    def check_addition(self, count: int, there: int) -> None:
        self._check_session()
        most = spark_cluster.most_slots(self._context)
        if most is not None and there + count > most:
            fix = f"add at most {most - there}" if there < most else "remove others before"
            raise BackendError(
                f"`workers` is {count}, but {self._cluster.master} has room for {most} tasks at a time, and the run has"
                f" {there} workers: {fix}, or give Spark more executors first"
            )

    def job_for(self, name: WorkerId, job: Job) -> Job:
        return replace(job, trainer=job.trainer.with_resources(threads=job.trainer.resources.threads or self._threads))

    def probe(self) -> str:
        # Beside the run, not in it: a worker that is killed may write it after its run was cleared away.
        name = paths.probe(uuid.uuid4().hex)
        self._probes.add(name)
        return name

    def launch(self, handle: WorkerHandle, spec: WorkerSpec | ParentSpec, watcher: ProcessWatcher) -> None:
        from pyspark import InheritableThread

        self._check_session()
        handle.launched = f"cerebro-{self._job.run}-{handle.name}"
        self._launches[handle.name] = Moment.now()
        task = TaskSpec(cloudpickle.dumps(spec), self._libraries)
        # And not inheritable_thread_target, which warns on Spark 4 unless it gets a session, as 3.5 does not take one.
        arguments = (handle, task, watcher)
        InheritableThread(target=self._run_job, args=arguments, name=f"job-{handle.name}", daemon=True).start()

    def kill(self, handle: WorkerHandle) -> None:
        if handle.launched is None:
            return
        try:
            self._context.cancelJobGroup(handle.launched)
        except Exception as error:
            # The session may be stopped already, and with it all its jobs.
            _log.debug("the job of worker %s could not be cancelled: %s", handle.name, error)

    def seconds_running(self, handle: WorkerHandle) -> float | None:
        task, began = self._task_of(handle), self._launches.get(handle.name)
        if task is None:
            return None
        now = Moment.now()
        return now.seconds_since(task.launchTime().getTime() / 1000, began or now)

    def host_of(self, handle: WorkerHandle) -> str | None:
        # A worker knows only the address it dials from; blocks are on hosts as Spark's scheduler calls them.
        task = self._task_of(handle)
        return None if task is None else str(task.host())

    def check_joined(self, hello: Hello) -> None:
        """Check that the driver sees what the worker wrote."""
        for trouble in spark_cluster.unseen(self._job.store, [str(hello.probe)]):
            raise BackendError(trouble)
        self._probes.discard(str(hello.probe))

    def tidy(self) -> None:
        while self._probes:
            name = self._probes.pop()
            try:
                self._job.store.delete(name)
            except StoreError as error:
                _log.debug("%s stays in the store: %s", name, error)

    def explain(self, host: str, trouble: StartTrouble) -> str:
        return spark_cluster.explained(host, trouble, self._job.store)

    def _check_session(self) -> None:
        if self._context._jsc is None:
            raise BackendError(f"{STOPPED}; a run that was under way goes on with cs.resume")

    def _hide_console_progress(self) -> None:
        """Stop Spark's bars: there would be one for each worker's stage, and none would ever move."""
        bar = self._context._jsc.sc().progressBar()
        if bar.isDefined():
            bar.get().stop()

    def _run_job(self, handle: WorkerHandle, task: TaskSpec, watcher: ProcessWatcher) -> None:
        """Run a worker's job to its end, in a thread of its own: however it ends, the worker is gone then."""
        try:
            self._context.setJobGroup(handle.launched, f"worker {handle.name}", interruptOnCancel=True)
            rdd = self._context.parallelize([task], 1)
            with explain_missing_package():
                said = (rdd if self._cluster.dynamic else rdd.barrier()).mapPartitions(run_task).collect()
            handle.words.extend(word for word in said if not isinstance(word, MissingLibraries))
            for missing in (word for word in said if isinstance(word, MissingLibraries)):
                watcher.refused(handle, spark_cluster.lacking(missing.host, missing.libraries))
        except BackendError as error:
            watcher.refused(handle, str(error))
        except Exception as error:
            _log.debug("the job of worker %s ended: %s", handle.name, error)
            handle.words.extend(_python_lines(error))
            if taken_away(str(error)):
                watcher.loss_explained(handle, "its executor was taken away")
        finally:
            self._launches.pop(handle.name, None)
            watcher.ended(handle)

    def _task_of(self, handle: WorkerHandle) -> Any:
        """Return what Spark's scheduler knows of the worker's task; None while that waits for a place."""
        if handle.launched is None:
            return None
        tracker, store = self._context.statusTracker(), self._context._jsc.sc().statusStore()
        jobs = [tracker.getJobInfo(number) for number in tracker.getJobIdsForGroup(handle.launched)]
        for stage in (number for job in jobs if job is not None for number in job.stageIds):
            tasks = store.taskList(stage, 0, 1)
            if tasks.size():
                return tasks.apply(0)
        return None


class Moment(NamedTuple):
    """A moment by the wall clock, which may jump, and by one that does not.

    Attributes:
        wall: Seconds since 1970.
        steady: Seconds since some time.
    """

    wall: float
    steady: float

    @classmethod
    def now(cls) -> Moment:
        """Return this moment."""
        return cls(time.time(), time.monotonic())

    def seconds_since(self, wall: float, began: Moment) -> float:
        """Return how long ago something happened whose wall clock is known, also if that has jumped since.

        Args:
            wall: When it happened.
            began: A moment before it.

        >>> began = Moment(1000.0, 50.0)
        >>> Moment(1030.0, 80.0).seconds_since(1010.0, began)
        20.0
        >>> Moment(4630.0, 80.0).seconds_since(1010.0, began)  # an hour ahead, all of a sudden
        20.0
        >>> Moment(-2570.0, 80.0).seconds_since(1010.0, began)
        20.0
        """
        most, seconds = self.steady - began.steady, self.wall - wall
        if not 0 <= seconds <= most:
            seconds -= self.wall - began.wall - most
        return min(max(seconds, 0.0), most)


def taken_away(error: str) -> bool:
    """Return whether Spark says that an executor was lost for a reason of its own: preempted, its node gone, ...

    >>> taken_away("ExecutorLostFailure (executor 1 exited unrelated to the running tasks) Reason: preempted")
    True
    >>> taken_away("ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: out of memory")
    False
    """
    return "ExecutorLostFailure" in error and "unrelated to the running tasks" in error


def _python_lines(error: Exception) -> list[str]:
    """Return the lines of a Spark error that are not the JVM's stack."""
    lines = str(error).splitlines()
    return [line for line in lines if not line.lstrip().startswith(("at ", "... "))][:40]
