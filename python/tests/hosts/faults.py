"""What can go wrong with the hosts of a test while a run goes on. Each fault ends by itself, and none helps the run.

A fault is a function of a stage: it strikes, lasts, and says in a few words whom it struck. Whether the run survived it
is for others to find out.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hosts.cluster import Hosts
from hosts.limits import end
from hosts.network import Host, kill

HOUR = 3600


@dataclass
class Stage:
    """Where faults happen.

    Attributes:
        hosts: The hosts.
        driver: The host of the driver.
        heartbeat: Seconds after which the driver gives up a worker that says nothing.
        folder: The folder of the store, as an absolute path of HDFS.
        chance: What is chosen by chance comes from it.
        busy: Returns the hosts that have a worker of the run.
        last: Lets a fault last so many seconds, while what the driver tells is read.
        meanwhile: Does something that takes its time, while what the driver tells is read; returns what it returns.
    """

    hosts: Hosts
    driver: Host
    heartbeat: float
    folder: str
    chance: random.Random
    busy: Callable[[], list[Host]]
    last: Callable[[float], None]
    meanwhile: Callable[[Callable[[], object]], None]

    def worker_host(self) -> Host:
        """A host, mostly one that has a worker of the run."""
        return self.chance.choice([*self.busy(), self.chance.choice(self.hosts.workers)])

    def short(self) -> float:
        """How long a fault lasts that nobody is given up for."""
        return self.chance.uniform(0.2, 0.5) * self.heartbeat

    def long(self) -> float:
        """How long one lasts for which workers are given up."""
        return self.heartbeat + self.chance.uniform(0.5, 2.5)


Fault = Callable[[Stage], str]

# -- processes


def executors_of(host: Host) -> list[int]:
    """Return the executors of a host."""
    return [number for number, command in _commands(host) if b"CoarseGrainedExecutorBackend" in command]


def pythons_of(host: Host) -> list[int]:
    """Return the Python processes of a host that are below its executors."""
    services = (b"java ", b"guard.py")
    return [number for number, command in _commands(host) if not any(word in command for word in services)]


def _commands(host: Host) -> Iterator[tuple[int, bytes]]:
    """Yield the processes of a host: the file that each runs, without its folder, and its arguments."""
    for number in sorted(host.processes()):
        with suppress(FileNotFoundError, ProcessLookupError):
            program, *arguments = Path(f"/proc/{number}/cmdline").read_bytes().split(b"\0")
            if program:
                yield number, b" ".join([program.rpartition(b"/")[2], *arguments])


def _victim(stage: Stage, find: Callable[[Host], list[int]]) -> tuple[Host, int] | None:
    """Return one of the processes that are found on a host, mostly one with a worker; None if no host has any."""
    hosts = [stage.worker_host(), *stage.chance.sample(stage.hosts.workers, len(stage.hosts.workers))]
    return next(((host, stage.chance.choice(found)) for host in hosts if (found := find(host))), None)


def kill_process(stage: Stage) -> str:
    """A Python process: a worker, its parent, the task above it, or Spark's daemon."""
    found = _victim(stage, pythons_of)
    if found is None:
        return "nobody"
    host, victim = found
    end(victim)
    return f"process {victim} on {host.name}"


def kill_executor(stage: Stage) -> str:
    """An executor, as a cluster does that needs its place for others."""
    found = _victim(stage, executors_of)
    if found is None:
        return "nobody"
    host, victim = found
    end(victim)
    return f"executor on {host.name}"


def stop_for_a_moment(stage: Stage) -> str:
    """A worker that does nothing for a moment, and goes on."""
    return _freeze(stage, stage.short())


def stop_for_long(stage: Stage) -> str:
    """A worker that does nothing for so long that it is given up, and then comes back from the dead."""
    return _freeze(stage, stage.long())


def _freeze(stage: Stage, seconds: float) -> str:
    found = _victim(stage, pythons_of)
    if found is None:
        return "nobody"
    host, victim = found
    with _stopped([victim]):
        stage.last(seconds)
    return f"process {victim} on {host.name} for {seconds:.1f} s"


def hang_host(stage: Stage) -> str:
    """A whole host that does nothing: its data node, its Spark worker, all."""
    host, seconds = stage.worker_host(), stage.short()
    with _stopped(host.processes()):
        stage.last(seconds)
    return f"{host.name} for {seconds:.1f} s"


def hang_driver(stage: Stage) -> str:
    """The driver does nothing for a moment, and workers hear nothing of it."""
    seconds = stage.short()
    with _stopped(stage.driver.processes()):
        stage.last(seconds)
    return f"{stage.driver.name} for {seconds:.1f} s"


@contextmanager
def _stopped(numbers: list[int]) -> Iterator[None]:
    for number in numbers:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGSTOP)
    try:
        yield
    finally:
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGCONT)


def exhaust_memory(stage: Stage) -> str:
    """The kernel kills an executor or what is below it, since its host's memory is used up."""
    found = _victim(stage, executors_of)
    if found is None:
        return "nobody"
    host, _ = found
    if host.memory is None:
        return kill_process(stage)
    victims = [*executors_of(host), *pythons_of(host)]
    before = host.memory.deaths
    stage.meanwhile(lambda: host.memory and host.memory.exhaust(victims))
    return f"{host.memory.deaths - before} killed on {host.name}"


# -- hosts


def lose_host(stage: Stage) -> str:
    """A whole host loses its power, and comes back after a while."""
    host = stage.worker_host()
    _lose(stage, host)
    return host.name


def lose_writer(stage: Stage) -> str:
    """A host loses its power whose link carries so little that most likely it is sending a checkpoint just then."""
    host = stage.worker_host()
    host.slow(64)
    stage.last(stage.chance.uniform(0.3, 0.5) * stage.heartbeat)
    _lose(stage, host)
    return host.name


def _lose(stage: Stage, host: Host) -> None:
    kill(host)
    stage.last(stage.chance.uniform(0.5, stage.heartbeat))
    host.heal()
    for service in stage.hosts.services_of(host):
        service.kill()  # what is left of it: the guard of a process that is gone
        service.start()


# -- links


def cut_for_a_moment(stage: Stage) -> str:
    """A host that nobody reaches for a moment."""
    return _cut(stage, stage.short())


def cut_for_long(stage: Stage) -> str:
    """A host that nobody reaches for so long that its workers are given up."""
    return _cut(stage, stage.long())


def _cut(stage: Stage, seconds: float) -> str:
    host = stage.worker_host()
    with host.being_cut():
        stage.last(seconds)
    return f"{host.name} for {seconds:.1f} s"


def cut_from_driver(stage: Stage) -> str:
    """A host and the driver do not reach each other, and both reach all others."""
    host, seconds = stage.worker_host(), stage.chance.choice([stage.short(), stage.long()])
    with _healed(host, stage.driver):
        host.cut_from(stage.driver)
        stage.last(seconds)
    return f"{host.name} for {seconds:.1f} s"


def half_cut(stage: Stage) -> str:
    """Only one of two hears the other: a worker's host and the driver's."""
    ends = [stage.worker_host(), stage.driver]
    stage.chance.shuffle(ends)
    seconds = stage.chance.choice([stage.short(), stage.long()])
    with _healed(*ends):
        ends[0].cut_way_to(ends[1])
        stage.last(seconds)
    return f"{ends[0].name} is not heard by {ends[1].name} for {seconds:.1f} s"


def cut_from_store(stage: Stage) -> str:
    """A host and the name node do not reach each other."""
    host, master, seconds = stage.worker_host(), stage.hosts.network["master"], stage.long()
    with _healed(host, master):
        host.cut_from(master)
        stage.last(seconds)
    return f"{host.name} for {seconds:.1f} s"


def cut_between_data_nodes(stage: Stage) -> str:
    """Two hosts do not reach each other: their data nodes, and members of a group."""
    one, other = stage.chance.sample(stage.hosts.workers, 2)
    seconds = stage.long()
    with _healed(one, other):
        one.cut_from(other)
        stage.last(seconds)
    return f"{one.name} and {other.name} for {seconds:.1f} s"


def slow_link(stage: Stage) -> str:
    """A host whose link carries little."""
    host, kilobits, seconds = stage.worker_host(), stage.chance.choice([200, 2000]), stage.long()
    with _healed(host):
        host.slow(kilobits)
        stage.last(seconds)
    return f"{host.name} with {kilobits} kbit/s for {seconds:.1f} s"


@contextmanager
def _healed(*hosts: Host) -> Iterator[None]:
    try:
        yield
    finally:
        for host in hosts:
            host.heal()


# -- the store


def lose_data_node(stage: Stage) -> str:
    """A data node dies, and comes back."""
    node = stage.chance.choice(stage.hosts.hdfs.datanodes)
    node.kill()
    stage.last(stage.short())
    node.start()
    return node.name


def stop_data_node(stage: Stage) -> str:
    """A data node does nothing, but its connections stay."""
    node, seconds = stage.chance.choice(stage.hosts.hdfs.datanodes), stage.long()
    if not node.running:
        return f"{node.name} is down"
    with node.frozen():
        stage.last(seconds)
    return f"{node.name} for {seconds:.1f} s"


def restart_name_node(stage: Stage) -> str:
    """The name node dies, and is started again: until it has heard of all blocks nothing can be written."""
    hdfs = stage.hosts.hdfs
    hdfs.namenode.kill()
    stage.last(stage.chance.uniform(0.1, 2.0))
    hdfs.namenode.start()
    stage.meanwhile(hdfs.wait_writable)
    return hdfs.namenode.name


def fill_store(stage: Stage) -> str:
    """The store takes no more bytes, and then does again."""
    hdfs, seconds = stage.hosts.hdfs, stage.short()
    hdfs.set_space_quota(stage.folder, 1)
    try:
        stage.last(seconds)
    finally:
        hdfs.set_space_quota(stage.folder, -1)
    return f"for {seconds:.1f} s"


# -- disks and clocks


def fill_disk(stage: Stage) -> str:
    """The disk of a host is full: its data node, its executors and the cache of its workers can write nothing."""
    host, seconds = stage.worker_host(), stage.long()
    if host.disk is None:
        return f"{host.name} has no disk of its own"
    host.disk.fill()
    try:
        stage.last(seconds)
    finally:
        host.disk.free()
    return f"{host.name} for {seconds:.1f} s"


def jump_clock(stage: Stage) -> str:
    """The clock of a host goes an hour ahead or behind, and after a while goes right again."""
    host = stage.chance.choice([stage.worker_host(), stage.driver])
    if host.clock is None:
        return f"{host.name} has no clock of its own"
    by, seconds = stage.chance.choice([-HOUR, HOUR]), stage.short()
    host.clock.jump(by)
    try:
        stage.last(seconds)
    finally:
        host.clock.set_right()
    return f"{host.name} by {by} s for {seconds:.1f} s"


FAULTS: dict[Fault, int] = {
    kill_process: 6,
    kill_executor: 4,
    stop_for_a_moment: 2,
    stop_for_long: 2,
    hang_host: 1,
    hang_driver: 1,
    exhaust_memory: 2,
    lose_host: 2,
    lose_writer: 1,
    cut_for_a_moment: 2,
    cut_for_long: 2,
    cut_from_driver: 2,
    half_cut: 2,
    cut_from_store: 1,
    cut_between_data_nodes: 2,
    slow_link: 1,
    lose_data_node: 2,
    stop_data_node: 2,
    restart_name_node: 1,
    fill_store: 1,
    fill_disk: 2,
    jump_clock: 2,
}
"""How often each of them is chosen, compared with the others. That of the driver's host is not among them: whoever lets
it happen must start a driver on another host."""

NO_WAY_OUT: frozenset[Fault] = frozenset([restart_name_node, fill_store, hang_driver])
"""While these last nobody can do anything: the store is waited for, or the driver."""
