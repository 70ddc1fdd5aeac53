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

from cerebro_spark.backend.child import HOST, Child
from cerebro_spark.backend.speech import Said


class Errand(NamedTuple):
    """What a task is sent to do: start a worker with this posting, where these libraries are."""

    posting: bytes
    libraries: tuple[str, ...]


class Lacking(NamedTuple):
    """What a task says that has started no worker: libraries are missing on this host."""

    host: str
    libraries: tuple[str, ...]


def run_errand(errands: Iterable[Errand]) -> list[str | Lacking]:
    """The body of the task, for the whole life of a worker; its last words are what the job returns.

    Only a task's first attempt works: a retry, or a speculative twin, of a worker is nobody the driver waits for.
    """
    from pyspark import BarrierTaskContext, TaskContext

    context: Any = TaskContext.get()
    if context.attemptNumber() > 0:
        return ["(a second attempt of the task: the driver replaces workers itself)"]
    (errand,) = errands
    missing = missing_here(errand.libraries)
    if missing:
        return [Lacking(socket.gethostname(), missing)]
    barrier = isinstance(context, BarrierTaskContext)
    host = context.getTaskInfos()[0].address.partition(":")[0] if barrier else ""
    gpus = context.resources().get("gpu")
    return [*run_worker(errand.posting, host, gpus.addresses if gpus else ())]


def missing_here(libraries: Sequence[str]) -> tuple[str, ...]:
    """Those of these libraries that cannot be found here; none of them is loaded."""
    return tuple(name for name in libraries if importlib.util.find_spec(name) is None)


def run_worker(posting: bytes, host: str, gpus: Sequence[str]) -> list[str]:
    """Run a worker to its end; returns its last words."""
    ended = threading.Event()
    environment = {HOST: host}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    made: list[Child] = []

    def say(said: Said) -> None:
        """Into the executor's own log, and by the worker's wire into the driver's."""
        print(said.text, file=sys.stderr, flush=True)
        for child in made:
            child.relay(said)

    child = Child("task", ended.set, environment=environment, say=say)
    made.append(child)
    child.post(posting)
    ended.wait()
    return list(child.words)
