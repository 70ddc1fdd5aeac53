"""The two ways to speak to HDFS, with one interface. They decide nothing: what is atomic and why is in hdfs.py."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, Protocol

from cerebro_spark.errors import AlreadyInStore, MissingDependency, NotFoundInStore, StoreForbidden, StoreFull
from cerebro_spark.store.failures import Kind, kind_of

# The Java class in an RPC error, and what it means for a caller of a store.
_JAVA_KINDS: dict[str, Kind] = {
    "AccessControlException": StoreForbidden,
    "AuthorizationException": StoreForbidden,
    "DSQuotaExceededException": StoreFull,
    "NSQuotaExceededException": StoreFull,
    "QuotaByStorageTypeExceededException": StoreFull,
    "FileAlreadyExistsException": AlreadyInStore,
    "ParentNotDirectoryException": NotFoundInStore,
    "FileNotFoundException": NotFoundInStore,
}


class Entry(NamedTuple):
    """A file or folder of HDFS: absolute path, size in bytes, and when it was last modified (seconds since 1970)."""

    path: str
    is_folder: bool
    size: int
    modified: float


class HdfsClient(Protocol):
    """What HdfsStore needs of a client. Paths are absolute; errors are OSError or RuntimeError, see `failure_kind`."""

    def info(self, path: str) -> Entry | None:
        """What lies at `path`, or None."""

    def entries(self, folder: str) -> Iterator[Entry]:
        """What lies directly in `folder`; nothing when it is absent."""

    def open(self, path: str) -> BinaryIO:
        """A seekable file."""

    def create(self, path: str, block_size: int) -> BinaryIO:
        """A new file to write to, in blocks of that many bytes, its folders made."""

    def make_folder(self, path: str) -> None:
        """Make the folder and those above it; present ones are no error."""

    def rename_new(self, source: str, target: str) -> None:
        """Rename a file, or raise FileExistsError when `target` exists."""

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all in it; absent ones are no error."""


class NativeClient:
    """hdfs-native: the protocol in Rust, no JVM."""

    def __init__(self, service: str, options: Mapping[str, str]) -> None:
        try:
            import hdfs_native
        except ImportError as error:
            raise MissingDependency(
                f"{service} needs hdfs-native: pip install 'cerebro-spark[hdfs]' (or HdfsStore(url, client='libhdfs')"
                " on a node with libhdfs)"
            ) from error
        self._client: Any = hdfs_native.Client(service, config=dict(options))
        self._write_options: Any = hdfs_native.WriteOptions

    def info(self, path: str) -> Entry | None:
        try:
            return self._entry(self._client.get_file_info(path))
        except FileNotFoundError:
            return None
        except RuntimeError as error:
            if under_a_blob(error):
                return None
            raise

    def entries(self, folder: str) -> Iterator[Entry]:
        try:
            for status in self._client.list_status(folder or "/", False):
                yield self._entry(status)
        except FileNotFoundError:
            return

    def open(self, path: str) -> BinaryIO:
        file: BinaryIO = self._client.read(path)
        return file

    def create(self, path: str, block_size: int) -> BinaryIO:
        file: BinaryIO = self._client.create(path, self._write_options(block_size=block_size))
        return file

    def make_folder(self, path: str) -> None:
        if not path:
            return
        try:
            self._client.mkdirs(path, create_parent=True)
        except RuntimeError as error:
            if under_a_blob(error):
                raise FileExistsError(errno.EEXIST, "a file is in the way", path) from error
            raise

    def rename_new(self, source: str, target: str) -> None:
        try:
            self._client.rename(source, target, overwrite=False)
        except RuntimeError as error:
            # The name node calls it by no other name when the target is a folder.
            if "must both be directories" in str(error):
                raise FileExistsError(errno.EEXIST, "is a folder", target) from error
            raise

    def delete(self, path: str) -> None:
        try:
            self._client.delete(path, recursive=True)
        except RuntimeError as error:
            if not under_a_blob(error):
                raise

    @staticmethod
    def _entry(status: Any) -> Entry:
        return Entry(status.path, status.isdir, status.length, status.modification_time / 1000)


class LibHdfsClient:
    """libhdfs through pyarrow, for clusters that have it: its JVM knows every Hadoop setting and security mode.

    The test suite cannot run it (no package ships libhdfs.so): only the native client is exercised there. pyarrow's
    `move` replaces an existing file, so `rename_new` looks first: of two writers that commit one name at the same
    instant both may succeed, and the later one's bytes stay.
    """

    def __init__(self, service: str, options: Mapping[str, str]) -> None:
        from pyarrow import fs

        self._fs: Any = fs.HadoopFileSystem(service, extra_conf=dict(options) or None)
        self._selector = fs.FileSelector
        self._missing, self._folder = fs.FileType.NotFound, fs.FileType.Directory

    def info(self, path: str) -> Entry | None:
        found = self._fs.get_file_info(path)
        return None if found.type == self._missing else self._entry(found)

    def entries(self, folder: str) -> Iterator[Entry]:
        selector = self._selector(folder or "/", allow_not_found=True)
        return (self._entry(found) for found in self._fs.get_file_info(selector))

    def open(self, path: str) -> BinaryIO:
        file: BinaryIO = self._fs.open_input_file(path)
        return file

    def create(self, path: str, block_size: int) -> BinaryIO:
        del block_size  # pyarrow takes it for a whole connection only
        self.make_folder(path.rpartition("/")[0])
        file: BinaryIO = self._fs.open_output_stream(path)
        return file

    def make_folder(self, path: str) -> None:
        if path:
            self._fs.create_dir(path, recursive=True)

    def rename_new(self, source: str, target: str) -> None:
        if self.info(target) is not None:
            raise FileExistsError(errno.EEXIST, "exists already", target)
        self._fs.move(source, target)

    def delete(self, path: str) -> None:
        entry = self.info(path)
        if entry is not None:
            (self._fs.delete_dir if entry.is_folder else self._fs.delete_file)(path)

    def _entry(self, found: Any) -> Entry:
        return Entry(found.path, found.type == self._folder, found.size or 0, found.mtime.timestamp())


CLIENTS: dict[str, Callable[[str, Mapping[str, str]], HdfsClient]] = {"native": NativeClient, "libhdfs": LibHdfsClient}


def java_class(error: BaseException) -> str:
    """The short name of the Java exception that a client's error tells of, or "".

    >>> java_class(RuntimeError('RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "..."'))
    'DSQuotaExceededException'
    """
    found = re.search(r"\b[a-z]\w*(?:\.\w+)+\.([A-Z]\w*(?:Exception|Error))\b", str(error))
    return found[1] if found else ""


def failure_kind(error: BaseException) -> Kind:
    """Which store error an error of either client is.

    >>> failure_kind(RuntimeError('RPCError("org.apache.hadoop.security.AccessControlException", "..."')).__name__
    'StoreForbidden'
    """
    if under_a_blob(error):
        return NotFoundInStore
    return _JAVA_KINDS.get(java_class(error)) or kind_of(error)


def under_a_blob(error: BaseException) -> bool:
    """Whether the name node says that a file lies where the path has a folder.

    Depending on the call it says so as a ParentNotDirectoryException or as an AccessControlException.
    """
    return "(is not a directory)" in str(error)
