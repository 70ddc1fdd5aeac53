"""Hosts that are cut off from each other while a run goes on: it ends, with every unit trained once, and repeats."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hadoop import jars
from hadoop.cluster import HadoopCluster
from integration.standalone import StandaloneCluster

from hosts.driver import HEARTBEAT
from hosts.network import Host, Network, kill, why_not

TESTS = Path(__file__).resolve().parents[1]
REASON = why_not()
pytestmark = [
    pytest.mark.jvm,
    pytest.mark.hadoop,
    pytest.mark.slow,
    pytest.mark.rare,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(REASON), reason=REASON or "possible here"),
]
PLACES = [str(folder) for folder in (TESTS.parents[1], TESTS, TESTS / "integration")]


class Hosts:
    """A driver's host, one with the name node and Spark's master, and four with a data node and a Spark worker each."""

    def __init__(self, network: Network, hdfs: HadoopCluster, spark: StandaloneCluster) -> None:
        self.network = network
        self.hdfs = hdfs
        self.spark = spark

    @property
    def workers(self) -> list[Host]:
        return [host for host in self.network.hosts if host.name.startswith("worker")]

    def host_of(self, address: str) -> Host:
        return next(host for host in self.network.hosts if host.address == address)

    @contextlib.contextmanager
    def driving(self, what: str, run: str, on: str = "driver") -> Iterator[Driver]:
        """A driver on a host. It is killed at the end of the block if it is still there."""
        host = self.network[on]
        where = [] if what == "check" else [self.spark.url, host.address]
        command = [sys.executable, "-m", "hosts.driver", what, f"{self.hdfs.url}/{run}", run, *where]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PLACES), "SPARK_LOCAL_IP": host.address}
        with host.call(
            lambda: subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        ) as process:
            driver = Driver(process)
            try:
                yield driver
            finally:
                process.kill()


class Driver:
    """A driver that tells what happens, and can be waited for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, name="reads what a driver tells", daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def wait_for(self, word: str, count: int = 1, seconds: float = 240.0) -> str:
        """Wait until it has told so many more lines that begin with a word, and return the last of these."""
        end = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                pytest.fail(f"no {word!r} within {seconds:g} s; it told\n" + "\n".join(self.told[-60:]))
            if line is None:
                pytest.fail(f"it ended before {word!r}; it told\n" + "\n".join(self.told[-60:]))
            self.told.append(line)
            count -= line.startswith(f"{word} ") or line == word
            if not count:
                return line

    def lines(self, word: str) -> list[str]:
        return [line for line in self.told if line.startswith(f"{word} ")]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    reason = jars.missing()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; in CI these tests must run", pytrace=False)
        pytest.skip(reason)
    names = ["driver", "other", "master", *(f"worker{number}" for number in range(4))]
    folder = tmp_path_factory.mktemp("hosts")
    with Network(names) as network:
        master, *workers = [network[name] for name in names[2:]]
        with (
            HadoopCluster(folder / "hdfs", replication=2, places=[master, *workers]) as hdfs,
            StandaloneCluster(folder, workers, master=master) as spark,
        ):
            yield Hosts(network, hdfs, spark)


@pytest.fixture(autouse=True)
def _healed(hosts: Hosts) -> Iterator[None]:
    yield
    for host in hosts.network.hosts:
        host.heal()


def check(hosts: Hosts, run: str) -> None:
    """Every unit was trained once, and the run repeats bit for bit."""
    with hosts.driving("check", run) as checker:
        checker.wait_for("done")


def working_host(hosts: Hosts, driver: Driver) -> Host:
    """Wait until the run is in its stride, and return the host of the worker that has just ended a unit."""
    worker = driver.wait_for("unit", count=12).split()[1]
    joined = next(line.split() for line in driver.lines("joined") if line.split()[1] == worker)
    return hosts.host_of(joined[3])


def test_a_cut_that_is_shorter_than_the_heartbeat_costs_nobody_his_place(hosts: Hosts) -> None:
    with hosts.driving("fit", "short") as driver:
        host = working_host(hosts, driver)
        host.cut_from(hosts.network["driver"])
        time.sleep(HEARTBEAT / 3)  # how long the cut lasts is what is tested
        host.heal()
        hosts.network["driver"].heal()
        driver.wait_for("done")
        assert driver.lines("lost") == []
    check(hosts, "short")


def test_a_cut_that_is_longer_than_the_heartbeat_costs_a_worker_and_no_unit(hosts: Hosts) -> None:
    with hosts.driving("fit", "long") as driver:
        host = working_host(hosts, driver)
        host.cut_from(hosts.network["driver"])
        began = time.monotonic()
        driver.wait_for("lost", seconds=HEARTBEAT + 10)
        assert time.monotonic() - began < HEARTBEAT + 10
        host.heal()
        hosts.network["driver"].heal()
        driver.wait_for("done")
    check(hosts, "long")


def test_a_worker_that_hears_but_is_not_heard_is_given_up(hosts: Hosts) -> None:
    with hosts.driving("fit", "half") as driver:
        host = working_host(hosts, driver)
        host.cut_way_to(hosts.network["driver"])
        driver.wait_for("lost", seconds=HEARTBEAT + 10)
        host.heal()
        driver.wait_for("done")
    check(hosts, "half")


def test_a_driver_whose_host_is_killed_is_resumed_on_another(hosts: Hosts) -> None:
    with hosts.driving("fit", "moved") as driver:
        working_host(hosts, driver)
        kill(hosts.network["driver"])
    hosts.network["driver"].heal()
    with hosts.driving("resume", "moved", on="other") as heir:
        heir.wait_for("done")
    check(hosts, "moved")


def test_a_host_that_is_killed_whole_takes_no_unit_with_it(hosts: Hosts) -> None:
    with hosts.driving("fit", "killed") as driver:
        host = working_host(hosts, driver)
        kill(host)
        driver.wait_for("lost", seconds=HEARTBEAT + 10)
        driver.wait_for("done")
    check(hosts, "killed")
