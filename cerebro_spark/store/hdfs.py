"""A store on HDFS. A blob is written under a staging name, closed, then renamed; it is never overwritten."""

from __future__ import annotations

import io
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Literal

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store.base import STAGING, Store, check_name
from cerebro_spark.store.connection import PerProcess
from cerebro_spark.store.failures import already_in_store, store_errors
from cerebro_spark.store.hdfs_clients import CLIENTS, Entry, HdfsClient, failure_kind
from cerebro_spark.store.hdfs_puts import put_new
from cerebro_spark.store.sameness import own_bytes_pass
from cerebro_spark.store.spool import Spool
from cerebro_spark.store.streams import guarded_reader

_COPY = 8 << 20
ClientName = Literal["native", "libhdfs"]


class HdfsStore(Store):
    """Blobs as files under one folder of HDFS.

    `url` names the name node (or the name service): `open_store` fills it in for "hdfs:///path". `client` is "native"
    (hdfs-native: no JVM, no libhdfs; what the test suite runs against real daemons) or "libhdfs" (through pyarrow, on
    nodes that have libhdfs.so, a JVM and CLASSPATH set; see `hdfs_clients.LibHdfsClient` for what it cannot promise).
    `options` are Hadoop settings such as "dfs.client.use.datanode.hostname", on top of those that the client finds
    in HADOOP_CONF_DIR; they travel with the store to the workers.

    `writer` collects its bytes in a temporary file on local disk and uploads them when the block ends, so that an
    upload that met a dead data node can be made again.

    HDFS refuses ":" in names, so this store does, with ConfigurationError.

    >>> store = HdfsStore("hdfs://namenode:8020/user/me/churn")
    >>> store.url
    'hdfs://namenode:8020/user/me/churn'
    """

    def __init__(self, url: str, client: ClientName = "native", options: Mapping[str, str] | None = None) -> None:
        parts = re.fullmatch(r"hdfs://([^/]+)((?:/[^/]+)*)/*", url)
        if parts is None:
            raise ConfigurationError(f"{url!r} is no address of an HDFS folder: write 'hdfs://namenode:8020/folder'")
        if client not in CLIENTS:
            raise ConfigurationError(f"client is {client!r}, but must be one of {', '.join(map(repr, CLIENTS))}")
        self._service, self._root = f"hdfs://{parts[1]}", parts[2]
        self._client_name: ClientName = client
        self._options = dict(options or {})
        self._connection: PerProcess[HdfsClient] = PerProcess(
            lambda: CLIENTS[self._client_name](self._service, self._options)
        )

    @property
    def url(self) -> str:
        return self._service + self._root

    def __repr__(self) -> str:
        return f"HdfsStore({self.url!r}, client={self._client_name!r})"

    def __reduce__(self) -> tuple[type[HdfsStore], tuple[str, ClientName, dict[str, str]]]:
        return HdfsStore, (self.url, self._client_name, self._options)

    def write(self, name: str, data: bytes | memoryview) -> None:
        check_name(name)
        with own_bytes_pass(self, name, lambda: io.BytesIO(data)), self._errors(name):
            if self._is_blob(name):
                raise already_in_store(name, self.url)
            self._put_new(name, data)

    def read(self, name: str) -> bytes:
        path = self._path(name)
        with self._errors(name):
            file = self._client.open(path)
            try:
                return file.read()
            finally:
                file.close()

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        path = self._path(name)
        with self._errors(name):
            raw = self._client.open(path)
        with guarded_reader(raw, lambda: self._errors(name)) as file:
            yield file

    def size(self, name: str) -> int:
        path = self._path(name)
        with self._errors(name):
            entry = self._client.info(path)
            if entry is None or entry.is_folder:
                raise FileNotFoundError(path)
            return entry.size

    def exists(self, name: str) -> bool:
        path = self._path(name)
        with self._errors(name):
            entry = self._client.info(path)
            return entry is not None and (not entry.is_folder or next(self._files(path), None) is not None)

    def list(self, folder: str = "") -> list[str]:
        base = self._path(folder) if folder else self._root or "/"
        with self._errors(folder):
            entry = self._client.info(base)
            if entry is None or not entry.is_folder:
                return []
            return sorted(found.path[len(self._root) + 1 :] for found in self._files(base))

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._errors(name):
            self._client.delete(path)

    def sweep(self, older_than: float = 86_400.0) -> int:
        limit = time.time() - older_than
        with self._errors(STAGING):
            old = [entry for entry in self._client.entries(f"{self._root}/{STAGING}") if entry.modified <= limit]
            for entry in old:
                self._client.delete(entry.path)
        return len(old)

    def beside(self, url: str) -> HdfsStore:
        return HdfsStore(url, self._client_name, self._options)

    def unfinished(self, older_than: float = 86_400.0) -> dict[str, int]:
        limit = time.time() - older_than
        with self._errors(STAGING):
            found = list(self._client.entries(f"{self._root}/{STAGING}"))
            return {each.path[len(self._root) + 1 :]: each.size for each in found if each.modified <= limit}

    @property
    def _client(self) -> HdfsClient:
        return self._connection.get()

    def _path(self, name: str) -> str:
        if ":" in check_name(name):
            raise ConfigurationError(f"{name!r} cannot name a blob on HDFS, which refuses ':': use another character")
        return f"{self._root}/{name}"

    def _errors(self, name: str) -> AbstractContextManager[None]:
        # The native client raises RuntimeError for whatever has no Python name.
        return store_errors(name, self.url, failure_kind, (OSError, RuntimeError))

    def _is_blob(self, name: str) -> bool:
        entry = self._client.info(self._path(name))
        return entry is not None and not entry.is_folder

    def _stage(self, name: str) -> Spool:
        return Spool(lambda file: self._put_new(name, file))

    def _put_new(self, name: str, source: bytes | memoryview | Path) -> None:
        put_new(self._client, source, f"{self._root}/{STAGING}/{uuid.uuid4().hex}", self._path(name))

    def _fetch_blob(self, name: str, path: Path) -> None:
        with self.reader(name) as source, open(path, "xb") as copy:
            while data := source.read(_COPY):
                copy.write(data)

    def _files(self, folder: str) -> Iterator[Entry]:
        """All files under `folder`, at any depth; a folder that vanishes meanwhile is empty."""
        for entry in self._client.entries(folder):
            if not entry.is_folder:
                yield entry
            elif entry.path != f"{self._root}/{STAGING}":
                yield from self._files(entry.path)
