"""What a file system or a client library raises, as the store errors users see. It never decides what to do next."""

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

Kind = type[StoreError]


def not_in_store(name: str, url: str) -> NotFoundInStore:
    """The error for a name that is not there.

    >>> str(not_in_store("a/b", "memory://x"))
    "'a/b' is not in the store memory://x: `list` shows what is"
    """
    return NotFoundInStore(f"{name!r} is not in the store {url}: `list` shows what is")


def already_in_store(name: str, url: str) -> AlreadyInStore:
    """The error for writing a name that is taken.

    >>> str(already_in_store("a", "memory://x"))
    "'a' is already in the store memory://x: blobs are never changed, so choose another name or delete it first"
    """
    return AlreadyInStore(
        f"{name!r} is already in the store {url}: blobs are never changed, so choose another name or delete it first"
    )


def kind_of(error: BaseException) -> Kind:
    """Which store error says the same as this exception of the operating system.

    >>> kind_of(FileNotFoundError())
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


def as_store_error(error: BaseException, name: str, url: str, kind: Kind) -> StoreError:
    """The store error of this kind, with the name, the store and what was said in its message."""
    if kind is NotFoundInStore:
        return not_in_store(name, url)
    if kind is AlreadyInStore:
        return already_in_store(name, url)
    said = gist(error)
    if kind is StoreForbidden:
        return StoreForbidden(f"no permission for {name!r} in the store {url}: {said}")
    if kind is StoreFull:
        return StoreFull(f"no room for {name!r} in the store {url}: {said}; free some space or choose another store")
    return StoreError(f"{name!r} in the store {url}: {said}")


def gist(error: BaseException) -> str:
    """What an exception says, on one line and without the Java stack trace that Hadoop sends along.

    >>> gist(RuntimeError("Permission denied: user=eve\\n\\tat org.apache.hadoop.X.y(X.java:1)"))
    'Permission denied: user=eve'
    """
    message = re.split(r"(?:\n|\\n)\s*(?:\\t)?at ", str(error))[0]
    return " ".join(message.split()) or type(error).__name__


@contextmanager
def store_errors(
    name: str,
    url: str,
    kind: Callable[[BaseException], Kind] = kind_of,
    catch: tuple[type[Exception], ...] = (OSError,),
) -> Iterator[None]:
    """Let what the block raises out as store errors; those of this package pass unchanged."""
    try:
        yield
    except CerebroError:
        raise
    except catch as error:
        raise as_store_error(error, name, url, kind(error)) from error
