"""How fast a run goes: the times of units, waits and loads, how much they vary, and how often things fail. PURE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

from cerebro_spark.forecast.expected import ExpectedSeconds, UnitSeconds
from cerebro_spark.forecast.fitting import ROUNDING
from cerebro_spark.forecast.measured import Measurements, UnitSample
from cerebro_spark.forecast.switching import Switching
from cerebro_spark.types import Partition, UnitKind

KINDS: tuple[UnitKind, ...] = ("train", "eval")
# The first unit of a process counts as slower only if it took so much longer.
_NOTICEABLE = 1.1
# Samples beyond so many times what was expected count as much as that.
_MOST = 5.0
# The share of the samples that tell how fast the run goes now.
_RECENT = 1 / 3
_BLOCKS = 6
_LEAST_BLOCK = 4
# No machine keeps its pace better than this (a logarithm): what is measured exactly is exempt.
_DRIFT = 0.03


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of a run.

    Attributes:
        expected: What units take on average.
        recent: By kind, how much longer they take now.
        ratios: By kind, measured seconds over expected ones; (1.0,) if there is no variation.
        overhead: By kind, seconds of an order beyond those of its units, on average.
        overheads: By kind, how they vary.
        drift: How far the pace to come may be from that of late (the spread of a logarithm); 0 if units take exactly
            what is expected.
        warm_up: Seconds that the first order of a worker takes longer.
        load: Seconds to load a partition.
        repair: Seconds until a worker that is lost is replaced; None if that is not known.
        loss: The probability that a worker dies during an order.
        failure: The probability that a trial fails.
        stacks: Whether units of several trials were ever computed at once; else those of one order go one by one.
        switching: What is known of steps that become faster once they are traced; None if nothing is.
    """

    expected: UnitSeconds
    recent: dict[UnitKind, float]
    ratios: dict[UnitKind, tuple[float, ...]]
    overhead: dict[UnitKind, float]
    overheads: dict[UnitKind, tuple[float, ...]]
    drift: float
    warm_up: float = 0.0
    load: float = 0.0
    repair: float | None = None
    loss: float = 0.0
    failure: float = 0.0
    stacks: bool = False
    switching: Switching | None = None

    @property
    def varies(self) -> bool:
        """Whether the rest of the run can take longer or shorter than expected."""
        is_open = self.switching is not None and self.switching.is_open
        return bool(self.drift or self.loss or self.failure or is_open) or any(
            len(set(found)) > 1 for found in self.ratios.values()
        )


def pace_of(seen: Measurements, partitions: Sequence[Partition]) -> Pace:
    """Return the pace of a run in which at least one unit was done.

    Args:
        seen: What was measured.
        partitions: The partitions of the run.
    """
    switching = Switching(seen.units, partitions, seen.params)
    samples, warm_up = _settled(seen, switching.in_present_steps(seen.units), partitions)
    expected = ExpectedSeconds(samples, partitions, seen.params)
    recent = {kind: _recent(samples, expected, kind) for kind in KINDS}
    ratios = {kind: _ratios(samples, expected, kind, recent[kind]) for kind in KINDS}
    overheads = {kind: _overheads(seen, kind, warm=bool(warm_up)) for kind in KINDS}
    return Pace(
        expected,
        recent,
        ratios,
        {kind: fmean(found) for kind, found in overheads.items()},
        overheads,
        _drift(samples, expected),
        warm_up,
        median(seen.loads) if seen.loads else 0.0,
        _repair(seen),
        min(0.5, seen.losses / max(seen.begun, 1)),
        len(seen.failed) / max(len({sample.trial for sample in samples} | seen.failed), 1),
        any(sample.width > 1 for sample in samples),
        switching,
    )


def _settled(
    seen: Measurements, units: Sequence[UnitSample], partitions: Sequence[Partition]
) -> tuple[list[UnitSample], float]:
    """Return the units that tell what later ones will take, and what the first order of a worker takes beyond that."""
    later = [sample for sample in units if not sample.first]
    if not later or _is_exact(units, ExpectedSeconds(units, partitions, seen.params)):
        return list(units), 0.0
    expected = ExpectedSeconds(later, partitions, seen.params)
    first = [sample for sample in units if sample.first and expected.knows(sample)]
    if not first or median(sample.seconds / expected.of(sample) for sample in first) <= _NOTICEABLE:
        return list(units), 0.0
    extra = median(sample.seconds * sample.width - expected.of(sample) * sample.width for sample in first)
    waits = [order.overhead for order in seen.orders if order.first]
    usual = [order.overhead for order in seen.orders if not order.first]
    beyond = max(0.0, median(waits) - fmean(usual)) if waits and usual else 0.0
    return later, max(0.0, extra) + beyond


def _recent(samples: Sequence[UnitSample], expected: ExpectedSeconds, kind: UnitKind) -> float:
    """Return how much longer units take now than they did on the whole; medians also leave out rare long ones."""
    own = [sample for sample in samples if sample.kind == kind]
    own = own[-max(8, math.ceil(len(own) * _RECENT)) :]
    if not own:
        return 1.0
    planned = [expected.of(sample) for sample in own]
    spent = sum(min(sample.seconds, _MOST * plan) for sample, plan in zip(own, planned, strict=True))
    return _one(spent / sum(planned))


def _ratios(
    samples: Sequence[UnitSample], expected: ExpectedSeconds, kind: UnitKind, recent: float
) -> tuple[float, ...]:
    """Return how measured seconds vary around those that are expected now: 1 on average, whatever the pace was."""
    own = [sample for sample in samples if sample.kind == kind]
    planned = [expected.of(sample) for sample in own]
    spent = [min(sample.seconds, _MOST * recent * plan) for sample, plan in zip(own, planned, strict=True)]
    if not own:
        return (1.0,)
    ratios = [seconds / plan for seconds, plan in zip(spent, planned, strict=True)]
    # One is drawn for each unit, short or long: short ones vary most, and would make all of them longer.
    level = fmean(ratios)
    return tuple(_one(ratio / level) for ratio in ratios)


def _overheads(seen: Measurements, kind: UnitKind, warm: bool) -> tuple[float, ...]:
    """Return the seconds of orders beyond those of their units, as they vary around what they are now."""
    own = [order.overhead for order in seen.orders if order.kind == kind and not (warm and order.first)]
    if not own:
        return (0.0,)
    most = _MOST * max(median(own), 0.0) + 1.0
    found = [min(overhead, most) for overhead in own]
    level, now = fmean(found), fmean(found[-max(8, math.ceil(len(found) * _RECENT)) :])
    return tuple(overhead * now / level for overhead in found) if level > 0 and now > 0 else tuple(found)


def _drift(samples: Sequence[UnitSample], expected: ExpectedSeconds) -> float:
    """Return how far the pace to come may be from that of late, by how parts of the run differ from each other.

    That of late is itself the mean of a few such parts only, so it is uncertain, too.
    """
    if _is_exact(samples, expected):
        return 0.0
    planned = [expected.of(sample) for sample in samples]
    blocks = min(_BLOCKS, len(samples) // _LEAST_BLOCK)
    if blocks < 2:
        return math.hypot(_DRIFT, 0.3)
    cuts = [len(samples) * block // blocks for block in range(blocks + 1)]
    spent = [sum(sample.seconds for sample in samples[a:b]) for a, b in pairwise(cuts)]
    plans = [sum(planned[a:b]) for a, b in pairwise(cuts)]
    apart = stdev([math.log(a / b) for a, b in zip(spent, plans, strict=True)])
    return math.hypot(_DRIFT, apart * math.sqrt(1 + 1 / max(1.0, _RECENT * blocks)))


def _is_exact(samples: Sequence[UnitSample], expected: ExpectedSeconds) -> bool:
    """Whether all units took what was to be expected, as units in virtual time may do."""
    return all(_one(sample.seconds / expected.of(sample)) == 1.0 for sample in samples)


def _repair(seen: Measurements) -> float | None:
    """Return the seconds until a lost worker is replaced: as before, or as long as the first one took to come."""
    return median(seen.repairs) if seen.repairs else seen.starting


def _one(ratio: float) -> float:
    """Return a ratio without rounding errors.

    >>> _one(1.0000000000000002), _one(1.5)
    (1.0, 1.5)
    """
    return 1.0 if abs(ratio - 1.0) <= ROUNDING else ratio
