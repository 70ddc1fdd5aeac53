"""What the hosts of a test have of their own: a disk of a few megabytes, a limit of memory, a clock that can jump."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
_MIB = 1 << 20
_MOST_SECONDS = 30.0
"""Seconds after which a group whose processes were killed has been left by them."""
# Joins a group, and takes memory until the kernel has killed somebody of it, but not this process.
_BALLOON = """
import os, sys
from pathlib import Path

group, step = Path(sys.argv[1]), int(sys.argv[2])
(group / "cgroup.procs").write_text(str(os.getpid()))

def deaths():
    said = (group / "memory.oom_control").read_text().splitlines()
    return int(next(line for line in said if line.startswith("oom_kill ")).split()[1])

held, before = [], deaths()
while deaths() == before:
    held.append(b"x" * step)
print(deaths() - before, flush=True)
"""


def why_no_memory_limits() -> str:
    """Why the kernel limits the memory of no group of processes here; empty if it does."""
    group = _MEMORY_GROUPS / f"cs-{secrets.token_hex(4)}"
    try:
        group.mkdir()
    except OSError as error:
        return f"the kernel has no groups of processes with a limit of their memory (cgroup v1): {error}"
    group.rmdir()
    return ""


def make_clocks(folder: Path) -> Path | None:
    """Return a library that makes the clocks of processes jump which load it; None where there is no compiler.

    Debian's libfaketime would do it, but with it Python's `time.sleep` fails.
    """
    library = folder / "clock.so"
    if shutil.which("cc") is None:
        return None
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(Path(__file__).with_name("clock.c")), "-ldl"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return library


class Disk:
    """A disk of its own for a host: a file system in memory with a size, which can be full.

    Args:
        folder: Where it is mounted; it is made.
        megabytes: How much it holds.
    """

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        self._megabytes = megabytes
        self._filling = folder / "filling"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        size = ("-o", f"size={self._megabytes}m,mode=0700")
        subprocess.run(["mount", "-t", "tmpfs", *size, "tmpfs", str(self.folder)], check=True, timeout=60)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Lazily: a process that was killed a moment ago may still be in it.
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True, timeout=60)

    def fill(self) -> None:
        """Leave no byte on it."""
        with open(self._filling, "ab", buffering=0) as file:
            for size in (_MIB, 4096, 1):
                with suppress(_DiskFull):
                    while True:
                        _write(file.fileno(), size)

    def free(self) -> None:
        """Take away what fills it."""
        self._filling.unlink(missing_ok=True)

    def clear(self) -> None:
        """Take away all that is on it, as of a host that was set up anew."""
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


class _DiskFull(Exception):
    pass


def _write(file: int, size: int) -> None:
    try:
        os.write(file, bytes(size))
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _DiskFull from error


class Memory:
    """A limit for the memory of all processes of a host. What is started by a thread that has joined is part of it.

    Args:
        name: The name of the group, which nobody else has.
        megabytes: How much they may have in all.
    """

    def __init__(self, name: str, megabytes: int) -> None:
        self._group = _MEMORY_GROUPS / name
        self._megabytes = megabytes

    def __enter__(self) -> Self:
        self._group.mkdir()
        (self._group / "memory.limit_in_bytes").write_text(str(self._megabytes * _MIB))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = time.monotonic() + _MOST_SECONDS
        while not self._leave():
            if time.monotonic() > end:
                tasks = (self._group / "tasks").read_text().split()
                raise TimeoutError(f"{self._group} is in use after {_MOST_SECONDS:g} s, by {tasks}")
            time.sleep(0.05)  # the kernel tells nobody when a process that was killed has left it

    def _leave(self) -> bool:
        """Remove the group; return whether that was possible."""
        # What still runs in it, a thread that is about to end, goes to the group above.
        for task in (self._group / "tasks").read_text().split():
            with suppress(OSError):
                (_MEMORY_GROUPS / "tasks").write_text(task)
        try:
            self._group.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True

    def join(self) -> None:
        """Let this thread, and what it starts, be part of the group."""
        (self._group / "tasks").write_text(str(threading.get_native_id()))

    @property
    def used(self) -> int:
        """The bytes that they have now."""
        return int((self._group / "memory.usage_in_bytes").read_text())

    @property
    def deaths(self) -> int:
        """How many processes were killed because the limit was reached."""
        said = (self._group / "memory.oom_control").read_text().splitlines()
        return int(next(line for line in said if line.startswith("oom_kill ")).split()[1])

    def exhaust(self, victims: Iterable[int], seconds: float = 60.0) -> int:
        """Take memory until the kernel has killed one of the group, and give it back; return how many it has killed.

        Args:
            victims: The processes among which it chooses.
            seconds: How long that may take. Defaults to a minute.
        """
        for process in victims:
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                Path(f"/proc/{process}/oom_score_adj").write_text("1000")
        balloon = [sys.executable, "-c", _BALLOON, str(self._group), str(16 * _MIB)]
        done = subprocess.run(balloon, check=True, capture_output=True, text=True, timeout=seconds)
        return int(done.stdout)


class Clock:
    """The clock of a host's Python processes, which can jump. What measures durations goes on as ever.

    Args:
        file: Where it is kept.
        library: What processes load, see `make_clocks`.
    """

    def __init__(self, file: Path, library: Path) -> None:
        self._library = library
        self._file = file
        file.write_bytes(bytes(8))

    @property
    def settings(self) -> dict[str, str]:
        """The environment of processes that may load the library."""
        return {"HOSTS_CLOCK": str(self._file)}

    @property
    def loading(self) -> dict[str, str]:
        """The environment of processes that load it."""
        return {**self.settings, "LD_PRELOAD": str(self._library)}

    def jump(self, seconds: int) -> None:
        """Go so many seconds ahead of the right time, or, if that is below zero, behind it."""
        # In one write, over the same bytes: every process has mapped them.
        with open(self._file, "r+b", buffering=0) as file:
            file.write(struct.pack("=q", seconds))

    def set_right(self) -> None:
        """Show the right time."""
        self.jump(0)


def end(process: int) -> None:
    """Kill a process; it may be gone."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
