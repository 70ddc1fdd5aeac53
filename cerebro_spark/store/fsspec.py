"""A store on any fsspec file system: S3, GCS, Azure, memory, SFTP, ... It never uses a client's cached listing."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from cerebro_spark.errors import ConfigurationError, MissingDependency
from cerebro_spark.store.addresses import with_secrets_of, without_secrets
from cerebro_spark.store.connection import PerProcess
from cerebro_spark.store.failures import store_errors
from cerebro_spark.store.files import FileStatus, RemoteStore
from cerebro_spark.store.fsspec_uploads import CONDITIONAL, has_folders, upload_new

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}


class FsspecStore(RemoteStore):
    """Blobs as files or objects of an fsspec file system.

    How a name gets all bytes of one writer:

    - S3, GCS and Azure: an object appears when its upload is complete, and the upload is conditional on a free name, so
      of concurrent writers exactly one succeeds. (The test suite runs S3. With an S3 clone that ignores `If-None-Match`
      the last writer wins.) Incomplete uploads of a killed writer are never visible; a lifecycle rule of the bucket
      frees their space.
    - memory: one atomic step of this process. Other processes do not share it.
    - All others: a staging name, then the file system's own `mv`, after a check that the name is free. If `mv`
      overwrites, two writers that commit one name at the same instant may both succeed.

    `writer` collects its bytes in a temporary file on local disk and uploads them when the block ends.

    Args:
        url: The folder, with its protocol: "s3://bucket/prefix", "gs://...", "abfs://...", "memory://...".
        options: Options of the fsspec file system, such as `key=` and `secret=` for S3. The store takes them along to
            the workers.

    Raises:
        ConfigurationError: If `url` has no protocol.

    Examples:
        >>> store = FsspecStore("memory://doc/example")
        >>> store.write("a/b", b"hello")
        >>> store.list(), store.read("a/b")
        (['a/b'], b'hello')
    """

    def __init__(self, url: str, **options: Any) -> None:
        protocol, separator, path = url.partition("://")
        if not separator or not protocol:
            raise ConfigurationError(
                f"{url!r} is no address of a store: write 'protocol://folder', such as 's3://bucket/me'"
            )
        self._protocol = protocol
        self._address = url.rstrip("/") if path.strip("/") else url
        self._url = without_secrets(self._address)
        self._options = options
        self._connection: PerProcess[tuple[Any, str]] = PerProcess(self._connect)

    @property
    def url(self) -> str:
        return self._url

    def __repr__(self) -> str:
        return f"FsspecStore({self.url!r})"

    def __reduce__(self) -> tuple[Any, tuple[str, dict[str, Any]]]:
        return _reopened, (self._address, self._options)

    def read(self, name: str) -> bytes:
        with self._errors(name):
            return bytes(self._fs.cat_file(self._path(name)))

    def beside(self, url: str) -> FsspecStore:
        return FsspecStore(with_secrets_of(url, self._address), **self._options)

    def connect(self) -> None:
        """Load the client library now.

        Raises:
            MissingDependency: If it is not installed.
            ConfigurationError: If it cannot open the address.
        """
        self._connection.get()

    @property
    def _fs(self) -> Any:
        return self._connection.get()[0]

    @property
    def _root(self) -> str:
        return self._connection.get()[1]

    def _connect(self) -> tuple[Any, str]:
        # A cached listing does not show what other processes have written since.
        options = {"use_listings_cache": False, **self._options} if self._protocol in CONDITIONAL else self._options
        try:
            from fsspec.core import url_to_fs

            fs, root = url_to_fs(self._address, **options)
        except ImportError as error:
            raise MissingDependency(
                f"{self.url} needs a client library: {_remedy(self._protocol)} ({error})"
            ) from error
        except ValueError as error:
            raise ConfigurationError(
                f"{self.url!r} cannot be opened: {error}: give a path, or a URL such as 'hdfs:///user/me' or"
                " 's3://bucket/me'"
            ) from error
        return fs, root.rstrip("/")

    def _status(self, path: str) -> FileStatus | None:
        self._fs.invalidate_cache()
        try:
            return _file_status(path, self._fs.info(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _files(self, folder: str) -> Iterator[str]:
        hidden = self._staging + "/"
        return (path for path in self._find(folder) if not path.startswith(hidden))

    def _staged(self) -> Iterator[FileStatus]:
        return (_file_status(path, info) for path, info in sorted(self._find(self._staging).items()))

    def _find(self, folder: str, withdirs: bool = False) -> dict[str, dict[str, Any]]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(folder, withdirs=withdirs, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        # `find` of a file returns the file itself, and some object stores have empty objects in place of folders.
        prefix = folder + "/"
        return {path: info for path, info in found.items() if path.startswith(prefix) and not path.endswith("/")}

    def _open(self, path: str) -> BinaryIO:
        if self._protocol == "memory":
            # All open files of a blob share one position: give every reader bytes of its own.
            return io.BytesIO(self._fs.cat_file(path))
        file = self._fs.open(path, "rb")
        # Clients of object stores open a mere prefix of other names as an empty file.
        if (getattr(file, "details", None) or {}).get("type") == "directory":
            raise FileNotFoundError(path)
        return cast(BinaryIO, file)

    def _delete(self, path: str) -> None:
        status = self._status(path)
        is_blob = status is not None and not status.is_folder
        for doomed in (path,) if is_blob else self._files(path):
            # Not `rm`: there "*" and "[" in a name are a pattern.
            with suppress(FileNotFoundError):
                self._fs.rm_file(doomed)
        if has_folders(self._protocol):
            self._remove_folders(path)

    def _remove_folders(self, path: str) -> None:
        """Remove `path` and the folders under it if they are empty, so that a blob can have the name."""
        folders = [name for name, info in self._find(path, withdirs=True).items() if info["type"] == "directory"]
        for folder in sorted([path, *folders], reverse=True):
            with suppress(OSError):
                self._fs.rmdir(folder)

    def _errors(self, name: str) -> AbstractContextManager[None]:
        # Clients have errors of their own: botocore's error for an unreachable server is no OSError.
        return store_errors(name, self.url, catch=(Exception,))

    def _put_new(self, name: str, source: bytes | memoryview | Path) -> None:
        upload_new(self._fs, self._protocol, source, self._path(name), self._staging)

    def _fetch_blob(self, name: str, path: Path) -> None:
        with self._errors(name):
            if self._protocol == "memory":  # open files of a blob share one position
                path.write_bytes(self.read(name))
            else:
                self._fs.get_file(self._path(name), str(path))


def _reopened(url: str, options: dict[str, Any]) -> FsspecStore:
    return FsspecStore(url, **options)


def _remedy(protocol: str) -> str:
    extra = _EXTRAS.get(protocol)
    return f"pip install 'cerebro-spark[{extra}]'" if extra else f"install the fsspec client for {protocol}://"


def _file_status(path: str, info: dict[str, Any]) -> FileStatus:
    return FileStatus(path, info["type"] != "file", int(info.get("size") or 0), _modified(info))


def _modified(info: dict[str, Any]) -> float:
    """Return when a file was written; one without a time counts as new. The key differs between file systems."""
    for key in ("mtime", "LastModified", "created", "modified", "updated"):
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return float("inf")
