"""`open_store` picks by scheme, and finds the name node of "hdfs:///" where the cluster says it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hadoop.cluster import HadoopCluster
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store import FsspecStore, HdfsStore, LocalStore, open_store
from cerebro_spark.store.base import check_name


@pytest.fixture
def conf_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An HADOOP_CONF_DIR of a cluster with two name nodes."""
    folder = tmp_path / "conf"
    folder.mkdir()
    _site(folder / "core-site.xml", {"fs.defaultFS": "hdfs://prod", "io.file.buffer.size": "1"})
    _site(
        folder / "hdfs-site.xml",
        {
            "dfs.nameservices": "prod",
            "dfs.ha.namenodes.prod": "nn1,nn2",
            "dfs.namenode.rpc-address.prod.nn1": "a:8020",
            "dfs.namenode.name.dir": "/secret",
        },
    )
    monkeypatch.setenv("HADOOP_CONF_DIR", str(folder))
    return folder


def _site(path: Path, settings: dict[str, str]) -> None:
    rows = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in settings.items()
    )
    path.write_text(f"<configuration>{rows}</configuration>")


def test_a_path_and_a_file_url_are_local(tmp_path: Path) -> None:
    folder = tmp_path / "ein Ordner mit ü"
    stores = [open_store(folder), open_store(str(folder)), open_store(folder.as_uri()), open_store(f"file://{folder}")]
    for store in stores:
        assert isinstance(store, LocalStore)
        assert store.root == folder
        assert open_store(store.url).url == store.url
    assert open_store(stores[0]) is stores[0]


def test_other_schemes_are_fsspec() -> None:
    store = open_store("memory://x/y/")
    assert isinstance(store, FsspecStore)
    assert store.url == "memory://x/y"


def test_options_reach_the_store_or_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="takes no options, but 'client' were given"):
        open_store(tmp_path, client="native")
    assert "libhdfs" in repr(open_store("hdfs://a:1/x", client="libhdfs"))


@pytest.mark.parametrize("url", ["", "nosuchscheme://x", "file://otherhost/x", b"bytes"])
def test_addresses_that_are_no_store(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"otherhost|nosuchscheme|no address"):
        open_store(url)


@pytest.mark.parametrize("url", [None, 3, ["/tmp"]])
def test_what_is_no_address_at_all(url: Any) -> None:
    with pytest.raises(ConfigurationError, match="no address of a store: give a path, or a URL"):
        open_store(url)


def test_viewfs_is_refused_with_its_remedy() -> None:
    with pytest.raises(ConfigurationError, match=r"'viewfs://c/x' .*: give the address behind it, 'hdfs://"):
        open_store("viewfs://c/x")


@pytest.mark.parametrize("below", ["", "/a/b"])
def test_a_path_that_is_a_file_is_refused(tmp_path: Path, below: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for address in (f"{file}{below}", f"{file.as_uri()}{below}"):
        with pytest.raises(ConfigurationError, match=r"notes.txt' is a file, but a store is a folder: give"):
            open_store(address)
    with pytest.raises(ConfigurationError, match=r"notes.txt' is a file, but a store is a folder: give"):
        LocalStore(f"{file}{below}")
    assert file.read_text() == "mine"


def test_hdfs_without_a_host_takes_the_name_node_of_the_configuration(conf_dir: Path) -> None:
    store = open_store("hdfs:///user/me")
    assert isinstance(store, HdfsStore)
    assert store.url == "hdfs://prod/user/me"
    assert store.__reduce__()[1][2] == {
        "dfs.nameservices": "prod",
        "dfs.ha.namenodes.prod": "nn1,nn2",
        "dfs.namenode.rpc-address.prod.nn1": "a:8020",
    }
    assert conf_dir.exists()


def test_hdfs_with_a_host_keeps_it(conf_dir: Path) -> None:
    assert open_store("hdfs://other:9000/user/me").url == "hdfs://other:9000/user/me"
    assert conf_dir.exists()


def test_hdfs_without_a_host_or_a_configuration_says_what_to_set(
    conf_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _site(conf_dir / "core-site.xml", {"fs.defaultFS": "file:///"})
    with pytest.raises(ConfigurationError, match=r"core-site.xml says 'file:///': write 'hdfs://namenode:8020/"):
        open_store("hdfs:///x")
    (conf_dir / "core-site.xml").write_text("<configuration>")
    with pytest.raises(ConfigurationError, match="is no Hadoop configuration file"):
        open_store("hdfs:///x")
    monkeypatch.delenv("HADOOP_CONF_DIR")
    with pytest.raises(ConfigurationError, match="HADOOP_CONF_DIR"):
        open_store("hdfs:///x")


@pytest.mark.jvm
@pytest.mark.hadoop
def test_hdfs_opens_with_the_cluster_s_own_configuration(
    hadoop_cluster: HadoopCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop_cluster.conf_dir))
    store = open_store("hdfs:///by-configuration")
    store.write("a", b"x")
    assert store.url == f"{hadoop_cluster.url}/by-configuration"
    assert open_store(store.url).read("a") == b"x"


_SPARK = """
import sys, warnings
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false") \\
    .config("spark.hadoop.fs.defaultFS", sys.argv[1]) \\
    .config("spark.hadoop.dfs.client.use.datanode.hostname", "true").getOrCreate()
from cerebro_spark.store import open_store
store = open_store("hdfs:///by-spark")
store.write("a", b"x")
path = spark._jvm.org.apache.hadoop.fs.Path("/by-spark/a")
status = path.getFileSystem(spark._jsc.hadoopConfiguration()).getFileStatus(path)
print(store.url, status.getLen())
spark.stop()
"""


@pytest.mark.jvm
@pytest.mark.hadoop
@pytest.mark.slow
def test_hdfs_opens_with_the_spark_session_s_configuration(hadoop_cluster: HadoopCluster, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _SPARK, hadoop_cluster.url],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ":".join(path for path in sys.path if path)},
        check=False,
    )
    assert done.stdout.split() == [f"{hadoop_cluster.url}/by-spark", "1"], done.stderr


def test_importing_the_stores_loads_no_client() -> None:
    code = (
        "import sys, cerebro_spark.store as s; s.open_store, s.HdfsStore, s.FsspecStore, s.LocalStore;"
        " print([m for m in ('fsspec', 'hdfs_native', 's3fs', 'pyarrow', 'pyspark') if m in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == "[]"


_PARTS = st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=40)


@given(st.lists(_PARTS, min_size=1, max_size=4).map("/".join), st.binary(max_size=100))
def test_any_good_name_keeps_its_bytes(tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes) -> None:
    try:
        check_name(name)
    except ConfigurationError:
        assert any(part in (".", "..") for part in name.split("/")) or name.startswith(".staging")
        return
    for store in (LocalStore(tmp_path_factory.mktemp("any")), FsspecStore(f"memory://any/{id(data)}-{hash(name)}")):
        store.write(name, data)
        assert store.list() == [name]
        assert store.read(name) == data
        store.delete(name)
        assert store.list() == []
