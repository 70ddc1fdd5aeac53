"""Two clients of HDFS with one interface. hdfs.py decides what they are used for."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, Protocol, cast

from cerebro_spark.errors import AlreadyInStore, MissingDependency, NotFoundInStore, StoreForbidden, StoreFull
from cerebro_spark.store.failures import ErrorKind, error_kind
from cerebro_spark.store.files import FileStatus

# The Java class in an RPC error, and the store error for it.
_JAVA_KINDS: dict[str, ErrorKind] = {
    "AccessControlException": StoreForbidden,
    "AuthorizationException": StoreForbidden,
    "DSQuotaExceededException": StoreFull,
    "NSQuotaExceededException": StoreFull,
    "QuotaByStorageTypeExceededException": StoreFull,
    "FileAlreadyExistsException": AlreadyInStore,
    "ParentNotDirectoryException": NotFoundInStore,
    "FileNotFoundException": NotFoundInStore,
}


class HdfsClient(Protocol):
    """What HdfsStore needs of a client. Paths are absolute. Errors are OSError or RuntimeError: `hdfs_error_kind`."""

    def status(self, path: str) -> FileStatus | None:
        """Return what is at `path`, or None."""

    def list_folder(self, folder: str) -> Iterator[FileStatus]:
        """Yield what is directly in `folder`; nothing if there is no such folder, or it is a file."""

    def open(self, path: str) -> BinaryIO:
        """Open a seekable file for reading."""

    def create(self, path: str, block_size: int) -> BinaryIO:
        """Open a new file for writing, in blocks of `block_size` bytes; folders above it are made."""

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it. Folders that exist are no error; a file may raise NotADirectoryError."""

    def rename_new(self, source: str, target: str) -> None:
        """Rename a file. Raises FileExistsError if `target` exists."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all in it. A path that does not exist is no error."""


class NativeClient:
    """The library hdfs-native: the protocol in Rust, without a JVM."""

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

    def status(self, path: str) -> FileStatus | None:
        try:
            with _under_file_is_not_a_directory():
                return self._status(self._client.get_file_info(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list_folder(self, folder: str) -> Iterator[FileStatus]:
        with suppress(FileNotFoundError, NotADirectoryError), _under_file_is_not_a_directory():
            for status in self._client.list_status(folder or "/", False):
                if status.path != folder:  # a file lists itself
                    yield self._status(status)

    def open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._client.read(path))

    def create(self, path: str, block_size: int) -> BinaryIO:
        return cast(BinaryIO, self._client.create(path, self._write_options(block_size=block_size)))

    def make_folder(self, path: str) -> None:
        if path:
            with _under_file_is_not_a_directory():
                self._client.mkdirs(path, create_parent=True)

    def rename_new(self, source: str, target: str) -> None:
        try:
            self._client.rename(source, target, overwrite=False)
        except RuntimeError as error:
            # The only sign in the name node's answer that the target is a folder.
            if "must both be directories" in str(error):
                raise FileExistsError(errno.EEXIST, "is a folder", target) from error
            raise

    def delete(self, path: str) -> None:
        with suppress(NotADirectoryError), _under_file_is_not_a_directory():
            self._client.delete(path, recursive=True)

    @staticmethod
    def _status(status: Any) -> FileStatus:
        return FileStatus(status.path, status.isdir, status.length, status.modification_time / 1000)


class LibHdfsClient:
    """libhdfs through pyarrow, for clusters that have it: its JVM knows every Hadoop setting and security mode.

    The test suite cannot run it, because no package ships libhdfs.so. pyarrow's `move` replaces an existing file, so
    `rename_new` checks first: two writers that commit one name at the same instant may both succeed, and then the bytes
    of the later one stay.
    """

    def __init__(self, service: str, options: Mapping[str, str]) -> None:
        from pyarrow import fs

        self._fs: Any = fs.HadoopFileSystem(service, extra_conf=dict(options) or None)
        self._selector = fs.FileSelector
        self._missing, self._folder = fs.FileType.NotFound, fs.FileType.Directory

    def status(self, path: str) -> FileStatus | None:
        found = self._fs.get_file_info(path)
        return None if found.type == self._missing else self._status(found)

    def list_folder(self, folder: str) -> Iterator[FileStatus]:
        status = self.status(folder or "/")
        if status is not None and status.is_folder:
            selector = self._selector(folder or "/", allow_not_found=True)
            yield from map(self._status, self._fs.get_file_info(selector))

    def open(self, path: str) -> BinaryIO:
        return cast(BinaryIO, self._fs.open_input_file(path))

    def create(self, path: str, block_size: int) -> BinaryIO:
        del block_size  # pyarrow takes it only for a whole connection
        self.make_folder(path.rpartition("/")[0])
        return cast(BinaryIO, self._fs.open_output_stream(path))

    def make_folder(self, path: str) -> None:
        if path:
            self._fs.create_dir(path, recursive=True)

    def rename_new(self, source: str, target: str) -> None:
        if self.status(target) is not None:
            raise FileExistsError(errno.EEXIST, "exists already", target)
        self._fs.move(source, target)

    def delete(self, path: str) -> None:
        status = self.status(path)
        if status is not None:
            (self._fs.delete_dir if status.is_folder else self._fs.delete_file)(path)

    def _status(self, found: Any) -> FileStatus:
        return FileStatus(found.path, found.type == self._folder, found.size or 0, found.mtime.timestamp())


CLIENTS: dict[str, Callable[[str, Mapping[str, str]], HdfsClient]] = {"native": NativeClient, "libhdfs": LibHdfsClient}


def java_class(error: BaseException) -> str:
    """Return the short name of the Java exception in the message of a client's error, or "".

    >>> java_class(RuntimeError('RPCError("org.apache.hadoop.hdfs.protocol.DSQuotaExceededException", "..."'))
    'DSQuotaExceededException'
    """
    found = re.search(r"\b[a-z]\w*(?:\.\w+)+\.([A-Z]\w*(?:Exception|Error))\b", str(error))
    return found[1] if found else ""


def hdfs_error_kind(error: BaseException) -> ErrorKind:
    """Return the store error for an error of either client.

    >>> hdfs_error_kind(RuntimeError('RPCError("org.apache.hadoop.security.AccessControlException", "..."')).__name__
    'StoreForbidden'
    """
    if is_under_file(error):
        return NotFoundInStore
    return _JAVA_KINDS.get(java_class(error)) or error_kind(error)


def is_under_file(error: BaseException) -> bool:
    """Return whether the name node found a file where the path has a folder.

    Depending on the call it answers with a ParentNotDirectoryException or an AccessControlException.
    """
    return "(is not a directory)" in str(error)


@contextmanager
def _under_file_is_not_a_directory() -> Iterator[None]:
    """Raise the native client's errors for a path under a file as NotADirectoryError."""
    try:
        yield
    except RuntimeError as error:
        if is_under_file(error):
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way") from error
        raise
