"""What each store says when it is forbidden, full, gone or odd: real failures, not imitated ones."""

from __future__ import annotations

import http.client
import os
import resource
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import cloudpickle
import pytest
from hadoop.cluster import HadoopCluster

from cerebro_spark.errors import (
    AlreadyInStore,
    ConfigurationError,
    MissingDependency,
    NotFoundInStore,
    StoreError,
    StoreForbidden,
    StoreFull,
)
from cerebro_spark.store.base import Store
from cerebro_spark.store.fsspec import FsspecStore
from cerebro_spark.store.hdfs import HdfsStore
from cerebro_spark.store.local import LocalStore

NOBODY = 65534


def make_bucket(options: dict[str, Any], name: str) -> None:
    import s3fs

    s3fs.S3FileSystem(**options).mkdir(name)


# All imports come first: who has become nobody may not be able to read Python's own modules.
_ACTING = """
import sys
import cloudpickle
import cerebro_spark.store
from cerebro_spark.errors import CerebroError
act = cloudpickle.load(sys.stdin.buffer)
try:
    act()
    print("done")
except CerebroError as error:
    print(f"{type(error).__name__}: {error}")
"""


def in_own_process(act: Callable[[], object]) -> str:
    """What `act` raises in a fresh process, as "Type: message"; "done" when it raises nothing.

    No fork: this process has threads of many libraries, and a child that inherits a lock which one of them held waits
    for ever.
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.run(
        [sys.executable, "-c", _ACTING],
        input=cloudpickle.dumps(act),
        capture_output=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()
    said: str = process.stdout.decode().strip()
    return said


def test_a_blob_is_no_folder(folder_store: Store) -> None:
    folder_store.write("a", b"blob")
    with pytest.raises(AlreadyInStore):
        folder_store.write("a/b", b"under it")
    with pytest.raises(AlreadyInStore):
        folder_store.write("a/b/c", b"under it")
    folder_store.write("d/e", b"blob")
    with pytest.raises(AlreadyInStore):
        folder_store.write("d", b"a blob where a folder is")
    assert folder_store.list() == ["a", "d/e"]


def test_a_local_folder_of_somebody_else_is_forbidden(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    LocalStore(folder).write("a/b", b"x")
    (folder / "a").chmod(0o500 if os.getuid() else 0o700)
    (folder / ".staging").chmod(0o500 if os.getuid() else 0o700)
    tmp_path.chmod(0o755)
    tmp_path.parent.chmod(0o755)
    tmp_path.parent.parent.chmod(0o755)

    def write() -> None:
        if os.getuid() == 0:
            os.setuid(NOBODY)
        LocalStore(folder).write("a/c", b"y")

    assert in_own_process(write).startswith("StoreForbidden: no permission for 'a/c' in the store file://")
    assert LocalStore(folder).list() == ["a/b"]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become nobody")
def test_a_local_folder_that_cannot_be_read_is_forbidden(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write("a/b", b"x")

    def as_nobody(act: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            os.setuid(NOBODY)
            act()

        return run

    tmp_path.chmod(0o700)
    for act in (
        lambda: store.read("a/b"),
        lambda: store.list(),
        lambda: store.exists("a/b"),
        lambda: store.delete("a"),
    ):
        assert in_own_process(as_nobody(act)).startswith("StoreForbidden")


def test_a_full_disk_leaves_no_blob(tmp_path: Path) -> None:
    """A limit on the size of files stands for a full disk: the same write fails, with the same kind of error."""
    store = LocalStore(tmp_path / "store")
    source = tmp_path / "source"
    LocalStore(source).write("big", b"x" * 3_000_000)

    def limited(act: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
            act()

        return run

    def swallow() -> None:
        with store.writer("b") as file:
            try:
                file.write(b"x" * 2_000_000)
                file.flush()
            except StoreFull:
                file.close()

    full = "StoreFull: no room for '{}' in the store file://"
    assert in_own_process(limited(lambda: store.write("a", b"x" * 2_000_000))).startswith(full.format("a"))
    assert in_own_process(limited(swallow)).startswith(full.format("b"))
    assert in_own_process(limited(lambda: LocalStore(source).fetch("big", tmp_path / "copy"))).startswith(
        full.format("big")
    )
    assert store.list() == []
    assert store.sweep(older_than=-60) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source", "store"]


@pytest.mark.slow
def test_a_missing_bucket_is_named(s3_options: dict[str, Any]) -> None:
    store = FsspecStore("s3://no-such-bucket-here/x", **s3_options)
    with pytest.raises(NotFoundInStore, match="s3://no-such-bucket-here/x"):
        store.read("a")
    with pytest.raises(NotFoundInStore, match="s3://no-such-bucket-here/x"):
        store.write("a", b"")
    assert store.list() == []


@pytest.mark.slow
def test_s3_credentials_that_are_refused_are_forbidden(s3_options: dict[str, Any]) -> None:
    make_bucket(s3_options, "guarded")
    store = FsspecStore("s3://guarded", **s3_options)
    _count_of_unchecked_requests(s3_options, 0)
    try:
        with pytest.raises(StoreForbidden, match="no permission for 'a' in the store s3://guarded"):
            store.write("a", b"x")
        with pytest.raises(StoreForbidden):
            store.read("a")
        with pytest.raises(StoreForbidden):
            store.list()
    finally:
        _count_of_unchecked_requests(s3_options, 10**9)
    assert store.list() == []


def _count_of_unchecked_requests(options: dict[str, Any], count: int) -> None:
    """Tell moto how many requests to let through before it looks at credentials."""
    url = options["client_kwargs"]["endpoint_url"] + "/moto-api/reset-auth"
    order = urllib.request.Request(url, str(count).encode(), {"Content-Type": "text/plain"}, method="POST")
    urllib.request.urlopen(order, timeout=120).close()


@pytest.mark.slow
def test_an_upload_whose_answer_is_lost_still_wins(s3_options: dict[str, Any]) -> None:
    """The client sends it again and is told that the name is taken: by itself."""
    make_bucket(s3_options, "lossy")
    proxy, lost = _proxy_that_loses_one_answer(s3_options["client_kwargs"]["endpoint_url"])
    with proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        endpoint = {"endpoint_url": f"http://127.0.0.1:{proxy.server_port}", "region_name": "eu-west-1"}
        store = FsspecStore("s3://lossy/x", **(s3_options | {"client_kwargs": endpoint}))
        store.write("a", b"mine")
        assert lost.is_set()
        assert store.read("a") == b"mine"
        with pytest.raises(AlreadyInStore):
            store.write("a", b"other")
        proxy.shutdown()
        thread.join()


def _proxy_that_loses_one_answer(endpoint: str) -> tuple[ThreadingHTTPServer, threading.Event]:
    lost = threading.Event()

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            upstream = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=120)
            upstream.request(self.command, self.path, body, dict(self.headers))
            answer = upstream.getresponse()
            data = answer.read()
            upstream.close()
            if self.command == "PUT" and not lost.is_set():
                lost.set()
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "connection", "date", "server"):
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    return ThreadingHTTPServer(("127.0.0.1", 0), Proxy), lost


@pytest.mark.slow
def test_a_multipart_upload_is_conditional_too(s3_options: dict[str, Any]) -> None:
    make_bucket(s3_options, "multipart")
    store = FsspecStore("s3://multipart", **s3_options)
    data = b"m" * (110 << 20)
    with pytest.raises(AlreadyInStore), store.writer("big") as file:  # noqa: PT012 (the end of the block raises)
        file.write(data)
        store.write("big", b"first")
    assert store.read("big") == b"first"
    store.delete("big")
    with store.writer("big") as file:
        file.write(data)
    assert store.size("big") == len(data)


def test_a_missing_client_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from cerebro_spark.store.opening import open_store

    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(MissingDependency, match=r"pip install 'cerebro-spark\[hdfs\]'"):
        HdfsStore("hdfs://somewhere:1/x").list()
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingDependency, match=r"pip install 'cerebro-spark\[gcs\]'"):
        open_store("gs://bucket/x")


@pytest.mark.parametrize("url", ["hdfs:///x", "hdfs://", "http://a/b", "hdfs:/a", "hdfs://a//b"])
def test_addresses_that_are_no_hdfs_folder(url: str) -> None:
    with pytest.raises(ConfigurationError, match="is no address of an HDFS folder"):
        HdfsStore(url)


def test_an_unknown_hdfs_client_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="client is 'webhdfs', but must be one of 'native', 'libhdfs'"):
        HdfsStore("hdfs://a:1/x", client="webhdfs")  # type: ignore[arg-type]


@pytest.mark.jvm
@pytest.mark.hadoop
def test_hdfs_of_somebody_else_is_forbidden(hadoop_cluster: HadoopCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{hadoop_cluster.url}/owned"
    HdfsStore(url, options=hadoop_cluster.settings).write("a", b"x")
    monkeypatch.setenv("HADOOP_USER_NAME", "mallory")
    other = HdfsStore(url, options=hadoop_cluster.settings)
    assert other.read("a") == b"x"
    acts: list[Callable[[], object]] = [lambda: other.write("b", b"y"), lambda: other.delete("a")]
    for act in acts:
        with pytest.raises(StoreForbidden) as caught:
            act()
        assert "user=mallory" in str(caught.value)
        assert url in str(caught.value)
        assert "FSPermissionChecker" not in str(caught.value), "a Java stack trace is no message"
    assert other.list() == ["a"]


@pytest.mark.jvm
@pytest.mark.hadoop
def test_hdfs_over_its_quota_is_full(hadoop_cluster: HadoopCluster) -> None:
    store = HdfsStore(f"{hadoop_cluster.url}/quota", options=hadoop_cluster.settings)
    store.write("small", b"x")
    hadoop_cluster.set_space_quota("/quota", 40 << 20)
    with pytest.raises(StoreFull, match=r"no room for 'big' in the store hdfs://.*quota"):
        store.write("big", b"y" * (48 << 20))
    with pytest.raises(StoreFull), store.writer("streamed") as file:  # noqa: PT012 (any of the writes)
        for _ in range(48):
            file.write(b"y" * (1 << 20))
    assert store.list() == ["small"]
    store.write("fits", b"z")
    assert store.read("fits") == b"z"


@pytest.mark.jvm
@pytest.mark.hadoop
def test_hdfs_refuses_colons_before_the_name_node_does(hadoop_cluster: HadoopCluster) -> None:
    store = HdfsStore(f"{hadoop_cluster.url}/colons", options=hadoop_cluster.settings)
    with pytest.raises(ConfigurationError, match="refuses ':'"):
        store.write("a:b", b"")


@pytest.mark.jvm
@pytest.mark.hadoop
def test_an_hdfs_name_node_that_is_not_there(hadoop_cluster: HadoopCluster) -> None:
    del hadoop_cluster  # only to be skipped where HDFS is
    store = HdfsStore("hdfs://127.0.0.1:1/x", options={"dfs.client.failover.max.attempts": "1"})
    with pytest.raises(StoreError, match=r"'a' in the store hdfs://127\.0\.0\.1:1/x"):
        store.read("a")
