"""What a dashboard remembers of a run beside its view: rows that never change, they are replaced. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from cerebro_spark.commands import Command
from cerebro_spark.dashboard.words import Words
from cerebro_spark.types import Checkpoint


class Note(NamedTuple):
    """Something worth a line; `version` is the number of its event in the log."""

    version: int
    at: float
    clock: float | None
    kind: str
    words: Words


class Failure(NamedTuple):
    """Something that went wrong at a worker: a unit, a load, or the worker itself."""

    at: float
    kind: Literal["unit", "worker", "load"]
    worker: str
    trial: str
    text: str


class UnitError(NamedTuple):
    """A unit that failed, with the whole error."""

    at: float
    worker: str
    epoch: int
    partition: str
    blame: str
    text: str


class AskedWork(NamedTuple):
    """What was asked of a trial: by the search, or by a person's `command`."""

    at: float
    until: int
    params: Mapping[str, Any]
    start: Checkpoint | None
    counted: bool
    command: str


class CommandRow(NamedTuple):
    """A command, and how far it is: sent (it lies in the mailbox), received (it is logged), done or refused.

    `made` is the trial that was cloned by it, or that goes on by it.
    """

    command: Command
    state: Literal["sent", "received", "done", "refused"]
    version: int
    sent_clock: float | None = None
    at: float | None = None
    clock: float | None = None
    answered_at: float | None = None
    reason: str = ""
    made: str = ""


class WorkerTally(NamedTuple):
    """What a worker has done so far; `loaded` are the partitions that it loaded since it came and did not lose."""

    joined: float
    threads: int = 0
    units: int = 0
    busy: float = 0.0
    deaths: int = 0
    last_loss: str | None = None
    loaded: tuple[str, ...] = ()


class Improvement(NamedTuple):
    """A new best value of the run's objective, and how many epochs all trials had reported by then."""

    at: float
    epochs: int
    value: float
