"""A folder of this user alone, held open. A folder that others made, or may read or write, is refused.

Every user can write to shared memory and to the temporary folder, and names there can be guessed. So a folder is not
trusted by its name: it is opened once, without following a link, and checked through its handle. All later work goes
through that handle, even if the folder is renamed or replaced meanwhile.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

from cerebro_spark.errors import UntrustedCache

_HANDLES = Path("/proc/self/fd")
_OTHERS, _WRITERS = 0o077, 0o022


class PrivateFolder:
    """The folder at `path`: owned by this user, with no rights for others, and no link.

    Args:
        path: Its name.
        make: Make it if it is not there. Default: True.
        within: It lies in a private folder, so others cannot reach it to read it. Default: False.

    Raises:
        UntrustedCache: It is another user's, a link, no folder, or open to others; the message has the fix.

    >>> import tempfile
    >>> with PrivateFolder(Path(tempfile.mkdtemp()) / "mine") as folder:
    ...     oct(folder.place.stat().st_mode)
    '0o40700'
    """

    def __init__(self, path: Path, *, make: bool = True, within: bool = False) -> None:
        self.path = path
        self._handle = _open_folder(path, make)
        try:
            _check(os.fstat(self._handle), path, _WRITERS if within else _OTHERS)
        except BaseException:
            os.close(self._handle)
            raise

    @property
    def place(self) -> Path:
        """A path that leads into this folder while it is open, even if it is renamed (on Linux; else its name)."""
        handle = _HANDLES / str(self._handle)
        return handle if handle.exists() else self.path

    def __enter__(self) -> PrivateFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder; `place` is not valid after that."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    @property
    def is_there(self) -> bool:
        """Whether the folder still has its name: another process may have deleted it."""
        try:
            return os.path.samestat(os.fstat(self._handle), os.lstat(self.path))
        except FileNotFoundError:
            return False


def open_private(path: Path, mode: Literal["rb", "xb", "ab"] = "rb") -> IO[bytes]:
    """Open a file of a private folder; UntrustedCache if it is a link, another user's, or no plain file.

    A new file has no rights for others. An old file that others may read is accepted: they cannot reach it.
    """
    return open(path, mode, opener=_open_file)


def _open_file(name: str, flags: int) -> int:
    path = Path(name)
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):
            raise _refusal(path, "is a link") from error
        raise
    try:
        _check_file(handle, path)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _open_folder(path: Path, make: bool) -> int:
    if make:
        _make(path)
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR) and os.path.lexists(path):
            raise _refusal(path, "is a link" if path.is_symlink() else "is no folder") from error
        if error.errno == errno.EACCES:
            raise _refusal(path, f"belongs to {_user(os.lstat(path).st_uid)}") from error
        raise


def _make(path: Path) -> None:
    """Make the folder and those above it, each with mode 0700 whatever the umask is."""
    for folder in (*reversed(path.parents), path):
        with suppress(FileExistsError):
            if not folder.is_dir():
                folder.mkdir(mode=0o700)


def _check_file(handle: int, path: Path) -> None:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        raise _refusal(path, "is no plain file")
    if found.st_nlink > 1:
        raise _refusal(path, f"has {found.st_nlink} names, one of which may be another user's")
    _check(found, path, _WRITERS)


def _check(found: os.stat_result, path: Path, forbidden: int) -> None:
    if found.st_uid != os.geteuid():
        raise _refusal(path, f"belongs to {_user(found.st_uid)}")
    if found.st_mode & forbidden:
        raise _refusal(path, f"has the mode {stat.S_IMODE(found.st_mode):04o}, which lets others in")


def _refusal(path: Path, wrong: str) -> UntrustedCache:
    """Return the error, with the name of the folder instead of its handle."""
    if path.is_relative_to(_HANDLES) and len(path.parts) > 4:
        with suppress(OSError):
            path = Path(os.readlink(Path(*path.parts[:5])), *path.parts[5:])
    return UntrustedCache(
        f"{path} {wrong}, so training data is not kept there: a cache must be a folder of {_user(os.geteuid())} with"
        " the mode 0700, since a user who can write there can change what models learn. Remove it (its owner or an"
        " administrator can), or name another folder in CEREBRO_SPARK_CACHE (on disk) or CEREBRO_SPARK_CACHE_MEMORY"
        " (in shared memory)"
    )


def _user(uid: int) -> str:
    try:
        return f"user {pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"user {uid}"
