"""What a soak has seen: each fault and what came of it, memory, what was left behind. It measures nothing."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hosts.soak_runs import HEARTBEAT

LIMIT = HEARTBEAT + 10.0
"""Seconds for which nobody may wait for anything that has a way out."""


@dataclass
class Struck:
    """A fault, and what came of it.

    Attributes:
        fault: Its name.
        whom: Whom it struck.
        at: When it struck, in seconds of the soak.
        lasted: How long it lasted.
        recovered: How long it took from then until all workers were there and units ended again.
        lost: Why workers were lost meanwhile, one each; if two struck in a row, the first one has those of both.
        without_unit: The longest time without the end of a unit, from when the first one struck until all was well.
        waited: The same, but each that strikes in a row begins it anew: it may strike those who were the way out.
        has_way_out: Whether somebody could do something meanwhile.
    """

    fault: str
    whom: str
    at: float
    lasted: float = 0.0
    recovered: float = 0.0
    lost: list[str] = field(default_factory=list)
    without_unit: float = 0.0
    waited: float = 0.0
    has_way_out: bool = True

    def __str__(self) -> str:
        said = f"{self.fault.replace('_', ' ')} ({self.whom}): well again after {self.recovered:.1f} s"
        lost = f", lost: {'; '.join(self.lost)}" if self.lost else ""
        return f"{said}, {self.waited:.1f} s without a unit or another fault{lost}"


def longest_wait(faults: Sequence[float], ends: Sequence[float]) -> float:
    """Return the longest time from a fault or the end of a unit until a unit ends or the next fault strikes.

    Args:
        faults: When they struck.
        ends: When units ended, from the first fault on.

    >>> longest_wait([10.0], [11.0, 25.0]), longest_wait([10.0, 19.0], [11.0, 25.0])
    (14.0, 8.0)
    """
    return max(after - before for before, after in pairwise(sorted([*faults, *ends])))


@dataclass
class Report:
    """What a soak has seen."""

    seed: int
    seconds: float = 0.0
    runs: int = 0
    units: int = 0
    resumed: int = 0
    struck: list[Struck] = field(default_factory=list)
    memory: list[dict[str, float]] = field(default_factory=list)
    audited: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    swept: int = 0
    caches_left: int = 0
    left: list[str] = field(default_factory=list)

    @property
    def late(self) -> list[Struck]:
        """The faults after which somebody waited too long, though there was a way out."""
        return [one for one in self.struck if one.has_way_out and one.waited > LIMIT]

    def __str__(self) -> str:
        by_name: dict[str, list[Struck]] = defaultdict(list)
        for one in self.struck:
            by_name[one.fault].append(one)
        recovered = [one.recovered for one in self.struck]
        lines = [
            f"{len(self.struck)} faults in {self.seconds / 60:.0f} min (seed {self.seed}): {self.runs} runs,"
            f" {self.units} units, {sum(len(one.lost) for one in self.struck)} workers lost, runs gone on with"
            f" {self.resumed} times",
            "",
            "| fault | times | workers lost | well again, median s | most | longest wait | longest without a unit |",
            "|---|---|---|---|---|---|---|",
        ]
        for name, some in sorted(by_name.items()):
            lines.append(_row(name.replace("_", " "), some))
        if self.struck:
            lines.append(_row("all", self.struck) + f" well again, 99 %: {_quantile(recovered, 0.99):.1f} s")
        late = self.late
        lines += ["", f"waits of more than {LIMIT:.0f} s where there was a way out: {len(late)}"]
        lines += [f"  {one.at / 60:.1f} min, {one.fault} ({one.whom}): {one.waited:.1f} s" for one in late]
        if self.memory:
            step = max(1, len(self.memory) // 10)
            lines += [
                "",
                "| minute | driver, Python MiB | driver, Java MiB | a worker, mean MiB |",
                "|---|---|---|---|",
            ]
            lines += [
                f"| {m['minute']:.0f} | {m['driver']:.0f} | {m['java']:.0f} | {m['worker']:.0f} |"
                for m in self.memory[::step]
            ]
        swept = (
            f"{self.swept} files that were being written were cleared away, as `cerebro-spark clean` does, and"
            f" {self.caches_left} caches of killed workers by the next who used them"
        )
        lines += ["", f"{swept}; left behind: {', '.join(self.left) or 'nothing'}"]
        return "\n".join(lines)


def _row(name: str, some: Sequence[Struck]) -> str:
    recovered = [one.recovered for one in some]
    return (
        f"| {name} | {len(some)} | {sum(len(one.lost) for one in some)} | {statistics.median(recovered):.1f} |"
        f" {max(recovered):.1f} | {max(one.waited for one in some):.1f} |"
        f" {max(one.without_unit for one in some):.1f} |"
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0
