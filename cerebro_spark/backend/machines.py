"""The machines that a backend can use, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cluster:
    """Machines that are all alike.

    Args:
        hosts: How many there are.
        cores: The cores of each.
        memory: The bytes of memory of each. Defaults to None: not known, so no option is left out for it.
        bandwidth: The bytes a second between two of them. Defaults to None: as fast as what was measured.
        failure_rate: The probability that a worker dies during a unit. Defaults to 0.0.
    """

    hosts: int
    cores: int
    memory: int | None = None
    bandwidth: float | None = None
    failure_rate: float = 0.0
