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

_SENTENCES: dict[ErrorKind, str] = {
    NotFoundInStore: "{name!r} is not in the store {url}: `list` shows what is",
    AlreadyInStore: "{name!r} is already in the store {url}: blobs are never changed, so choose another name or"
    " delete it first",
    StoreForbidden: "no permission for {name!r} in the store {url}: {error}",
    StoreFull: "no room for {name!r} in the store {url}: {error}; free some space or choose another store",
    StoreError: "{name!r} in the store {url}: {error}",
}


def store_error(kind: ErrorKind, name: str, url: str, error: str = "") -> StoreError:
    """Return an error of this kind, with the name, the store and the message of the original error.

    >>> str(store_error(NotFoundInStore, "a/b", "memory://x"))
    "'a/b' is not in the store memory://x: `list` shows what is"
    """
    return kind(_SENTENCES[kind].format(name=name, url=url, error=error))


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
        raise store_error(kind(error), name, url, one_line(error)) from error
