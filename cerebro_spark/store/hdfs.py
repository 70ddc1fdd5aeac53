"""A store on HDFS. A blob is written under a staging name, closed, then renamed. It is never overwritten."""

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
from cerebro_spark.store.hdfs_clients import CLIENTS, FileStatus, HdfsClient, hdfs_error_kind
from cerebro_spark.store.hdfs_uploads import upload_new
from cerebro_spark.store.idempotence import accept_own_bytes
from cerebro_spark.store.streams import SpooledBlob, open_reader

_COPY = 8 << 20
ClientName = Literal["native", "libhdfs"]


class HdfsStore(Store):
    """Blobs as files under one folder of HDFS.

    `writer` collects its bytes in a temporary file on local disk and uploads them when the block ends, so that an
    upload to a dead data node can be repeated. HDFS does not allow ":" in names: such a name raises ConfigurationError.

    Args:
        url: The folder, with the name node or the name service: "hdfs://namenode:8020/folder". (`cs.open_store` also
            takes "hdfs:///folder".)
        client: "native" (the library hdfs-native: no JVM and no libhdfs) or "libhdfs" (through pyarrow, on nodes that
            have libhdfs.so, a JVM and CLASSPATH set). Defaults to "native". With "libhdfs" two writers that commit one
            name at the same instant may both succeed; the test suite covers "native" only.
        options: Hadoop settings such as {"dfs.client.use.datanode.hostname": "true"}, on top of those in
            HADOOP_CONF_DIR. The store takes them along to the workers. Defaults to None.

    Raises:
        ConfigurationError: If `url` is not of that form, or there is no such client.

    Examples:
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
        with accept_own_bytes(self, name, lambda: io.BytesIO(data)), self._errors(name):
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
        with open_reader(raw, lambda: self._errors(name)) as file:
            yield file

    def size(self, name: str) -> int:
        path = self._path(name)
        with self._errors(name):
            status = self._client.status(path)
            if status is None or status.is_folder:
                raise FileNotFoundError(path)
            return status.size

    def exists(self, name: str) -> bool:
        path = self._path(name)
        with self._errors(name):
            status = self._client.status(path)
            return status is not None and (not status.is_folder or next(self._files(path), None) is not None)

    def list(self, folder: str = "") -> list[str]:
        base = self._path(folder) if folder else self._root or "/"
        with self._errors(folder):
            status = self._client.status(base)
            if status is None or not status.is_folder:
                return []
            return sorted(found.path[len(self._root) + 1 :] for found in self._files(base))

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._errors(name):
            self._client.delete(path)

    def sweep(self, older_than: float = 86_400.0) -> int:
        with self._errors(STAGING):
            leftovers = self._leftovers(older_than)
            for status in leftovers:
                self._client.delete(status.path)
        return len(leftovers)

    def beside(self, url: str) -> HdfsStore:
        return HdfsStore(url, self._client_name, self._options)

    def unfinished(self, older_than: float = 86_400.0) -> dict[str, int]:
        with self._errors(STAGING):
            return {status.path[len(self._root) + 1 :]: status.size for status in self._leftovers(older_than)}

    def _leftovers(self, older_than: float) -> tuple[FileStatus, ...]:
        limit = time.time() - older_than
        staged = self._client.list_folder(f"{self._root}/{STAGING}")
        return tuple(status for status in staged if status.modified <= limit)

    @property
    def _client(self) -> HdfsClient:
        return self._connection.get()

    def _path(self, name: str) -> str:
        if ":" in check_name(name):
            raise ConfigurationError(f"{name!r} cannot name a blob on HDFS, which refuses ':': use another character")
        return f"{self._root}/{name}"

    def _errors(self, name: str) -> AbstractContextManager[None]:
        # The native client raises RuntimeError for errors that have no Python class.
        return store_errors(name, self.url, hdfs_error_kind, (OSError, RuntimeError))

    def _is_blob(self, name: str) -> bool:
        status = self._client.status(self._path(name))
        return status is not None and not status.is_folder

    def _stage(self, name: str) -> SpooledBlob:
        return SpooledBlob(lambda file: self._put_new(name, file))

    def _put_new(self, name: str, source: bytes | memoryview | Path) -> None:
        upload_new(self._client, source, f"{self._root}/{STAGING}/{uuid.uuid4().hex}", self._path(name))

    def _fetch_blob(self, name: str, path: Path) -> None:
        with self.reader(name) as source, open(path, "xb") as copy:
            while data := source.read(_COPY):
                copy.write(data)

    def _files(self, folder: str) -> Iterator[FileStatus]:
        """Yield all files under `folder`, at any depth; a folder that is deleted meanwhile is empty."""
        for status in self._client.list_folder(folder):
            if not status.is_folder:
                yield status
            elif status.path != f"{self._root}/{STAGING}":
                yield from self._files(status.path)
