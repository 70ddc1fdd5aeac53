"""Every store under its contract. A new one is one more entry of `STORES`."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cerebro_spark.store.base import Store
from cerebro_spark.store.fsspec import FsspecStore
from cerebro_spark.store.hdfs import HdfsStore
from cerebro_spark.store.local import LocalStore
from cerebro_spark.store.retrying import RetryingStore

S3_SERVER = Path(__file__).with_name("s3_server.py")
_BUCKET = "contract"


@dataclass(frozen=True)
class Traits:
    """What a kind of store cannot promise; its docstring says so too."""

    exclusive: bool = True
    """of concurrent writers exactly one wins"""
    shared: bool = True
    """other processes see the same blobs"""
    folders: bool = True
    """folders are things of their own, so a blob cannot be one"""


@dataclass(frozen=True)
class Kind:
    make: Callable[[pytest.FixtureRequest], Store]
    traits: Traits = Traits()
    marks: tuple[pytest.MarkDecorator, ...] = ()


def _local(request: pytest.FixtureRequest) -> Store:
    folder: Path = request.getfixturevalue("tmp_path")
    return LocalStore(folder / "store with space")


def _patient(request: pytest.FixtureRequest) -> Store:
    folder: Path = request.getfixturevalue("tmp_path")
    return RetryingStore(LocalStore(folder / "patient"), seconds=5.0)


def _memory(request: pytest.FixtureRequest) -> Store:
    return FsspecStore(f"memory://contract/{uuid.uuid4().hex}")


def _files(request: pytest.FixtureRequest) -> Store:
    folder: Path = request.getfixturevalue("tmp_path")
    return FsspecStore((folder / "files").as_uri())


def _s3(request: pytest.FixtureRequest) -> Store:
    options = request.getfixturevalue("s3_options")
    return FsspecStore(f"s3://{_BUCKET}/some prefix/{uuid.uuid4().hex}", **options)


def _hdfs(request: pytest.FixtureRequest) -> Store:
    cluster = request.getfixturevalue("hadoop_cluster")
    return HdfsStore(f"{cluster.url}/contract/{uuid.uuid4().hex}", options=cluster.settings)


STORES = {
    "local": Kind(_local),
    "patient": Kind(_patient),
    "memory": Kind(_memory, Traits(shared=False, folders=False)),
    "files": Kind(_files, Traits(exclusive=False)),
    "s3": Kind(_s3, Traits(folders=False), marks=(pytest.mark.slow,)),
    "hdfs": Kind(_hdfs, marks=(pytest.mark.jvm, pytest.mark.hadoop)),
}


def _those(accepts: Callable[[Traits], bool] = lambda _: True) -> list[Any]:
    return [pytest.param(kind, id=name, marks=kind.marks) for name, kind in STORES.items() if accepts(kind.traits)]


@pytest.fixture(params=_those())
def store(request: pytest.FixtureRequest) -> Store:
    """Every store there is."""
    made: Store = request.param.make(request)
    return made


@pytest.fixture(params=_those(lambda traits: traits.exclusive))
def exclusive_store(request: pytest.FixtureRequest) -> Store:
    """Those on which of concurrent writers exactly one wins."""
    made: Store = request.param.make(request)
    return made


@pytest.fixture(params=_those(lambda traits: traits.shared))
def shared_store(request: pytest.FixtureRequest) -> Store:
    """Those that several processes share."""
    made: Store = request.param.make(request)
    return made


@pytest.fixture(params=_those(lambda traits: traits.shared and traits.exclusive))
def contested_store(request: pytest.FixtureRequest) -> Store:
    """Those on which of several processes exactly one wins."""
    made: Store = request.param.make(request)
    return made


@pytest.fixture(
    params=[pytest.param(STORES[name], id=name, marks=STORES[name].marks) for name in ("local", "s3", "hdfs")]
)
def real_store(request: pytest.FixtureRequest) -> Store:
    """One of each kind that drivers on several machines can share."""
    made: Store = request.param.make(request)
    return made


@pytest.fixture(params=_those(lambda traits: traits.folders))
def folder_store(request: pytest.FixtureRequest) -> Store:
    """Those with real folders."""
    made: Store = request.param.make(request)
    return made


@pytest.fixture(scope="session")
def s3_options() -> Iterator[dict[str, Any]]:
    """An S3 server with one bucket: its address and credentials, as options of an FsspecStore."""
    import s3fs

    server = subprocess.Popen([sys.executable, str(S3_SERVER)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert server.stdout is not None
    port = int(server.stdout.readline())
    where = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "eu-west-1"}
    options = {"key": "test", "secret": "test", "client_kwargs": where}
    s3fs.S3FileSystem(**options).mkdir(_BUCKET)
    yield options
    server.kill()
    server.wait(30)
    server.stdout.close()
