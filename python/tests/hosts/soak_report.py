"""What a soak has seen: each fault and what came of it, memory, what was left behind. It measures nothing."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from hosts.driver import HEARTBEAT

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
        waited: The longest time without the end of a unit, from when it struck until all was well.
        has_way_out: Whether somebody could do something meanwhile.
    """

    fault: str
    whom: str
    at: float
    lasted: float = 0.0
    recovered: float = 0.0
    lost: list[str] = field(default_factory=list)
    waited: float = 0.0
    has_way_out: bool = True

    def __str__(self) -> str:
        said = f"{self.fault.replace('_', ' ')} ({self.whom}): well again after {self.recovered:.1f} s"
        lost = f", lost: {'; '.join(self.lost)}" if self.lost else ""
        return f"{said}, {self.waited:.1f} s without a unit{lost}"


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
            "| fault | times | workers lost | well again, median s | most | longest wait |",
            "|---|---|---|---|---|---|",
        ]
        for name, some in sorted(by_name.items()):
            own, waits = [one.recovered for one in some], [one.waited for one in some]
            lines.append(
                f"| {name.replace('_', ' ')} | {len(some)} | {sum(len(one.lost) for one in some)} |"
                f" {statistics.median(own):.1f} | {max(own):.1f} | {max(waits):.1f} |"
            )
        waits, lost = [one.waited for one in self.struck], sum(len(one.lost) for one in self.struck)
        lines.append(
            f"| all | {len(recovered)} | {lost} | {_quantile(recovered, 0.5):.1f} | {max(recovered, default=0.0):.1f},"
            f" 99 %: {_quantile(recovered, 0.99):.1f} | {max(waits, default=0.0):.1f} |"
        )
        late = self.late
        lines += ["", f"waits of more than {LIMIT:.0f} s where there was a way out: {len(late)}"]
        lines += [f"  {one.fault} ({one.whom}): {one.waited:.1f} s" for one in late]
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


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0
