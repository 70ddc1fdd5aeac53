"""How much memory the processes of this host may have: that of the machine, or of a container. It decides nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def count_memory(groups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Return the bytes of memory that this process and those beside it may have.

    A process of a container (on Kubernetes, or on YARN with control groups) is killed if its container has more than
    the kernel allows it, however much the machine has.

    Args:
        groups: Where control groups are mounted.
        own: What says of which of them this process is part.
    """
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(groups, own)])


def _limits(groups: Path, own: Path) -> Iterator[int]:
    """Yield the limits of this process's control groups, of either version, and of those above them."""
    try:
        lines = own.read_text().splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _limits_above(groups, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_above(groups / "memory", path, "memory.limit_in_bytes")


def _limits_above(root: Path, path: str, file: str) -> Iterator[int]:
    # In a container its own group may be mounted as the root, and the path be that outside of it.
    inside = Path(path.lstrip("/"))
    for folder in (inside, *inside.parents):
        with suppress(OSError, ValueError):  # no such group here; "max"
            yield int((root / folder / file).read_text())
