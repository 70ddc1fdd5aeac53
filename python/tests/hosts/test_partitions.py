"""Hosts that are cut off from each other while a run goes on: it ends, with every unit trained once, and repeats."""

from __future__ import annotations

import time

import pytest

from hosts.cluster import Driver, Hosts
from hosts.driver import HEARTBEAT
from hosts.network import Host, kill, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.jvm,
    pytest.mark.hadoop,
    pytest.mark.slow,
    pytest.mark.rare,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("mended"),
    pytest.mark.skipif(bool(REASON), reason=REASON or "possible here"),
]


def check(hosts: Hosts, run: str) -> None:
    """Every unit was trained once, and the run repeats bit for bit."""
    with hosts.driving("check", run) as checker:
        checker.wait_for("done")


def working_host(hosts: Hosts, driver: Driver) -> Host:
    """Wait until the run is in its stride, and return the host of the worker that has just ended a unit."""
    worker = driver.wait_for("unit", count=12).split()[1]
    return hosts.host_of(driver.joined(worker)[3])


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
