"""How a simulated cluster is: its workers, how long things take there, how often they fail, what units leave. PURE."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.events import RunUnit
from cerebro_spark.types import Unit, WorkerId


@dataclass(frozen=True, slots=True)
class SimulatedWorker:
    """A worker and its script: when it comes, how fast it is, and when it dies and returns.

    Args:
        id: The worker's name.
        speed: How fast it is. Defaults to 1.0; a worker of speed 2 takes half as long.
        host: The host it runs on. Defaults to "": a host of its own, called as the worker.
        joins_at: When it joins, in seconds after the start. Defaults to 0.0.
        deaths: Pairs of seconds after the start: when it dies, and when it returns (infinity: never). Defaults to ():
            it does not die by script.
    """

    id: WorkerId
    speed: float = 1.0
    host: str = ""
    joins_at: float = 0.0
    deaths: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class World:
    """How things are in the simulated cluster.

    Args:
        cost: `cost(params)` returns the seconds of a training unit on a worker of speed 1.
        checkpoint_bytes: `checkpoint_bytes(params)` returns the size of a checkpoint. Without it checkpoints are empty.
        jitter: The fraction by which the time of a unit varies, up and down. Defaults to 0.0.
        bandwidth: Bytes a second at which a worker fetches a checkpoint that it did not write. It is infinite if not
            given.
        load_seconds: Seconds to load a partition. Defaults to 0.0.
        evaluation_cost: The time of an evaluation unit as a fraction of `cost`. A third if not given.
        failure_rate: The probability that a worker dies during a unit. Defaults to 0.0.
        repair_seconds: Seconds until a worker that died returns, without the partitions it held. Defaults to 0.0.
        late_results: Whether a worker that was given up still reports, too late. Defaults to False.
        speeds_known: Whether workers announce their speed as they join. Defaults to False.
        gain: By how many trials are trained or evaluated together, how many times faster that is than one after
            another, such as `{2: 2.1, 8: 4.3}`. Between these widths it grows with the logarithm of the width; beyond
            the greatest it stays. Empty by default: workers take the trials of an order one after another.
        efficiency: `efficiency(params, size)` returns how efficient a group of so many workers is with a trial: 1 if it
            takes a unit of as many partitions as long as one worker takes for one. Without it all groups are.
        estimate: `estimate(params)` returns the seconds of a unit that a few batches suggest, as the engine asks before
            the run. Without it they suggest nothing.
    """

    cost: Callable[[Mapping[str, Any]], float]
    checkpoint_bytes: Callable[[Mapping[str, Any]], int] = lambda params: 0
    jitter: float = 0.0
    bandwidth: float = float("inf")
    load_seconds: float = 0.0
    evaluation_cost: float = 1 / 3
    failure_rate: float = 0.0
    repair_seconds: float = 0.0
    late_results: bool = False
    speeds_known: bool = False
    gain: Mapping[int, float] = field(default_factory=dict)
    efficiency: Callable[[Mapping[str, Any], int], float] = lambda params, size: 1.0
    estimate: Callable[[Mapping[str, Any]], float | None] = lambda params: None

    def gain_at(self, width: int) -> float:
        """Return how many times faster as many trials are trained or evaluated together.

        Args:
            width: The number of trials.

        Returns:
            The factor; between widths that `gain` has, it grows with the logarithm of the width.

        >>> World(cost=lambda params: 1.0, gain={8: 4.0}).gain_at(2)
        2.0
        """
        known = sorted({1: 1.0, **self.gain}.items())
        widths, gains = zip(*known, strict=True)
        return float(np.interp(math.log(width), np.log(widths), gains))


def check_world(workers: Sequence[SimulatedWorker], world: World) -> None:
    """Raise ConfigurationError for workers, or numbers, that make no sense."""
    for worker in workers:
        if not worker.speed > 0:
            raise ConfigurationError(f"worker {worker.id} has speed {worker.speed}, but speeds must be above 0")
    if not workers:
        raise ConfigurationError("there are 0 workers, but at least 1 is needed")
    if len({worker.id for worker in workers}) < len(workers):
        raise ConfigurationError("two workers have the same id, but each needs its own")
    for name, value in (("jitter", world.jitter), ("failure_rate", world.failure_rate)):
        if not 0 <= value < 1:
            raise ConfigurationError(f"`{name}` is {value}, but must be at least 0 and below 1")
    for width, gain in world.gain.items():
        if width < 1 or not 0 < gain < float("inf"):
            raise ConfigurationError(f"`gain` has {width}: {gain}, but must have gains above 0 by widths of at least 1")
    if world.bandwidth <= 0 or world.load_seconds < 0 or world.repair_seconds < 0 or world.evaluation_cost <= 0:
        raise ConfigurationError("bandwidth and evaluation cost must be above 0, load and repair seconds at least 0")


def digest_of(order: RunUnit) -> str:
    """Stands for the weights that a training unit leaves: it depends on all that they would depend on, nothing else.

    >>> one = RunUnit("w0", Unit("t0", 1, "p0"), 1, {"lr": 0.1}, None, 1)
    >>> two = RunUnit("w7", Unit("t0", 1, "p0"), 9, {"lr": 0.1}, None, 1)
    >>> digest_of(one) == digest_of(two)
    True
    """
    parent = order.parent.digest if order.parent else ""
    known = (parent, order.unit, order.step, order.rebased, sorted(order.params.items()))
    return hashlib.sha256(repr(known).encode()).hexdigest()[:32]


def jitter_of(seed: int, unit: Unit, columns: int, jitter: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The factors of all units of one trial and epoch, by partition."""
    name = f"{unit.trial}/{unit.epoch}/{unit.kind}".encode()
    rng = np.random.default_rng([seed, 2, *name])
    return 1.0 + jitter * rng.uniform(-1.0, 1.0, columns)
