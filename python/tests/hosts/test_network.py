"""Hosts of a test: who reaches whom, and what faults of links do."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from hosts.network import Host, Network, kill, why_not

PORT = 4000
ECHO = """
import socketserver

class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)

socketserver.ThreadingTCPServer.daemon_threads = True
with socketserver.ThreadingTCPServer(("0.0.0.0", 4000), Echo) as server:
    print("ready", flush=True)
    server.serve_forever()
"""
REASON = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(REASON), reason=REASON or "possible here"),
]


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(["driver", "one", "two"]) as made, serving(made["one"]):
        yield made


@pytest.fixture
def connection(network: Network) -> Iterator[socket.socket]:
    """A connection from the driver's host to another one, which sends back what it gets."""
    with network["driver"].call(connect, network["one"]) as made:
        yield made
    for host in network.hosts:
        host.heal()


@contextlib.contextmanager
def serving(host: Host) -> Iterator[subprocess.Popen[str]]:
    """For the time of the block a host sends back what it gets."""
    command = [sys.executable, "-c", ECHO]
    with host.call(lambda: subprocess.Popen(command, stdout=subprocess.PIPE, text=True)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def connect(host: Host) -> socket.socket:
    made = socket.create_connection((host.address, PORT), timeout=5)
    made.settimeout(5)
    return made


def echo(connection: socket.socket, data: bytes = b"hello") -> bytes:
    connection.sendall(data)
    got = b""
    while len(got) < len(data):
        got += connection.recv(65536)
    return got


def is_lost(connection: socket.socket) -> bool:
    """Whether nothing comes back for a second."""
    connection.settimeout(1)
    try:
        return echo(connection) == b""
    except TimeoutError:
        return True
    finally:
        connection.settimeout(20)


def test_hosts_reach_each_other_and_nobody_else(network: Network, connection: socket.socket) -> None:
    assert echo(connection) == b"hello"
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            network["driver"].call(socket.create_connection, ("127.0.0.1", port), 5)
    with pytest.raises(OSError, match="unreachable"):
        network["driver"].call(socket.create_connection, ("192.0.2.1", 80), 5)


def test_a_link_that_is_cut_loses_what_is_sent_until_it_is_healed(network: Network, connection: socket.socket) -> None:
    network["one"].cut()
    assert is_lost(connection)
    network["one"].heal()
    # The kernel sends it again: the connection is the same.
    assert connection.recv(65536) == b"hello"
    assert echo(connection, b"again") == b"again"


def test_a_link_that_is_half_cut_lets_only_one_side_speak(network: Network, connection: socket.socket) -> None:
    driver, one = network["driver"], network["one"]
    one.cut_way_to(driver)
    assert is_lost(connection)
    with pytest.raises(TimeoutError):
        driver.call(socket.create_connection, (one.address, PORT), 1)
    with network["two"].call(connect, one) as other:
        assert echo(other) == b"hello"
    one.heal()
    assert connection.recv(65536) == b"hello"


def test_a_link_that_is_slow_takes_its_time(network: Network, connection: socket.socket) -> None:
    data = b"x" * 100_000
    network["one"].slow(kilobits=1000)
    began = time.monotonic()
    assert echo(connection, data) == data
    # 800 kilobits there, and as many back, of which some are sent while others arrive.
    assert time.monotonic() - began > 0.6
    network["one"].heal()
    began = time.monotonic()
    assert echo(connection, data) == data
    assert time.monotonic() - began < 0.6


def test_a_host_that_is_killed_is_silent_at_once(network: Network) -> None:
    two = network["two"]
    with serving(two) as server, network["driver"].call(connect, two) as made:
        assert echo(made) == b"hello"
        kill(two)
        assert server.wait(10) == -9
        assert two.processes() == []
        assert is_lost(made)
    two.heal()
    with pytest.raises(ConnectionRefusedError):
        network["driver"].call(connect, two)


def test_nothing_is_left_behind() -> None:
    def namespaces() -> set[str]:
        listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True, timeout=60)
        return {line.split()[0] for line in listed.stdout.splitlines()}

    before = namespaces()
    with contextlib.ExitStack() as stack:
        with Network(["alone"]) as made:
            server = stack.enter_context(serving(made["alone"]))
            assert len(namespaces() - before) == 2
        assert namespaces() == before
        assert server.wait(10) == -9
