"""A worker's session with its driver: it joins, shows that it is alive, and passes on orders. It carries out none.

Three threads: the main one does the work, in the order in which it was given; one listens to the driver; one sends
heartbeats.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import cloudpickle

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.wire.connection import DriverConnection
from cerebro_spark.backend.wire.credentials import Credentials
from cerebro_spark.backend.wire.messages import Heartbeat, Hello, MessageError, OutputLine, StartTrouble, unpack_report
from cerebro_spark.backend.worker.ahead import AheadSpec
from cerebro_spark.backend.worker.process import HOST
from cerebro_spark.backend.worker.spark_task import write_probe
from cerebro_spark.backend.worker.worker import Worker
from cerebro_spark.errors import BackendError
from cerebro_spark.store import references
from cerebro_spark.store.base import Store


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """What a worker process is started with. The job is pickled, so that a worker that cannot load it can still say so.

    Attributes:
        address: Host and port of the driver.
        credentials: What it shows to the driver.
        name: The worker's name.
        job: What it works on, pickled, with references in place of stores.
        beat: Seconds between two heartbeats.
        timeout: Seconds that connecting may take.
        probe: The name of a blob that it writes into the store first, to show that it can; None for none.
        stores: The list of stores that the job refers to, pickled.
        session: The session of the driver's switchboard that it joins.
        framework: What its trainer is made with, if that is known: "torch" or "keras".
        kind: Workers of one kind may be started one after another by the same parent; "" if none may.
        cache: The arguments of its cache of partitions.
        leaves_cache: Whether partitions stay in the cache when it ends: its parent deletes them when it ends itself.
        ahead: What the next process of its kind does before it has a job; None for nothing.
    """

    address: tuple[str, int]
    credentials: Credentials
    name: str
    job: bytes
    beat: float = 5.0
    timeout: float = 30.0
    probe: str | None = None
    stores: bytes = b""
    session: str = ""
    framework: str | None = None
    kind: str = ""
    cache: Mapping[str, Any] = field(default_factory=dict)
    leaves_cache: bool = False
    ahead: AheadSpec | None = None


class PackedJob(NamedTuple):
    """A job as it travels. Its stores are apart, because these may have credentials."""

    job: bytes
    stores: bytes


def pack_job(job: Job, name: str) -> PackedJob:
    """Return a job as it travels. Raises BackendError that says what cannot."""
    try:
        data, stores = references.dumps(job)
        return PackedJob(data, cloudpickle.dumps(stores))
    except Exception as error:
        raise BackendError(f"what worker {name} needs cannot be sent to it: {error}") from error


def unpack_job(packed: PackedJob) -> Job:
    """Return the job; its stores are unpickled only if it refers to any."""
    stores: list[Store] = []

    def resolve(reference: references.Reference) -> Store:
        if not stores:
            stores.extend(cloudpickle.loads(packed.stores))
        return stores[reference.number]

    job: Job = references.loads(packed.job, resolve)
    return job


class OutputRelay:
    """Sends lines to the driver that the parent process read from this one's output, and cannot send itself."""

    connection: DriverConnection | None = None

    def __call__(self, raw: bytes) -> None:
        if self.connection is not None:
            with contextlib.suppress(OSError, WireError):
                line = unpack_report(raw)
                if isinstance(line, OutputLine):
                    self.connection.send(line)


def serve(spec: WorkerSpec, relay: OutputRelay, accept: Callable[[], None] = lambda: None) -> None:
    """Work until the driver says stop, or hangs up; once joined, have the relay send what the parent read.

    Args:
        spec: What the worker is.
        relay: Sends lines.
        accept: Called once the job is loaded, before anybody is told; it may end a process that is not fit for it.
    """
    # Before dialling: functions may load whole frameworks, and the driver would take the silence for death.
    job = _load_job(spec, accept)
    connection = DriverConnection(spec.address, spec.credentials, spec.timeout, silence=8 * spec.beat)
    # The name by which others say where data lies, if the parent knows it.
    host = os.environ.get(HOST) or socket.gethostname()
    hello = Hello(spec.name, host, os.getpid(), probe=spec.probe, session=spec.session)
    if isinstance(job, StartTrouble):
        connection.send(replace(hello, trouble=job))
        connection.close()
        return
    connection.send(replace(hello, threads=job.trainer.resources.threads or 0))
    relay.connection = connection
    work_for(job, connection, spec)


def work_for(job: Job, connection: DriverConnection, spec: WorkerSpec) -> None:
    """Work on this job until the driver says stop, or hangs up; the worker has joined already."""
    address = connection.own_address
    worker = Worker(spec.name, job, connection.send, leaves_cache=spec.leaves_cache, address=address)
    stopped = threading.Event()
    threading.Thread(target=_beat, args=(connection, spec.beat, stopped), daemon=True).start()
    threading.Thread(target=_listen, args=(connection, worker), name=f"listen-{spec.name}", daemon=True).start()
    try:
        worker.warm_up()
        worker.work()
    finally:
        stopped.set()
        connection.close()


def _load_job(spec: WorkerSpec, accept: Callable[[], None]) -> Job | StartTrouble:
    """Return the job, or what prevents it: functions that cannot be loaded here, or a store that cannot be written."""
    try:
        job = unpack_job(PackedJob(spec.job, spec.stores))
    except Exception as error:
        return StartTrouble("functions", f"{type(error).__name__}: {error}")
    finally:
        accept()  # before the probe: another process for the same job must be able to write it
    refusal = None if spec.probe is None else write_probe(job.store, spec.probe)
    return job if refusal is None else StartTrouble("store", refusal)


def _beat(connection: DriverConnection, seconds: float, stopped: threading.Event) -> None:
    while not stopped.wait(seconds):
        try:
            connection.send(Heartbeat())
        except (OSError, WireError):
            return  # the listener sees the same and ends the worker


def _listen(connection: DriverConnection, worker: Worker) -> None:
    try:
        while True:
            for order in connection.receive():
                worker.take(order)
    except (OSError, WireError) as error:
        if isinstance(error, MessageError):
            print(f"the driver cannot be understood: {error}", file=sys.stderr)
        worker.abandon()
