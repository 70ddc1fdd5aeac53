"""The test cluster itself: its daemons are real, killable, come back, and die with the tests."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hdfs_native
import pytest

from cerebro_spark.errors import StoreError
from cerebro_spark.store import hdfs_patience
from cerebro_spark.store.hdfs import HdfsStore
from cerebro_spark.store.retrying import RetryingStore
from hadoop import jars
from hadoop.cluster import HadoopCluster
from hadoop.daemon import Daemon, DaemonError, Here
from hadoop.yarn import YarnCluster

TESTS = Path(__file__).parents[1]


def test_a_guarded_command_dies_with_the_holder_of_its_pipe(tmp_path: Path) -> None:
    """Not Java here: what holds for `sleep` holds for a daemon. Its end closes the fifo, which is the event."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    holder = (
        "import subprocess, sys; subprocess.Popen([sys.executable, sys.argv[1], 'sh', '-c', sys.argv[2]], stdin=-1);"
    )
    holder += "print('ready', flush=True); sys.stdin.read()"
    guard = str(TESTS / "hadoop" / "guard.py")
    command = [sys.executable, "-c", holder, guard, f"exec 3> '{fifo}'; echo up >&3; exec sleep 1000"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        with open(fifo, "rb") as end:
            assert end.readline() == b"up\n"
            process.send_signal(signal.SIGKILL)
            ready, _, _ = select.select([end], [], [], 300)
            assert ready, "the command outlived its holder"
            assert end.read() == b""


def test_the_version_is_that_of_pyspark_s_own_client() -> None:
    assert re.fullmatch(r"3\.\d+\.\d+", jars.hadoop_version())


@pytest.mark.jvm
@pytest.mark.hadoop
def test_blocks_lie_on_distinct_addresses(hadoop_cluster: HadoopCluster) -> None:
    client = hdfs_native.Client(hadoop_cluster.url, config=hadoop_cluster.settings)
    with client.create("/three blocks ü") as file:
        file.write(b"x" * (40 << 20))
    blocks = hadoop_cluster.wait_replicated("/three blocks ü", 2)
    assert [len(set(hosts)) for hosts in blocks] == [2, 2, 2]
    assert set().union(*blocks) <= {"127.0.0.2", "127.0.0.3", "127.0.0.4"}


@pytest.mark.jvm
@pytest.mark.hadoop
def test_a_blob_lies_whole_on_each_of_its_hosts(hadoop_cluster: HadoopCluster) -> None:
    store = HdfsStore(f"{hadoop_cluster.url}/whole", options=hadoop_cluster.settings)
    store.write("a", b"x" * (40 << 20))
    (hosts,) = hadoop_cluster.wait_replicated("/whole/a", 2)
    assert len(set(hosts)) == 2


@pytest.mark.jvm
@pytest.mark.hadoop
@pytest.mark.slow
def test_data_outlives_a_killed_data_node_and_it_comes_back(hadoop_cluster: HadoopCluster) -> None:
    store = RetryingStore(HdfsStore(f"{hadoop_cluster.url}/survives", options=hadoop_cluster.settings))
    data = os.urandom(20 << 20)
    store.write("before", data)
    hadoop_cluster.wait_replicated("/survives/before", 2)
    victim = hadoop_cluster.datanodes[0]
    victim.kill()
    try:
        assert not victim.running
        assert store.read("before") == data
        hadoop_cluster.wait_live(2)
        store.write("with two", data)
        hadoop_cluster.wait_for(
            lambda: all(
                len(hosts) == 2 and victim.host not in hosts for hosts in hadoop_cluster.block_hosts("/survives/before")
            ),
            "copy lost blocks to the other nodes",
        )
    finally:
        hadoop_cluster.revive(victim)
    assert store.read("before") == data
    assert store.read("with two") == data


@pytest.mark.jvm
@pytest.mark.hadoop
@pytest.mark.slow
def test_a_data_node_is_back_when_it_takes_bytes_again(hadoop_cluster: HadoopCluster) -> None:
    """The name node counts a node that was killed a moment ago: its count says nothing about one that is started."""
    victim = hadoop_cluster.datanodes[2]
    victim.kill()
    hadoop_cluster.revive(victim)
    socket.create_connection((victim.host, hadoop_cluster.data_ports[victim.host]), timeout=120).close()


@pytest.mark.jvm
@pytest.mark.hadoop
@pytest.mark.slow
def test_writers_outlive_a_killed_data_node(hadoop_cluster: HadoopCluster) -> None:
    """For ten seconds the name node still believes in it and hands it out; every write succeeds all the same."""
    store = HdfsStore(f"{hadoop_cluster.url}/pipeline", options=hadoop_cluster.settings)
    piece = os.urandom(1 << 20)
    victim = hadoop_cluster.datanodes[1]
    try:
        with ThreadPoolExecutor(1) as pool:
            big = pool.submit(store.write, "in flight", piece * 200)
            hadoop_cluster.wait_for(
                lambda: big.done() or bool(hadoop_cluster.staged("/pipeline")), "begin the write", timeout=300
            )
            victim.kill()
            big.result(300)
        with store.writer("streamed") as file:
            for _ in range(40):
                file.write(piece)
        for number in range(10):
            store.write(f"small {number}", piece)
        assert store.size("in flight") == 200 << 20
        assert store.read("streamed") == piece * 40
        assert all(store.read(f"small {number}") == piece for number in range(10))
        assert hadoop_cluster.staged("/pipeline") == []
    finally:
        hadoop_cluster.revive(victim)


@pytest.mark.jvm
@pytest.mark.hadoop
def test_readers_leave_a_data_node_that_hangs(hadoop_cluster: HadoopCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdfs_patience, "_TO_READ", 1.0)
    store = RetryingStore(HdfsStore(f"{hadoop_cluster.url}/hangs", options=hadoop_cluster.settings), longest=0.1)
    data = os.urandom(9 << 20)
    store.write("a", data)
    (hosts,) = hadoop_cluster.wait_replicated("/hangs/a", 2)
    (victim,) = (node for node in hadoop_cluster.datanodes if node.host == hosts[0])
    with victim.frozen():
        assert [store.read("a") == data for _ in range(5)] == [True] * 5


@pytest.mark.jvm
@pytest.mark.hadoop
def test_a_name_node_that_hangs_is_said(hadoop_cluster: HadoopCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HdfsStore(f"{hadoop_cluster.url}/asked", options=hadoop_cluster.settings)
    store.write("a", b"kept")
    with monkeypatch.context() as patch, hadoop_cluster.namenode.frozen():
        patch.setattr(hdfs_patience, "_FOR_NAMES", 0.5)
        with pytest.raises(StoreError, match="the name node did not answer"):
            store.exists("a")
    assert store.read("a") == b"kept"


@pytest.mark.jvm
@pytest.mark.hadoop
@pytest.mark.slow
def test_the_name_node_comes_back_with_its_names(tmp_path: Path, hadoop_cluster: HadoopCluster) -> None:
    del hadoop_cluster  # only to be skipped where it is
    with HadoopCluster(tmp_path / "own", datanodes=1, replication=1) as cluster:
        store = HdfsStore(f"{cluster.url}/x", options=cluster.settings)
        store.write("a", b"kept")
        cluster.namenode.kill()
        cluster.namenode.start()
        cluster.wait_live(1)
        cluster.wait_writable()
        assert store.read("a") == b"kept"


@pytest.mark.jvm
@pytest.mark.hadoop
@pytest.mark.slow
def test_node_managers_register_and_are_missed(hadoop_cluster: HadoopCluster) -> None:
    with YarnCluster(hadoop_cluster, nodemanagers=2) as yarn:
        yarn.nodemanagers[0].kill()
        yarn.wait_active(1)
        yarn.nodemanagers[0].start()
        yarn.wait_active(2)


@pytest.mark.jvm
@pytest.mark.hadoop
def test_a_daemon_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    if reason := jars.missing():
        pytest.skip(reason)
    tmp_path.mkdir(exist_ok=True)
    daemon = Daemon("broken", "no.such.Main", tmp_path, Here("127.0.0.1"), {})
    daemon.start()
    with pytest.raises(DaemonError, match=r"broken ended by itself; the end of .*broken\.log:\n(.|\n)*no\.such\.Main"):
        daemon.await_(lambda: False, "get ready", 300)
    daemon.kill()


@pytest.mark.jvm
def test_jars_are_fetched_where_the_tests_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place of a daemon may be a host that reaches no repository."""

    class Elsewhere(Here):
        def call(self, function: Any, *arguments: Any) -> Any:
            with monkeypatch.context() as there:
                there.setattr(jars, "classpath", lambda: pytest.fail("jars are asked for at another place"))
                return super().call(function, *arguments)

    monkeypatch.setattr(jars, "classpath", lambda: str(tmp_path))
    daemon = Daemon("broken", "no.such.Main", tmp_path, Elsewhere("127.0.0.1"), {})
    with pytest.raises(DaemonError, match=r"broken -format failed with \d+"):
        daemon.run_once("-format")
    daemon.start()
    daemon.kill()
