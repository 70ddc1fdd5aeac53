"""What runs inside a Spark task: a look around, then a worker in a process of its own. It loads nothing heavy itself.

A process of its own, because Spark uses its Python processes again: threads, devices and compiled graphs of one run
must not be found by the next. When the task is killed the worker sees its standard input close, and goes too.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from cerebro_spark.backend.wire.messages import OutputLine
from cerebro_spark.backend.worker.process import HOST, WorkerProcess
from cerebro_spark.store.base import Store


class TaskSpec(NamedTuple):
    """What a task is to do: start a worker with this pickled WorkerSpec, if these libraries are there."""

    worker: bytes
    libraries: tuple[str, ...]


class MissingLibraries(NamedTuple):
    """The answer of a task that has started no worker: libraries are missing on this host."""

    host: str
    libraries: tuple[str, ...]


def run_task(specs: Iterable[TaskSpec]) -> list[str | MissingLibraries]:
    """Run a worker to its end in a Spark task; return its last words.

    Only a task's first attempt works: the driver does not wait for a retry, or a speculative twin, of a worker.
    """
    from pyspark import BarrierTaskContext, TaskContext

    context: Any = TaskContext.get()
    if context.attemptNumber() > 0:
        return ["(a second attempt of the task: the driver replaces workers itself)"]
    (spec,) = specs
    missing = missing_here(spec.libraries)
    if missing:
        return [MissingLibraries(socket.gethostname(), missing)]
    barrier = isinstance(context, BarrierTaskContext)
    host = context.getTaskInfos()[0].address.partition(":")[0] if barrier else ""
    gpus = context.resources().get("gpu")
    return [*run_worker(spec.worker, host, gpus.addresses if gpus else ())]


def missing_here(libraries: Sequence[str]) -> tuple[str, ...]:
    """Return those of these libraries that cannot be found here; none of them is loaded."""
    return tuple(name for name in libraries if importlib.util.find_spec(name) is None)


def write_probe(store: Store, name: str) -> str | None:
    """Write a blob to see whether that can be done from here; return None if it can, else what went wrong."""
    try:
        store.write(name, b"probe")
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return None


def run_worker(spec: bytes, host: str, gpus: Sequence[str]) -> list[str]:
    """Run a worker to its end in a process of its own; return its last words."""
    ended = threading.Event()
    environment = {HOST: host}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    started: list[WorkerProcess] = []

    def pass_on(line: OutputLine) -> None:
        """Into the executor's own log, and over the worker's connection into the driver's."""
        print(line.text, file=sys.stderr, flush=True)
        for process in started:
            process.relay(line)

    process = WorkerProcess("task", ended.set, environment=environment, on_line=pass_on)
    started.append(process)
    process.give(spec)
    ended.wait()
    return list(process.words)
