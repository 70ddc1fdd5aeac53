"""A cluster of hosts for tests: HDFS and Spark on hosts with links, disks, memory and clocks of their own."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from hadoop.cluster import HadoopCluster
from hadoop.daemon import Daemon
from integration.standalone import SparkDaemon, StandaloneCluster

from hosts.limits import Clock, Disk, Memory, make_clocks, why_no_memory_limits
from hosts.network import Host, Network

TESTS = Path(__file__).resolve().parents[1]
_PLACES = [str(folder) for folder in (TESTS.parents[1], TESTS, TESTS / "integration")]
# What a host has: the services take a third of the memory, and a worker with PyTorch as much again. The name node keeps
# room on a disk, for up to twenty minutes, for a block of each file that somebody began there and left.
DISK, MEMORY = 1024, 2560


class Hosts:
    """Two hosts for drivers, one with the name node and Spark's master, and some with a data node and a Spark worker.

    Args:
        folder: Where all files are.
        workers: How many hosts have a data node and a Spark worker. Defaults to 4.
    """

    def __init__(self, folder: Path, workers: int = 4) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._started = 0
        self._names = ["driver", "other", "master", *(f"worker{number}" for number in range(workers))]
        self.python = folder / "python"
        self.network: Network
        self.hdfs: HadoopCluster
        self.spark: StandaloneCluster

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.network = stack.enter_context(Network(self._names))
            self._write_python(self._equip(stack))
            master, workers = self.network["master"], self.workers
            disks = {host.address: host.disk.folder / "hdfs" for host in workers if host.disk is not None}
            self.hdfs = stack.enter_context(
                HadoopCluster(self._folder / "hdfs", replication=2, places=[master, *workers], disks=disks)
            )
            environments = {host.address: _environment(host) for host in workers}
            self.spark = StandaloneCluster(
                self._folder, workers, master=master, environments=environments, patient=True
            )
            stack.enter_context(self.spark)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not `close`: an error while all is cleaned away would hide the one that is on its way.
        self._stack.__exit__(kind, error, trace)

    @property
    def workers(self) -> list[Host]:
        return [host for host in self.network.hosts if host.name.startswith("worker")]

    def host_of(self, address: str) -> Host:
        return next(host for host in self.network.hosts if host.address == address)

    def services_of(self, host: Host) -> tuple[Daemon, SparkDaemon]:
        """The data node and the Spark worker of a host."""
        datanode = next(node for node in self.hdfs.datanodes if node.host == host.address)
        return datanode, self.spark.workers[host.address]

    def mend(self) -> None:
        """End all faults: links, disks and clocks are well, and the services run that are to run."""
        for host in self.network.hosts:
            host.heal()
            if host.disk is not None:
                host.disk.free()
            if host.clock is not None:
                host.clock.set_right()
        if not self.hdfs.namenode.running:
            self.hdfs.namenode.start()
        for host in self.workers:
            for service in self.services_of(host):
                service.start()  # nothing is done where it runs
        self.hdfs.wait_live(len(self.hdfs.datanodes))
        self.hdfs.wait_writable()
        self.spark.wait_alive(len(self.workers))

    @contextlib.contextmanager
    def driving(self, what: str, run: str, on: str = "driver", *more: str) -> Iterator[Driver]:
        """A driver on a host. It is killed at the end of the block if it is still there."""
        driver = self.start_driver(what, run, on, *more)
        try:
            yield driver
        finally:
            driver.kill()

    def start_driver(self, what: str, run: str, on: str = "driver", *more: str) -> Driver:
        where = [] if what == "check" else [self.spark.url, self.network[on].address]
        return self.start("hosts.driver", on, what, f"{self.hdfs.url}/{run}", run, *where, *more)

    def start(self, module: str, on: str, *arguments: str) -> Driver:
        """Start a program on a host, which tells on standard output what happens."""
        host = self.network[on]
        command, environment = [sys.executable, "-m", module, *arguments], self.environment(host)

        def start() -> subprocess.Popen[str]:
            return subprocess.Popen(
                command,
                env=environment,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )

        self._started += 1
        return Driver(host.call(start), host, self._folder / "hosts" / f"{self._started:03}-{module}.log")

    def environment(self, host: Host) -> dict[str, str]:
        """What a program of the tests finds in its environment on a host."""
        return {
            **os.environ,
            **_environment(host),
            **_preloaded(host),
            "PYTHONPATH": os.pathsep.join(_PLACES),
            "SPARK_LOCAL_IP": host.address,
            "HOSTS_PYTHON": str(self.python),
        }

    def _equip(self, stack: contextlib.ExitStack) -> Path | None:
        """Give workers and drivers a clock, and workers a disk and a limit of their memory, where that is possible.

        Return what processes load for the clock.
        """
        limits_memory = not why_no_memory_limits()
        (self._folder / "hosts").mkdir(parents=True)
        library = make_clocks(self._folder / "hosts")
        for host in self.network.hosts:
            if host.name == "master":
                continue
            if library is not None:
                host.clock = Clock(self._folder / "hosts" / f"{host.name}-clock", library)
            if host in self.workers:
                host.disk = stack.enter_context(Disk(self._folder / "hosts" / host.name, DISK))
                if limits_memory:
                    host.memory = stack.enter_context(Memory(f"{self.network.mark}-{host.name}", MEMORY))
        return library

    def _write_python(self, clock: Path | None) -> None:
        """Write what executors run instead of Python: its time is that of the host, but Java's is not.

        Java waits until some time of the clock now and then: such a wait would last as long as the clock has jumped.
        """
        load = "" if clock is None else f"export LD_PRELOAD={clock}\n"
        self.python.write_text(f'#!/bin/sh\n{load}exec {sys.executable} "$@"\n')
        self.python.chmod(0o755)


def _environment(host: Host) -> dict[str, str]:
    """What processes of a host find in their environment."""
    found = {} if host.clock is None else dict(host.clock.settings)
    if host.disk is not None:
        temporary = host.disk.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        found |= {
            "TMPDIR": str(temporary),
            "SPARK_LOCAL_DIRS": str(temporary),
            "CEREBRO_SPARK_CACHE": str(host.disk.folder / "cache"),
            "CEREBRO_SPARK_CACHE_MEMORY": str(host.disk.folder / "shared-memory"),
        }
    return found


def _preloaded(host: Host) -> dict[str, str]:
    return {} if host.clock is None else host.clock.loading


class Driver:
    """A driver that tells what happens, and can be waited for.

    Args:
        process: Its process.
        host: The host that it is on.
        transcript: A file for all that it tells, each line with the time when it was read.

    Attributes:
        told: The lines that were waited for or passed over, so far.
    """

    def __init__(self, process: subprocess.Popen[str], host: Host, transcript: Path) -> None:
        self.process = process
        self.host = host
        self._transcript = transcript
        self.told: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, name="reads what a driver tells", daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as told, self._transcript.open("w") as transcript:
            for line in told:
                print(f"{time.monotonic():.3f}", line, end="", file=transcript, flush=True)
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def next_line(self, seconds: float) -> str | None:
        """Return the next line that it tells; None if there is none in time. Raises EOFError if it has ended."""
        try:
            line = self._lines.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None
        if line is None:
            self._lines.put(None)
            raise EOFError("the driver has ended")
        self.told.append(line)
        return line

    def wait_for(self, word: str, count: int = 1, seconds: float = 240.0) -> str:
        """Wait until it has told so many more lines that begin with a word, and return the last of these."""
        end = time.monotonic() + seconds
        while True:
            try:
                line = self.next_line(end - time.monotonic())
            except EOFError:
                pytest.fail(f"it ended before {word!r}; it told\n" + "\n".join(self.told[-60:]))
            if line is None:
                pytest.fail(f"no {word!r} within {seconds:g} s; it told\n" + "\n".join(self.told[-60:]))
            count -= line.startswith(f"{word} ") or line == word
            if not count:
                return line

    def lines(self, word: str) -> list[str]:
        return [line for line in self.told if line.startswith(f"{word} ")]

    def joined(self, worker: str) -> Sequence[str]:
        """What it told when a worker came: the word, its name, when, and the address of its host."""
        return next(line.split() for line in self.lines("joined") if line.split()[1] == worker)

    def say(self, line: str) -> None:
        """Tell it something."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """Kill it, if it is still there."""
        assert self.process.stdin is not None
        self.process.kill()
        self.process.wait(60)
        self.process.stdin.close()
