"""A store on HDFS. A blob is written under a staging name, closed, then renamed. It is never overwritten."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Literal

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store.connection import PerProcess
from cerebro_spark.store.failures import store_errors
from cerebro_spark.store.files import FileStatus, RemoteStore
from cerebro_spark.store.hadoop_settings import site_settings
from cerebro_spark.store.hdfs_clients import CLIENTS, hdfs_error_kind
from cerebro_spark.store.hdfs_patience import PatientClient
from cerebro_spark.store.hdfs_uploads import upload_new
from cerebro_spark.store.webhdfs import WebHdfs

ClientName = Literal["native", "libhdfs"]


class HdfsStore(RemoteStore):
    """Blobs as files under one folder of HDFS.

    `writer` collects its bytes in a temporary file on local disk and uploads them when the block ends, so that an
    upload to a dead data node can be repeated. Where a data node says nothing for a second, others are asked beside it;
    where few bytes are written, after four times what that usually takes, if that is sooner. The native client cannot
    leave out the data node of its own host, which name nodes name first: every second attempt goes over WebHDFS, which
    can, where that is allowed (`hadoop.security.authentication` is not "kerberos", and the name node's web server is
    reached over plain HTTP).
    No call waits for ever for a node that does not answer: it raises StoreError after a minute, 20 s if it reads. HDFS
    does not allow ":" in names: such a name raises ConfigurationError.

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
        self._service, self._folder = f"hdfs://{parts[1]}", parts[2]
        self._client_name: ClientName = client
        self._options = dict(options or {})
        self._connection = PerProcess(self._connect)

    @property
    def url(self) -> str:
        return self._service + self._folder

    def __repr__(self) -> str:
        return f"HdfsStore({self.url!r}, client={self._client_name!r})"

    def __reduce__(self) -> tuple[type[HdfsStore], tuple[str, ClientName, dict[str, str]]]:
        return HdfsStore, (self.url, self._client_name, self._options)

    def beside(self, url: str) -> HdfsStore:
        return HdfsStore(url, self._client_name, self._options)

    @property
    def _root(self) -> str:
        return self._folder

    @property
    def _client(self) -> PatientClient:
        return self._connection.get()

    def _connect(self) -> PatientClient:
        client = CLIENTS[self._client_name](self._service, self._options)
        if self._client_name != "native":
            return PatientClient(client)
        return PatientClient(client, WebHdfs(self._service, {**site_settings(), **self._options}))

    def _path(self, name: str) -> str:
        if ":" in name:
            raise ConfigurationError(f"{name!r} cannot name a blob on HDFS, which refuses ':': use another character")
        return super()._path(name)

    def _errors(self, name: str) -> AbstractContextManager[None]:
        # The native client raises RuntimeError for errors that have no Python class.
        return store_errors(name, self.url, hdfs_error_kind, (OSError, RuntimeError))

    def _status(self, path: str) -> FileStatus | None:
        return self._client.status(path)

    def _files(self, folder: str) -> Iterator[str]:
        for status in self._client.list_folder(folder):
            if not status.is_folder:
                yield status.path
            elif status.path != self._staging:
                yield from self._files(status.path)

    def _staged(self) -> Iterator[FileStatus]:
        return self._client.list_folder(self._staging)

    def _open(self, path: str) -> BinaryIO:
        return self._client.open(path)

    def _put_new(self, name: str, source: bytes | memoryview | Path) -> None:
        upload_new(self._client, source, f"{self._staging}/{uuid.uuid4().hex}", self._path(name))

    def _delete(self, path: str) -> None:
        self._client.delete(path)
