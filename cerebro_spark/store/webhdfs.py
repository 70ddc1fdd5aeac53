"""Writes and reads files of HDFS over HTTP (WebHDFS), at data nodes of other hosts.

It never decides when that is needed.

The name node names the data node of the caller's own host first. Where that node is dead, or hangs, and the host does
not, Hadoop's own client goes to another one; hdfs-native cannot. WebHDFS can: its name nodes take a list of data nodes
that are not wanted.
"""

from __future__ import annotations

import errno
import getpass
import http.client
import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from cerebro_spark.store.hdfs_clients import java_class

# What name nodes listen on if no setting says otherwise.
_PORT = 9870
# Seconds. A name node answers at once; one that does not is not to be asked again for a while.
_FOR_NAMES = 4.0
_CLOSED_FOR = 60.0
# Seconds for which a data node that did not answer is not wanted, and how many are asked for the bytes of a file. Not
# for its writing: see `write`.
_AVOIDED_FOR = 60.0
_ASKED = 3
_BYTES_AT_ONCE = 1 << 20


class WebHdfs:
    """The name nodes' web servers, and through them data nodes. Any thread may use it.

    It is for clusters whose data may be reached without Kerberos, over plain HTTP.

    Args:
        service: The name node or the name service: "hdfs://namenode:8020".
        settings: Hadoop settings.

    Examples:
        >>> WebHdfs("hdfs://namenode:8020", {}).is_open
        True
        >>> WebHdfs("hdfs://namenode:8020", {"hadoop.security.authentication": "kerberos"}).is_open
        False
    """

    def __init__(self, service: str, settings: Mapping[str, str]) -> None:
        self._addresses = web_addresses(service, settings) if _is_allowed(settings) else ()
        self._closed_until = 0.0
        self._avoided: dict[str, float] = {}
        """Data nodes that did not answer, and until when they are not wanted."""

    @property
    def is_open(self) -> bool:
        """Whether it is worth a try: it may be used, and a name node was not out of reach a moment ago."""
        return bool(self._addresses) and time.monotonic() >= self._closed_until

    def write(self, path: str, source: bytes | memoryview | Path, block_size: int, patience: float) -> None:
        """Create a file at a data node that is not on this host.

        One data node is asked. If it fails, whoever writes again must choose another path: a data node that hung does
        what it was told once it goes on, however late that is.

        Args:
            path: The absolute path of the file, which nobody has used before.
            source: The bytes, or a local file.
            block_size: The size of its blocks.
            patience: How many seconds to wait for the data node each time.

        Raises:
            OSError: If no name node is reached, or the data node is not; the next call does not ask that one.
            RuntimeError: If HDFS refuses; the message has Java's exception.
        """
        query = {"op": "CREATE", "overwrite": "false", "createparent": "true", "blocksize": str(block_size)}
        location = self._find_data_node("PUT", path, query)
        with self._avoiding(location):
            _send(location, source, patience)

    def read(self, path: str, offset: int, count: int, patience: float) -> bytes:
        """Return bytes of a file from a data node that is not on this host.

        Args:
            path: The absolute path of the file.
            offset: Where the bytes begin: before its end.
            count: How many there are.
            patience: How many seconds to wait for a data node each time.

        Raises:
            OSError: If no name node or no data node is reached.
            RuntimeError: If HDFS refuses; the message has Java's exception.
        """
        query = {"op": "OPEN", "offset": str(offset), "length": str(count)}
        tried = 0
        while True:
            location = self._find_data_node("GET", path, query)
            try:
                with self._avoiding(location):
                    return _fetch(location, patience)
            except OSError:
                tried += 1
                if tried == _ASKED:
                    raise

    @contextmanager
    def _avoiding(self, location: _Location) -> Iterator[None]:
        """Around what is done at a data node: one that cannot be reached is not asked again for a while."""
        try:
            yield
        except OSError:
            self._avoided[socket.gethostbyname(location.host)] = time.monotonic() + _AVOIDED_FOR
            raise

    def _find_data_node(self, method: str, path: str, query: Mapping[str, str]) -> _Location:
        """Ask the name nodes, one after another, where to go."""
        now, error = time.monotonic(), None
        unwanted = [address for address, until in list(self._avoided.items()) if now < until]
        for address in self._addresses:
            try:
                return _ask(address, method, path, query, unwanted)
            except OSError as reason:
                error = reason
        self._closed_until = time.monotonic() + _CLOSED_FOR
        assert error is not None
        raise error


class _Location:
    """The data node for a call.

    Args:
        url: What the name node has said.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise OSError(errno.EPROTONOSUPPORT, f"WebHDFS leads to {url!r}, but only plain HTTP can be used")
        self.host, self.port = parts.hostname, parts.port
        self.target = f"{parts.path}?{parts.query}"


def web_addresses(service: str, settings: Mapping[str, str]) -> tuple[str, ...]:
    """Return the addresses of the name nodes' web servers, "host:port".

    Args:
        service: The name node or the name service.
        settings: Hadoop settings.

    >>> web_addresses("hdfs://namenode:8020", {"dfs.namenode.http-address": "0.0.0.0:50070"})
    ('namenode:50070',)
    >>> web_addresses("hdfs://prod", {"dfs.ha.namenodes.prod": "a,b", "dfs.namenode.rpc-address.prod.a": "one:8020",
    ...     "dfs.namenode.rpc-address.prod.b": "two:8020", "dfs.namenode.http-address.prod.b": "two:9871"})
    ('one:9870', 'two:9871')
    """
    name = service.removeprefix("hdfs://")
    nodes = [node.strip() for node in settings.get(f"dfs.ha.namenodes.{name}", "").split(",")]
    suffixes = [f".{name}.{node}" for node in nodes if node]
    if not suffixes:
        return (_web_address(name, settings.get("dfs.namenode.http-address", "")),)
    return tuple(
        _web_address(
            settings.get(f"dfs.namenode.rpc-address{suffix}", ""),
            settings.get(f"dfs.namenode.http-address{suffix}", ""),
        )
        for suffix in suffixes
    )


def _web_address(rpc: str, web: str) -> str:
    """Return the address of a web server. A name node that listens everywhere is where it is called."""
    host, _, port = web.rpartition(":")
    if not host or host == "0.0.0.0":
        host = rpc.rpartition(":")[0] or rpc
    return f"{host}:{port or _PORT}"


def _is_allowed(settings: Mapping[str, str]) -> bool:
    # Data that is protected on its way must not take one on which it is not.
    return (
        settings.get("hadoop.security.authentication", "simple").lower() == "simple"
        and not settings.get("dfs.data.transfer.protection")
        and settings.get("dfs.http.policy", "HTTP_ONLY").upper() != "HTTPS_ONLY"
        and settings.get("dfs.webhdfs.enabled", "true").lower() != "false"
    )


def _ask(address: str, method: str, path: str, query: Mapping[str, str], unwanted: Iterable[str]) -> _Location:
    """Ask a name node for a data node. Raises OSError if another name node, or nobody, is to be asked."""
    connection = http.client.HTTPConnection(address, timeout=_FOR_NAMES)
    try:
        connection.connect()
        own = connection.sock.getsockname()[0]
        user = os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
        whole = {**query, "user.name": user, "excludedatanodes": ",".join([own, *unwanted])}
        connection.request(method, f"/webhdfs/v1{quote(path)}?{urlencode(whole)}")
        answer = connection.getresponse()
        said = answer.read()
        location = answer.getheader("Location")
        if answer.status == http.client.TEMPORARY_REDIRECT and location:
            return _Location(location)
        error = _refusal(answer.status, said)
        if isinstance(error, OSError) or java_class(error) == "StandbyException":
            raise OSError(errno.EPROTO, f"the name node at {address}: {error}")
        raise error
    except http.client.HTTPException as error:
        raise OSError(errno.EPROTO, f"the name node at {address} does not speak HTTP: {error!r}") from error
    finally:
        connection.close()


def _send(location: _Location, source: bytes | memoryview | Path, patience: float) -> None:
    """Send all bytes, and wait until the data node has confirmed them."""
    with _connected(location, patience) as connection:
        if isinstance(source, Path):
            with open(source, "rb") as file:
                _put(connection, location.target, file, source.stat().st_size)
        else:
            view = memoryview(source).cast("B")
            _put(connection, location.target, view, view.nbytes)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != http.client.CREATED:
            raise _refusal(answer.status, said)


def _fetch(location: _Location, patience: float) -> bytes:
    with _connected(location, patience) as connection:
        connection.request("GET", location.target)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != http.client.OK:
            raise _refusal(answer.status, said)
        return said


@contextmanager
def _connected(location: _Location, patience: float) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(location.host, location.port, timeout=patience, blocksize=_BYTES_AT_ONCE)
    try:
        yield connection
    except http.client.HTTPException as error:
        raise OSError(errno.EPROTO, f"the data node {location.host} does not speak HTTP: {error!r}") from error
    finally:
        connection.close()


def _put(connection: http.client.HTTPConnection, target: str, body: Any, size: int) -> None:
    headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    connection.request("PUT", target, body, headers)


def _refusal(status: int, said: bytes) -> OSError | RuntimeError:
    """Return the error for an answer: RuntimeError if it has an exception of Java, as those of hdfs-native have."""
    try:
        found = json.loads(said)["RemoteException"]
        return RuntimeError(f"{found['javaClassName']}: {found['message']}")
    except (ValueError, LookupError, TypeError):
        return OSError(errno.EPROTO, f"WebHDFS cannot be used: HTTP status {status}")
