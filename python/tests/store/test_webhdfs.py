"""Writes over WebHDFS: on a real HDFS, and where a web server answers as those do that cannot be used."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest
from hadoop.cluster import HadoopCluster

from cerebro_spark.errors import StoreFull
from cerebro_spark.store import webhdfs
from cerebro_spark.store.hdfs import HdfsStore
from cerebro_spark.store.hdfs_clients import hdfs_error_kind
from cerebro_spark.store.webhdfs import WebHdfs

BLOCK = 1 << 20
STANDBY = {"javaClassName": "org.apache.hadoop.ipc.StandbyException", "message": "not here"}


def of(cluster: HadoopCluster) -> WebHdfs:
    return WebHdfs(cluster.url, cluster.settings)


@pytest.mark.jvm
@pytest.mark.hadoop
@pytest.mark.parametrize("kind", ["bytes", "memoryview", "numbers", "file", "nothing"])
def test_hdfs_has_the_same_bytes(hadoop_cluster: HadoopCluster, kind: str, tmp_path: Path) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "file").write_bytes(data)
    source: dict[str, bytes | memoryview | Path] = {
        "bytes": data,
        "memoryview": memoryview(data),
        "numbers": memoryview(data).cast("i"),
        "file": tmp_path / "file",
        "nothing": b"",
    }
    store = HdfsStore(f"{hadoop_cluster.url}/web ü+&?", options=hadoop_cluster.settings)
    of(hadoop_cluster).write(f"/web ü+&?/{kind}", source[kind], 4 * BLOCK, 30.0)
    assert store.read(kind) == (b"" if kind == "nothing" else data)
    if kind != "nothing":
        assert of(hadoop_cluster).read(f"/web ü+&?/{kind}", 1000, 2 << 20, 30.0) == data[1000 : 1000 + (2 << 20)]


@pytest.mark.jvm
@pytest.mark.hadoop
def test_what_is_there_is_never_replaced(hadoop_cluster: HadoopCluster) -> None:
    store = HdfsStore(f"{hadoop_cluster.url}/again", options=hadoop_cluster.settings)
    of(hadoop_cluster).write("/again/a", b"first", BLOCK, 30.0)
    with pytest.raises(RuntimeError, match="FileAlreadyExistsException"):
        of(hadoop_cluster).write("/again/a", b"second", BLOCK, 30.0)
    assert store.read("a") == b"first"


@pytest.mark.jvm
@pytest.mark.hadoop
@pytest.mark.slow
def test_what_a_data_node_does_too_late_changes_no_file_that_is_whole(hadoop_cluster: HadoopCluster) -> None:
    """One that hung creates its file once it goes on. The name node names it by chance, so it is asked often."""
    store = HdfsStore(f"{hadoop_cluster.url}/late", options=hadoop_cluster.settings)
    late = 0
    with hadoop_cluster.datanodes[0].frozen():
        while late < 3 or len(store.list()) < 3:
            staged = f"/late/.staging/{late}-{len(store.list())}"
            try:
                of(hadoop_cluster).write(staged, b"abc", BLOCK, 1.0)
            except OSError:
                late += 1
            else:
                hadoop_cluster.webhdfs("PUT", staged, op="RENAME", destination=f"/late/{len(store.list())}")
        whole = file_ids(hadoop_cluster, "/late")
    hadoop_cluster.wait_for(lambda: len(hadoop_cluster.staged("/late")) == late, "late files")
    assert file_ids(hadoop_cluster, "/late") == whole
    assert {store.read(name) for name in store.list()} == {b"abc"}


def file_ids(cluster: HadoopCluster, folder: str) -> dict[str, int]:
    """By name, the numbers of files: one that was made anew has another."""
    found = cluster.webhdfs("GET", folder, op="LISTSTATUS")["FileStatuses"]["FileStatus"]
    return {status["pathSuffix"]: status["fileId"] for status in found if status["type"] == "FILE"}


@pytest.mark.jvm
@pytest.mark.hadoop
def test_what_hdfs_refuses_is_said_as_by_the_other_client(hadoop_cluster: HadoopCluster) -> None:
    HdfsStore(f"{hadoop_cluster.url}/small", options=hadoop_cluster.settings).write("a", b"x")
    hadoop_cluster.set_space_quota("/small", 1 << 20)
    with pytest.raises(RuntimeError, match="quota") as raised:
        of(hadoop_cluster).write("/small/b", bytes(3 << 20), 4 * BLOCK, 30.0)
    assert hdfs_error_kind(raised.value) is StoreFull


@contextmanager
def server(status: int, body: bytes = b"", location: str = "", asked: list[str] | None = None) -> Iterator[str]:
    """A web server that gives one answer, and notes what it was asked; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            if asked is not None:
                asked.append(self.path)
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT

        def log_message(self, format: str, *args: object) -> None:
            """It says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as running:
        Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{running.server_address[1]}"
        running.shutdown()


def name_node(address: str) -> WebHdfs:
    return WebHdfs("hdfs://127.0.0.1:8020", {"dfs.namenode.http-address": address})


def nobody() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    ("status", "body", "location"),
    [
        (404, b"<html>no such servlet</html>", ""),
        (401, b"Authentication required", ""),
        (307, b"", "https://datanode:9865/webhdfs/v1/a?op=CREATE"),
        (200, b"{}", ""),
        (403, json.dumps({"RemoteException": STANDBY}).encode(), ""),
    ],
    ids=["no WebHDFS", "Kerberos", "HTTPS", "no redirect", "standby"],
)
def test_where_it_cannot_be_used_it_is_closed_for_a_while(
    status: int, body: bytes, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(status, body, location) as address:
        detour = name_node(address)
        assert detour.is_open
        with pytest.raises(OSError, match=r"WebHDFS|name node"):
            detour.write("/a", b"abc", BLOCK, 1.0)
    assert not detour.is_open
    monkeypatch.setattr(webhdfs, "_CLOSED_FOR", 0.0)
    with pytest.raises(ConnectionError):
        detour.write("/a", b"abc", BLOCK, 1.0)
    assert detour.is_open, "a name node may come back"


def test_another_name_node_is_asked_where_one_stands_by() -> None:
    with (
        server(403, json.dumps({"RemoteException": STANDBY}).encode()) as standby,
        server(201) as datanode,
        server(307, location=f"http://{datanode}/webhdfs/v1/a?op=CREATE") as active,
    ):
        settings = {
            "dfs.ha.namenodes.prod": "a, b,c",
            "dfs.namenode.http-address.prod.a": nobody(),
            "dfs.namenode.http-address.prod.b": standby,
            "dfs.namenode.http-address.prod.c": active,
        }
        detour = WebHdfs("hdfs://prod", settings)
        detour.write("/a", b"abc", BLOCK, 5.0)
        assert detour.is_open


def test_what_name_nodes_refuse_is_final_and_no_reason_to_close() -> None:
    error = {"javaClassName": "org.apache.hadoop.security.AccessControlException", "message": "not you"}
    with server(403, json.dumps({"RemoteException": error}).encode()) as address:
        detour = name_node(address)
        with pytest.raises(RuntimeError, match="not you"):
            detour.write("/a", b"abc", BLOCK, 1.0)
        assert detour.is_open


def test_a_data_node_is_asked_once_to_write_and_not_wanted_the_next_time() -> None:
    """To send one file to two data nodes would be to have two that write it, once the first one goes on."""
    asked: list[str] = []
    with server(307, location=f"http://{nobody()}/webhdfs/v1/a?op=CREATE", asked=asked) as address:
        detour = name_node(address)
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                detour.write("/a", b"abc", BLOCK, 1.0)
    assert [parse_qs(urlsplit(target).query)["excludedatanodes"] for target in asked] == [
        ["127.0.0.1"],
        ["127.0.0.1,127.0.0.1"],
    ]


def test_three_data_nodes_are_asked_for_bytes() -> None:
    asked: list[str] = []
    with (
        server(307, location=f"http://{nobody()}/webhdfs/v1/a?op=OPEN", asked=asked) as address,
        pytest.raises(ConnectionRefusedError),
    ):
        name_node(address).read("/a", 0, 3, 1.0)
    assert len(asked) == 3


@pytest.mark.parametrize(
    "settings",
    [
        {"hadoop.security.authentication": "kerberos"},
        {"dfs.data.transfer.protection": "privacy"},
        {"dfs.http.policy": "HTTPS_ONLY"},
        {"dfs.webhdfs.enabled": "false"},
    ],
    ids=str,
)
def test_what_settings_rule_out_is_not_tried(settings: dict[str, str]) -> None:
    assert not WebHdfs("hdfs://127.0.0.1:8020", settings).is_open
