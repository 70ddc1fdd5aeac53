"""Simulations in copies of this process: the log is repeated once, and every copy goes on from there its own way.

A copy costs no more than what it changes in memory. It only computes, and answers through a pipe: it never touches a
store, and ends without what processes do at their end.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Callable, Sequence
from dataclasses import asdict

from cerebro_spark.forecast.continuation import Continuation, SimulatedEnd, Simulation

_FAILED = SimulatedEnd(None, reason="a simulation of the rest of the run failed")


def in_copies(
    run: Continuation, check: Callable[[], None] = lambda: None, wake: Sequence[int] = ()
) -> Callable[[Sequence[Simulation]], list[SimulatedEnd]]:
    """Return a way to simulate that leaves `run` as it is: each simulation has a copy of this process.

    Args:
        run: The run as it stands.
        check: Called whenever one of `wake` can be read; it may raise to end the simulation that goes on.
        wake: File descriptors to look at while a simulation goes on.
    """
    return lambda plans: [_in_copy(run, plan, check, wake) for plan in plans]


def _in_copy(run: Continuation, plan: Simulation, check: Callable[[], None], wake: Sequence[int]) -> SimulatedEnd:
    reading, writing = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _be_the_copy(run, plan, writing, parent)
    os.close(writing)
    try:
        return _answer(_read(reading, check, wake))
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # it has answered, or is not wanted any more
        os.waitpid(child, 0)


def _be_the_copy(run: Continuation, plan: Simulation, writing: int, parent: int) -> None:
    code = 1
    try:
        run.watch_with(lambda: _end_without(parent))
        os.write(writing, json.dumps(asdict(run.finish(plan))).encode())
        code = 0
    finally:
        os._exit(code)


def _end_without(parent: int) -> None:
    if os.getppid() != parent:
        os._exit(1)


def _read(reading: int, check: Callable[[], None], wake: Sequence[int]) -> bytes:
    data = b""
    while True:
        ready, _, _ = select.select([reading, *wake], [], [])
        if reading in ready:
            part = os.read(reading, 1 << 16)
            if not part:
                return data
            data += part
        if any(descriptor in ready for descriptor in wake):
            check()


def _answer(data: bytes) -> SimulatedEnd:
    return SimulatedEnd(**json.loads(data)) if data else _FAILED
