"""A store on any fsspec file system: S3, GCS, Azure, memory, SFTP, ... It never uses a client's cached listing."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from cerebro_spark.errors import ConfigurationError, MissingDependency
from cerebro_spark.store.addresses import with_secrets_of, without_secrets
from cerebro_spark.store.base import STAGING, Store, check_name
from cerebro_spark.store.connection import PerProcess
from cerebro_spark.store.failures import already_in_store, store_errors
from cerebro_spark.store.fsspec_uploads import CONDITIONAL, has_folders, upload_new
from cerebro_spark.store.idempotence import accept_own_bytes
from cerebro_spark.store.streams import SpooledBlob, open_reader

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs", "abfs": "azure", "abfss": "azure", "az": "azure"}


class FsspecStore(Store):
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

    def write(self, name: str, data: bytes | memoryview) -> None:
        check_name(name)
        with accept_own_bytes(self, name, lambda: io.BytesIO(data)), self._errors(name):
            if self._is_blob(name):
                raise already_in_store(name, self.url)
            self._put_new(name, bytes(data))

    def read(self, name: str) -> bytes:
        path = self._path(name)
        with self._errors(name):
            return bytes(self._fs.cat_file(path))

    @contextmanager
    def reader(self, name: str) -> Iterator[BinaryIO]:
        path = self._path(name)
        with self._errors(name):
            raw = self._open(path)
        with open_reader(raw, lambda: self._errors(name)) as file:
            yield file

    def size(self, name: str) -> int:
        path = self._path(name)
        with self._errors(name):
            found = self._info(path)
            if found is None or found["type"] != "file":
                raise FileNotFoundError(path)
            return int(found["size"])

    def exists(self, name: str) -> bool:
        path = self._path(name)
        with self._errors(name):
            return self._is_blob(name) or bool(self._files(path))

    def list(self, folder: str = "") -> list[str]:
        base = self._path(folder) if folder else self._root
        with self._errors(folder):
            return sorted(path[len(self._root) + 1 :] for path in self._files(base))

    def delete(self, name: str) -> None:
        path = self._path(name)
        with self._errors(name):
            for doomed in (path,) if self._is_blob(name) else self._files(path):
                self._remove(doomed)
            if has_folders(self._protocol):
                self._remove_folders(path)

    def sweep(self, older_than: float = 86_400.0) -> int:
        with self._errors(STAGING):
            leftovers = self._leftovers(older_than)
            for path in leftovers:
                self._remove(path)
        return len(leftovers)

    def beside(self, url: str) -> FsspecStore:
        return FsspecStore(with_secrets_of(url, self._address), **self._options)

    def unfinished(self, older_than: float = 86_400.0) -> dict[str, int]:
        with self._errors(STAGING):
            return {path[len(self._root) + 1 :]: size for path, size in self._leftovers(older_than).items()}

    def connect(self) -> None:
        """Load the client library now.

        Raises:
            MissingDependency: If it is not installed.
            ConfigurationError: If it cannot open the address.
        """
        self._connection.get()

    def _leftovers(self, older_than: float) -> dict[str, int]:
        limit = time.time() - older_than
        found = sorted(self._find(self._staging_folder).items())
        return {path: int(info["size"]) for path, info in found if _modified(info) <= limit}

    @property
    def _fs(self) -> Any:
        return self._connection.get()[0]

    @property
    def _root(self) -> str:
        return self._connection.get()[1]

    @property
    def _staging_folder(self) -> str:
        return f"{self._root}/{STAGING}"

    def _connect(self) -> tuple[Any, str]:
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise MissingDependency(f"{self.url} needs fsspec: {_remedy(self._protocol)}") from error
        # A cached listing does not show what other processes have written since.
        options = {"use_listings_cache": False, **self._options} if self._protocol in CONDITIONAL else self._options
        try:
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

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"

    def _info(self, path: str) -> dict[str, Any] | None:
        self._fs.invalidate_cache()
        try:
            return dict(self._fs.info(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _is_blob(self, name: str) -> bool:
        found = self._info(self._path(name))
        return found is not None and found["type"] == "file"

    def _find(self, folder: str) -> dict[str, dict[str, Any]]:
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(folder, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        # `find` of a file returns the file itself, and some object stores have empty objects in place of folders.
        prefix = folder + "/"
        return {path: info for path, info in found.items() if path.startswith(prefix) and not path.endswith("/")}

    def _files(self, folder: str) -> tuple[str, ...]:
        hidden = self._staging_folder + "/"
        return tuple(path for path in self._find(folder) if not path.startswith(hidden))

    def _open(self, path: str) -> BinaryIO:
        if self._protocol == "memory":
            # All open files of a blob share one position: give every reader bytes of its own.
            return io.BytesIO(self._fs.cat_file(path))
        file = self._fs.open(path, "rb")
        # Clients of object stores open a mere prefix of other names as an empty file.
        if (getattr(file, "details", None) or {}).get("type") == "directory":
            raise FileNotFoundError(path)
        return cast(BinaryIO, file)

    def _remove(self, path: str) -> None:
        # Not `rm`: there "*" and "[" in a name are a pattern.
        with suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def _remove_folders(self, path: str) -> None:
        """Remove `path` and the folders under it if they are empty, so that a blob can have the name."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(path, withdirs=True, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return  # another process has just removed it
        folders = {name for name, info in found.items() if info["type"] == "directory"} | {path}
        for folder in sorted(folders, reverse=True):
            with suppress(OSError):
                self._fs.rmdir(folder)

    def _errors(self, name: str) -> AbstractContextManager[None]:
        # Clients have errors of their own: botocore's error for an unreachable server is no OSError.
        return store_errors(name, self.url, catch=(Exception,))

    def _stage(self, name: str) -> SpooledBlob:
        return SpooledBlob(lambda file: self._put_new(name, file))

    def _put_new(self, name: str, source: bytes | Path) -> None:
        upload_new(self._fs, self._protocol, source, self._path(name), self._staging_folder)

    def _fetch_blob(self, name: str, path: Path) -> None:
        with self._errors(name):
            if self._protocol == "memory":  # open files of a blob share one position
                path.write_bytes(self._fs.cat_file(self._path(name)))
            else:
                self._fs.get_file(self._path(name), str(path))


def _reopened(url: str, options: dict[str, Any]) -> FsspecStore:
    return FsspecStore(url, **options)


def _remedy(protocol: str) -> str:
    extra = _EXTRAS.get(protocol)
    return f"pip install 'cerebro-spark[{extra}]'" if extra else f"install the fsspec client for {protocol}://"


def _modified(info: dict[str, Any]) -> float:
    """Return when a file was written; one without a time counts as new. The key differs between file systems."""
    for key in ("mtime", "LastModified", "created", "modified", "updated"):
        value = info.get(key)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return float("inf")
