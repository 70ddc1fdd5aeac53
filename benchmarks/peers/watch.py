"""The memory of a contender's processes, looked at from outside ten times a second. It never touches them.

A worker is a process that said so (`contender.here_is_a_worker`); its peak is the kernel's own high-water mark (VmHWM),
so that nothing between two looks is missed but what comes after the last one.
"""

from __future__ import annotations

import threading
from pathlib import Path

_SECONDS = 0.1


class Watch:
    """Follows the workers that leave notes in `folder`, from `with` to its end.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / str(os.getpid())).touch()
    ...     with Watch(Path(folder)) as watch:
    ...         pass
    ...     len(watch.peaks), watch.peak > 1_000_000
    (1, True)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.peaks: dict[int, int] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)

    @property
    def peak(self) -> int | None:
        """The bytes of the worker that had most; None if nobody said it was one."""
        return max(self.peaks.values(), default=None)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _follow(self) -> None:
        self._look()
        while not self._over.wait(_SECONDS):
            self._look()

    def _look(self) -> None:
        for note in self.folder.iterdir():
            if found := high_water(int(note.name)):
                self.peaks[int(note.name)] = max(found, self.peaks.get(int(note.name), 0))


def high_water(pid: int) -> int:
    """The most memory that a process ever had, in bytes; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = next((line for line in lines if line.startswith("VmHWM:")), "VmHWM: 0 kB")
    return int(found.split()[1]) * 1024
