"""The words of a plan: a cluster, a way to use it, and what comes of that. Values; nothing is measured here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cerebro_spark.backend.machines import Cluster as Cluster


class Setting(NamedTuple):
    """What units are measured with: the threads of a worker, and how many workers of one host are at work."""

    threads: int
    at_once: int


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a search.

    Args:
        workers: How many workers there are.
        threads: The threads of each.
        hosts: How many hosts they are on.
        partitions: How many training partitions there are.
        memory: The bytes of memory that each worker needs; None where that was not measured.
        replicas: How many workers hold each partition. Defaults to 1.
        group: How many workers train a trial together. Defaults to 1.
        group_auto: Whether that is only the most, and each trial gets as many as are sensible. Defaults to False.
        width: How many trials may train together on one worker. Defaults to 1.
    """

    workers: int
    threads: int
    hosts: int
    partitions: int
    memory: int | None = None
    replicas: int = 1
    group: int = 1
    group_auto: bool = False
    width: int = 1

    @property
    def at_once(self) -> int:
        """How many workers share a host."""
        return -(-self.workers // self.hosts)

    @property
    def setting(self) -> Setting:
        """What its units are to be measured with."""
        return Setting(self.threads, self.at_once)


@dataclass(frozen=True, slots=True)
class Demand:
    """What a search asks for: by trial, its params and how many epochs it trains."""

    params: tuple[Mapping[str, Any], ...]
    epochs: tuple[int, ...]

    @property
    def trials(self) -> int:
        return len(self.params)


@dataclass(frozen=True, slots=True)
class DryRun:
    """How a search went in virtual time.

    Args:
        seconds: How long it took.
        utilisation: Which share of the workers' time units were running.
        trials: How many trials there were.
        failed: How many of them failed.
        guessed: Whether the times of some units are guesses, since nothing like them was measured.
        scale: How many times as large as what was run the search is. Defaults to 1.0: it was run as it is.
    """

    seconds: float
    utilisation: float
    trials: int
    failed: int = 0
    guessed: bool = False
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What an option comes to.

    Args:
        option: The option.
        seconds: How long the search takes, most likely.
        low: It takes less in one of twenty cases.
        high: It takes more in one of twenty cases.
        utilisation: Which share of the workers' time units are running.
        bound: It can in no way take less.
        cost: What it costs; None without a price.
        dry_runs: How many dry runs that is from; 0 if only the bound was computed.
        guessed: Whether times of structures that were never measured are in it.
        failed: How many trials fail, since workers die too often.
        scale: How many times as large as what was run dry the search is. Defaults to 1.0: it was run as it is.
        efficiency: How efficient groups of its size are, on average over structures. Defaults to None: not measured.
    """

    option: Option
    seconds: float
    low: float
    high: float
    utilisation: float
    bound: float
    cost: float | None = None
    dry_runs: int = 0
    guessed: bool = False
    failed: float = 0.0
    scale: float = 1.0
    efficiency: float | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user wants.

    Args:
        deadline: The seconds after which it must be done. Defaults to None: as soon as possible.
        budget: How much money it may cost. Defaults to None: any.
        price: Money for one worker and hour. Defaults to None: not known.
    """

    deadline: float | None = None
    budget: float | None = None
    price: float | None = None

    def cost(self, workers: int, seconds: float) -> float | None:
        """Return what so many workers cost for so long.

        >>> Wish(price=0.5).cost(workers=4, seconds=1800)
        1.0
        """
        return None if self.price is None else self.price * workers * seconds / 3600


@dataclass(frozen=True, slots=True)
class Workload:
    """The rows that a search trains on.

    Args:
        train: The training rows.
        validation: The validation rows.
        bytes: The bytes of all of them in memory.
        partitions: The training partitions of a data set that is prepared; None if there are as many as workers.
        validation_partitions: The validation partitions of such a data set.
    """

    train: int
    validation: int
    bytes: int
    partitions: int | None = None
    validation_partitions: int | None = None
