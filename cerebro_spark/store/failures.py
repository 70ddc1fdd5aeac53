"""Turns errors of file systems and client libraries into store errors. It never decides what to do about them."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cerebro_spark.errors import (
    AlreadyInStore,
    CerebroError,
    NotFoundInStore,
    StoreError,
    StoreForbidden,
    StoreFull,
)

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY}

ErrorKind = type[StoreError]


def not_in_store(name: str, url: str) -> NotFoundInStore:
    """Return the error for a name that does not exist.

    >>> str(not_in_store("a/b", "memory://x"))
    "'a/b' is not in the store memory://x: `list` shows what is"
    """
    return NotFoundInStore(f"{name!r} is not in the store {url}: `list` shows what is")


def already_in_store(name: str, url: str) -> AlreadyInStore:
    """Return the error for writing a name that is taken.

    >>> str(already_in_store("a", "memory://x"))
    "'a' is already in the store memory://x: blobs are never changed, so choose another name or delete it first"
    """
    return AlreadyInStore(
        f"{name!r} is already in the store {url}: blobs are never changed, so choose another name or delete it first"
    )


def error_kind(error: BaseException) -> ErrorKind:
    """Return the store error for an exception of the operating system.

    >>> error_kind(FileNotFoundError())
    <class 'cerebro_spark.errors.NotFoundInStore'>
    """
    number = getattr(error, "errno", None)
    if isinstance(error, FileExistsError) or number in _TAKEN:
        return AlreadyInStore
    if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
        return NotFoundInStore
    if isinstance(error, PermissionError) or number in _FORBIDDEN:
        return StoreForbidden
    return StoreFull if number in _FULL else StoreError


def as_store_error(error: BaseException, name: str, url: str, kind: ErrorKind) -> StoreError:
    """Return a store error of this kind, with the name, the store and the message of the original error."""
    if kind is NotFoundInStore:
        return not_in_store(name, url)
    if kind is AlreadyInStore:
        return already_in_store(name, url)
    message = one_line(error)
    if kind is StoreForbidden:
        return StoreForbidden(f"no permission for {name!r} in the store {url}: {message}")
    if kind is StoreFull:
        return StoreFull(f"no room for {name!r} in the store {url}: {message}; free some space or choose another store")
    return StoreError(f"{name!r} in the store {url}: {message}")


def one_line(error: BaseException) -> str:
    """Return the message of an exception on one line, without the Java stack trace that Hadoop adds.

    >>> one_line(RuntimeError("Permission denied: user=eve\\n\\tat org.apache.hadoop.X.y(X.java:1)"))
    'Permission denied: user=eve'
    """
    message = re.split(r"(?:\n|\\n)\s*(?:\\t)?at ", str(error))[0]
    return " ".join(message.split()) or type(error).__name__


@contextmanager
def store_errors(
    name: str,
    url: str,
    kind: Callable[[BaseException], ErrorKind] = error_kind,
    catch: tuple[type[Exception], ...] = (OSError,),
) -> Iterator[None]:
    """Raise errors of the block as store errors. Errors of this package pass unchanged.

    Args:
        name: The blob, for the message.
        url: The store, for the message.
        kind: Returns the store error for an exception. Defaults to `error_kind`.
        catch: The exceptions to translate. Defaults to `(OSError,)`.
    """
    try:
        yield
    except CerebroError:
        raise
    except catch as error:
        raise as_store_error(error, name, url, kind(error)) from error
