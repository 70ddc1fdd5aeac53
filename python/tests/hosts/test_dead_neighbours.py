"""Data nodes that die, or hang, beside a worker: the name node goes on to name just these for its files."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from hosts.cluster import Hosts
from hosts.network import why_not

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
SMALL, LARGE = 2_000, 5 << 20
LIMITS = {SMALL: 8.0, LARGE: 14.0}
"""Seconds. A large write waits for 8 of them until it asks others; what comes on top is for a busy machine."""
CASES = [(fault, size) for fault in ("dead", "hangs") for size in (SMALL, LARGE)]


@pytest.mark.parametrize(("fault", "size"), CASES)
def test_who_writes_and_reads_beside_a_lost_data_node_gets_another(hosts: Hosts, fault: str, size: int) -> None:
    host = hosts.workers[CASES.index((fault, size))]  # the name node names no node first that was lost before
    datanode, _ = hosts.services_of(host)
    writer = hosts.start("hosts.writer", host.name, f"{hosts.hdfs.url}/{fault}-{size}", *[str(size)] * 4)
    try:
        writer.wait_for("ready")
        writer.say("while all is well")
        writer.wait_for("read")
        with datanode.frozen() if fault == "hangs" else nullcontext():
            if fault == "dead":
                datanode.kill()
            for _ in range(3):
                writer.say("go on")
                assert float(writer.wait_for("wrote").split()[1]) < LIMITS[size]
                assert float(writer.wait_for("read").split()[1]) < LIMITS[size]
        assert writer.wait_for("left") == "left", "no staging file is left"
        writer.wait_for("done")
    finally:
        writer.kill()
