"""Tells whether files are untouched since they were looked at, without reading them. If in doubt, they are not.

Equal fingerprints mean: the same files, which nobody has written to, and a machine that was not started anew, so that
no write was lost. A process that has mapped a file to write to it is not noticed: the cache is of this user alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
# CLOCK_REALTIME_COARSE of Linux, from which the times of files are taken: it advances by some milliseconds at once.
_CLOCK_OF_FILES = 5


def fingerprint(files: Sequence[Path]) -> list[str] | None:
    """Return what is no more the same once one of these files was changed, replaced or lost, or the machine restarted.

    Args:
        files: The files.

    Returns:
        The fingerprint; None if there can be none: a file is not there, the system does not name its boots, or a file
        was written to so shortly before that another write could have the same time.

    >>> fingerprint([Path("/nowhere")]) is None
    True
    """
    try:
        boot = _BOOT.read_text().strip()
        now = time.clock_gettime_ns(_CLOCK_OF_FILES)  # before a look at the files: later writes are not before it
        found = [os.stat(file) for file in files]
    except OSError:
        return None
    if any(max(file.st_mtime_ns, file.st_ctime_ns) >= now for file in found):
        return None
    return [boot, *(f"{f.st_dev} {f.st_ino} {f.st_size} {f.st_mtime_ns} {f.st_ctime_ns}" for f in found)]
