"""Hosts with a network of their own on one machine: a switch, a link for each host, and faults of these links.

Every host is a network namespace, and so is the switch: nothing that hosts send leaves them. It needs root. What runs
on a host is started from a thread that has entered its namespace.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from hosts.limits import Clock, Disk, Memory

_NEW_NETWORK = 0x40000000
_PLACE = Path("/run/netns")
_LIBC = ctypes.CDLL(None, use_errno=True)
Found = TypeVar("Found")


def why_not() -> str:
    """Why there can be no such hosts here; empty if there can be."""
    if os.geteuid() != 0:
        return "hosts with a network of their own need root"
    if shutil.which("ip") is None:
        return "hosts with a network of their own need the command ip (Debian's package iproute2)"
    name = f"cs-{secrets.token_hex(4)}"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "bridge0", "type", "bridge")
    except subprocess.CalledProcessError as error:
        return f"the kernel makes no network of its own for a host: {error.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=60)
    return ""


class Host:
    """A host: a namespace with one link to the switch.

    Args:
        name: Its name, and what its namespace ends with.
        address: Its address.
        namespace: Its namespace.
        switch: The namespace of the switch.
        port: The switch's end of its link.

    Attributes:
        memory: The limit of its memory, if it has one.
        disk: Its disk, if it has one of its own.
        clock: Its clock, if it has one of its own.
    """

    memory: Memory | None = None
    disk: Disk | None = None
    clock: Clock | None = None

    def __init__(self, name: str, address: str, namespace: str, switch: str, port: str) -> None:
        self.name = name
        self.address = address
        self._namespace = namespace
        self._switch = switch
        self._port = port

    def __repr__(self) -> str:
        return f"Host({self.name}, {self.address})"

    def call(self, function: Callable[..., Found], *arguments: Any) -> Found:
        """Call a function on this host: what it connects to, and the processes that it starts, are in its network."""
        outcome: list[Found] = []
        failure: list[BaseException] = []

        def inside() -> None:
            try:
                _enter(self._namespace)
                if self.memory is not None:
                    self.memory.join()
                outcome.append(function(*arguments))
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=inside, name=f"on {self.name}")
        thread.start()
        thread.join()
        if failure:
            raise failure[0]
        return outcome[0]

    # -- faults

    def cut(self) -> None:
        """Take its link down: whatever is sent from or to it is lost, without a word to anybody."""
        _ip("-n", self._switch, "link", "set", self._port, "down")

    def cut_way_to(self, other: Host) -> None:
        """Lose what it sends to one host; what that one sends still arrives."""
        _ip("-n", self._namespace, "route", "replace", "blackhole", f"{other.address}/32")

    def cut_from(self, other: Host) -> None:
        """Lose what these two hosts send to each other; both still have all others."""
        self.cut_way_to(other)
        other.cut_way_to(self)

    def slow(self, kilobits: int) -> None:
        """Let its link carry so many kilobits in a second, each way."""
        rate = f"{kilobits}kbit"
        for namespace, device in ((self._switch, self._port), (self._namespace, "eth0")):
            shape = ("rate", rate, "burst", "16kb", "latency", "2s")
            _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "tbf", *shape)

    def heal(self) -> None:
        """End all faults of its link, and of its ways to others."""
        _ip("-n", self._switch, "link", "set", self._port, "up")
        _ip("-n", self._namespace, "route", "flush", "type", "blackhole")
        for namespace, device in ((self._switch, self._port), (self._namespace, "eth0")):
            # There is none to take away where the link was not slow.
            _run("tc", "-n", namespace, "qdisc", "del", "dev", device, "root", check=False)

    @contextlib.contextmanager
    def being_cut(self) -> Iterator[None]:
        """For the time of the block its link is down."""
        self.cut()
        try:
            yield
        finally:
            self.heal()

    def processes(self) -> list[int]:
        """Return the numbers of all processes on it."""
        return [int(number) for number in _ip("netns", "pids", self._namespace).split()]


class Network:
    """A switch and hosts. They are gone at the end of the block, with all that runs on them.

    Args:
        names: The names of the hosts.
        prefix: What their addresses begin with. Defaults to "10.77.0": these addresses are known to these hosts only.

    >>> with Network(["driver", "one", "two"]) as network:      # doctest: +SKIP
    ...     network["one"].cut()
    """

    def __init__(self, names: list[str], prefix: str = "10.77.0") -> None:
        self.mark = f"cs-{secrets.token_hex(3)}"
        self._switch = f"{self.mark}-switch"
        self.hosts = [
            Host(name, f"{prefix}.{number}", f"{self.mark}-{name}", self._switch, f"port{number}")
            for number, name in enumerate(names, start=1)
        ]

    def __getitem__(self, name: str) -> Host:
        return next(host for host in self.hosts if host.name == name)

    def __enter__(self) -> Self:
        try:
            _ip("netns", "add", self._switch)
            _ip("-n", self._switch, "link", "add", "bridge0", "type", "bridge")
            _ip("-n", self._switch, "link", "set", "bridge0", "up")
            for host in self.hosts:
                self._attach(host)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _attach(self, host: Host) -> None:
        own, switch, port = host._namespace, self._switch, host._port
        _ip("netns", "add", own)
        _ip("-n", own, "link", "set", "lo", "up")
        _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", own)
        _ip("-n", switch, "link", "set", port, "master", "bridge0", "up")
        _ip("-n", own, "address", "add", f"{host.address}/24", "dev", "eth0")
        _ip("-n", own, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        """Kill what runs on the hosts, and let them go: a namespace lasts as long as somebody is in it."""
        for host in self.hosts:
            if (_PLACE / host._namespace).exists():
                kill(host)
                _ip("netns", "del", host._namespace)
        if (_PLACE / self._switch).exists():
            _ip("netns", "del", self._switch)


def kill(host: Host) -> None:
    """Kill all that runs on a host, as if it had lost power: nobody says goodbye, since its link is down before."""
    host.cut()
    while numbers := host.processes():
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                _kill_and_wait(number)


def _kill_and_wait(number: int) -> None:
    process = os.pidfd_open(number)
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        if not select.select([process], [], [], 60)[0]:
            raise TimeoutError(f"process {number} was killed, and is still there after a minute")
    finally:
        os.close(process)


def _enter(namespace: str) -> None:
    """Move this thread into a namespace. It never comes back, so it must be one of its own."""
    with open(_PLACE / namespace, "rb") as place:
        if _LIBC.setns(place.fileno(), _NEW_NETWORK) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"cannot enter {namespace}: {os.strerror(number)}")


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str, check: bool = True) -> str:
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=60).stdout
