"""What driver, auditor and whoever lets faults strike know of the runs of a soak."""

from __future__ import annotations

WORKERS = 3
HEARTBEAT = 4.0
"""Seconds after which a worker that says nothing is given up: the shorter, the more faults an hour has."""


def name_of(number: int) -> str:
    """Return the id of a run.

    >>> name_of(12)
    'r0012'
    """
    return f"r{number:04}"
