"""A process that was forked ahead of its job: what it does before it has one, and whether it is fit for it then.

It never changes what the job finds, but for what is slow to begin with: a GPU's context and libraries, say. These are
settled by environment variables when they are first used. A job that sets one in its modules gets another process.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class AheadSpec:
    """What a process does ahead of its job.

    Attributes:
        function: A function, as "module:name". It must start from nothing but its arguments.
        arguments: Its arguments.
        needs: A file without which there is nothing to do on a machine: a device, say.
    """

    function: str
    arguments: tuple[str, ...]
    needs: str

    @property
    def is_wanted(self) -> bool:
        """Whether there is something to do on this machine."""
        return Path(self.needs).exists()


class AheadProcess:
    """This process, which has no job yet. It ends with code 1 if something fails ahead, or its parent goes.

    Args:
        spec: What it does ahead.
        file: The file into which its parent will write the job, which it empties when it accepts that.
    """

    def __init__(self, spec: AheadSpec, file: int) -> None:
        self._file = file
        try:
            module, _, name = spec.function.partition(":")
            getattr(importlib.import_module(module), name)(*spec.arguments)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # at once: what a process does at its end is for the parent to do
        self._environment = dict(os.environ)

    def wait(self) -> bytes:
        """Return what the parent has written."""
        if not sys.stdin.buffer.readline():
            os._exit(1)
        size = os.fstat(self._file).st_size
        return os.pread(self._file, size, 0)

    def accept(self) -> None:
        """Take the job; or end, so that the parent forks another process for it, if this one is not as new."""
        if dict(os.environ) != self._environment:
            changed = {name for name, _ in os.environ.items() ^ self._environment.items()}
            print(f"a new process begins, since a module of the job sets {', '.join(sorted(changed))}", file=sys.stderr)
            sys.stderr.flush()
            os._exit(1)
        os.ftruncate(self._file, 0)
        os.close(self._file)
