"""Processes that train units in groups, for tests: each has a trainer of its own. Nothing here asserts."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle

from cerebro_spark.trainer.group import GroupBroken, Meeting

Task = Callable[..., Any]
SECONDS = 120.0


class StoreMeeting(Meeting):
    """A meeting by a TCPStore of PyTorch, which the test's process has.

    Args:
        port: Where the store listens.
        name: Another one for each group.
        rank: The number of this member.
        size: How many there are.
    """

    address = "127.0.0.1"

    def __init__(self, port: int, name: str, rank: int, size: int) -> None:
        distributed: Any = importlib.import_module("torch.distributed")
        store = distributed.TCPStore("127.0.0.1", port, None, False, timeout=timedelta(seconds=SECONDS))
        self._store: Any = distributed.PrefixStore(name, store)
        self.rank, self.size = rank, size
        self.left = threading.Event()

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        while not self._store.check([key]):
            if self.left.wait(0.001):
                raise GroupBroken("this member was told to leave")
        found: bytes = self._store.get(key)
        return found

    def add(self, key: str, amount: int) -> int:
        return int(self._store.add(key, amount))

    def has(self, keys: Sequence[str]) -> bool:
        return bool(self._store.check(list(keys)))


class Members:
    """Some processes, forked from one that has loaded what they need. Each does one task after another.

    Args:
        count: How many.
        preload: The modules that are loaded once. None starts new processes instead, which load what they need.
        environment: Variables that they have.
    """

    def __init__(
        self, count: int, preload: Sequence[str] | None = ("torch",), environment: dict[str, str] | None = None
    ) -> None:
        context: Any = multiprocessing.get_context("spawn" if preload is None else "forkserver")
        if preload is not None:
            context.set_forkserver_preload(list(preload))
        self._context, self._environment = context, environment or {}
        self._groups = 0
        self._members: list[tuple[BaseProcess, Connection]] = []
        distributed: Any = importlib.import_module("torch.distributed")
        self._store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
        for _ in range(count):
            self._start()

    def _start(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self._environment), daemon=True)
        process.start()
        theirs.close()
        self._members.append((process, ours))

    def begin(self, task: Task, *arguments: Any, size: int = 2) -> None:
        """Have the first members do `task(meeting, *arguments)` together."""
        self._groups += 1
        for rank, (_, pipe) in enumerate(self._members[:size]):
            pipe.send_bytes(cloudpickle.dumps((self._store.port, f"group-{self._groups}", rank, size, task, arguments)))

    def take(self, rank: int) -> Any:
        """Wait for what a member has to say: what its task returns or raises, or what it said meanwhile."""
        _, pipe = self._members[rank]
        if not pipe.poll(SECONDS):
            raise TimeoutError(f"member {rank} says nothing")
        done, value = cloudpickle.loads(pipe.recv_bytes())
        if done == "failed":
            raise AssertionError(f"member {rank} failed:\n{value}")
        return value

    def run(self, task: Task, *arguments: Any, size: int = 2) -> list[Any]:
        """Return what `task(meeting, *arguments)` returns at each member."""
        self.begin(task, *arguments, size=size)
        return [self.take(rank) for rank in range(size)]

    def kill(self, rank: int, signal: int) -> None:
        """Send a signal to a member."""
        os.kill(self._members[rank][0].pid or 0, signal)

    def replace(self, rank: int) -> None:
        """Have a new process take the place of a member."""
        process, pipe = self._members[rank]
        process.kill()
        process.join()
        pipe.close()
        self._start()
        self._members[rank] = self._members.pop()

    def close(self) -> None:
        """End all."""
        for process, pipe in self._members:
            pipe.close()
            process.kill()
            process.join()


_pipe: Connection


def say(value: Any) -> None:
    """Tell the test's process something in the middle of a task."""
    _pipe.send_bytes(cloudpickle.dumps(("said", value)))


def _serve(pipe: Connection, environment: dict[str, str]) -> None:
    global _pipe
    _pipe = pipe
    os.environ.update(environment)
    while True:
        try:
            port, name, rank, size, task, arguments = cloudpickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            meeting = StoreMeeting(port, name, rank, size)
            said = "done", task(meeting, *arguments)
        except BaseException:
            said = "failed", traceback.format_exc()
        pipe.send_bytes(cloudpickle.dumps(said))
