"""Opens a store by its address. It imports a client library only if the address needs it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store.base import Store
from cerebro_spark.store.local import LocalStore

if TYPE_CHECKING:
    from cerebro_spark.store.fsspec import FsspecStore


def open_store(url: str | os.PathLike[str] | Store, **options: Any) -> Store:
    """Open the store at an address.

    Args:
        url: The address. A path or "file:///path" gives a LocalStore; "hdfs://namenode:8020/path" gives an HdfsStore,
            and "hdfs:///path" too, with the name node of the active Spark session or of HADOOP_CONF_DIR; every other
            scheme ("s3://bucket/prefix", "gs://...", "memory://...") gives an FsspecStore. A Store is returned as is.
        options: Arguments of that store's constructor, such as credentials. A LocalStore takes none.

    Returns:
        The store.

    Raises:
        ConfigurationError: If there is no such address, or it takes no options.
        MissingDependency: If the client library for the address is not installed.

    Examples:
        >>> import tempfile
        >>> store = open_store(tempfile.mkdtemp())
        >>> open_store(store.url).url == store.url
        True
        >>> open_store("memory://churn")
        FsspecStore('memory://churn')
    """
    if isinstance(url, Store):
        _refuse_options(url.url, options)
        return url
    address = os.fspath(url) if isinstance(url, str | os.PathLike) else None
    if not isinstance(address, str) or not address:
        raise ConfigurationError(f"{url!r} is no address of a store: give a path, or a URL such as 'hdfs:///user/me'")
    scheme, separator, _ = address.partition("://")
    is_path = not separator or "/" in scheme
    if is_path or scheme == "file":
        _refuse_options(address, options)
        return LocalStore(address if is_path else _local_path(address))
    if scheme == "hdfs":
        return _open_hdfs(address, options)
    if scheme == "viewfs":
        raise ConfigurationError(
            f"{address!r} is a view that only Hadoop's own client can resolve: give the address behind it,"
            " 'hdfs://namenode:8020/path'"
        )
    store = _fsspec_store(address, options)
    store.connect()
    return store


def reopen(url: str) -> Store:
    """Return the store at an address that a run has kept, without connecting: it may never be used."""
    scheme = url.partition("://")[0]
    return open_store(url) if scheme in ("file", "hdfs") else _fsspec_store(url, {})


def _local_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise ConfigurationError(
            f"{url!r} names the machine {parts.netloc!r}: a file URL has three slashes, 'file:///path'"
        )
    return unquote(parts.path)


def _open_hdfs(url: str, options: dict[str, Any]) -> Store:
    from cerebro_spark.store.hadoop_settings import client_settings, name_node
    from cerebro_spark.store.hdfs import HdfsStore

    if url.startswith("hdfs:///"):
        url = name_node() + url.removeprefix("hdfs://")
    given = options.pop("options", None) or {}
    return HdfsStore(url, options={**client_settings(), **given}, **options)


def _fsspec_store(url: str, options: dict[str, Any]) -> FsspecStore:
    from cerebro_spark.store.fsspec import FsspecStore

    return FsspecStore(url, **options)


def _refuse_options(address: str, options: dict[str, Any]) -> None:
    if options:
        raise ConfigurationError(
            f"{address} takes no options, but {', '.join(map(repr, options))} were given: leave them out"
        )
