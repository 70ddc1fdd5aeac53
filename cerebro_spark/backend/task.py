"""A worker inside a Spark task: a process of its own, whose parent is the task. It knows nothing of Spark.

A process of its own, because Spark uses its Python processes again: threads, devices and compiled graphs of one run
must not be found by the next. When the task is killed the worker sees its standard input close, and goes too.
"""

from __future__ import annotations

import sys
import threading

from cerebro_spark.backend.child import Child
from cerebro_spark.backend.worker import HOST


def run_task(posting: bytes, attempt: int, host: str, gpus: list[str]) -> list[str]:
    """Run a worker to its end; returns its last words.

    Only a task's first attempt works: a retry, or a speculative twin, of a worker is nobody the driver waits for.
    """
    if attempt > 0:
        return ["(a second attempt of the task: the driver replaces workers itself)"]
    ended = threading.Event()
    environment = {HOST: host}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    child = Child("task", ended.set, environment=environment, say=lambda line: print(line, file=sys.stderr, flush=True))
    child.post(posting)
    ended.wait()
    return list(child.words)
