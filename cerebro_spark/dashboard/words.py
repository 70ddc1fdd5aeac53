"""Events of a run in words, for people. PURE. Finished units and loads have none: there are too many of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

from cerebro_spark.commands import Command
from cerebro_spark.dashboard.json_values import first_line
from cerebro_spark.events import (
    CommandReceived,
    Event,
    GatheringBegan,
    GatheringEnded,
    GroupGaveUp,
    LossExplained,
    PartitionLost,
    RunStarted,
    SearchEnded,
    TrialStopped,
    UnitFailed,
    UnitFinished,
    UnitWithdrawn,
    WorkAdded,
    WorkCommanded,
    WorkerJoined,
    WorkerLost,
    WorkerRetiring,
)
from cerebro_spark.types import Report, Unit

Level = Literal["info", "warning", "error"]
_BLAME = {"trial": "the trial's own fault", "worker": "the worker's fault", "store": "the store's fault"}


class Words(NamedTuple):
    """What happened, how bad it is, and whom it is about."""

    text: str
    level: Level = "info"
    trial: str = ""
    worker: str = ""


def describe(event: Event, counted: bool = True) -> Words | None:
    """An event in words; None for what is not worth a line.

    >>> describe(WorkerLost(1.0, "w3", "killed")).text
    'w3 is lost: killed'
    """
    match event:
        case UnitFinished():
            return None
        case UnitFailed():
            return _failed(event, counted)
        case UnitWithdrawn():
            text = f"{_unit(event.unit)} is taken back from {event.worker}: it had not begun"
            return Words(text, trial=event.unit.trial, worker=event.worker)
        case GroupGaveUp():
            return _gave_up(event, counted)
        case WorkAdded():
            return _asked(event, counted)
        case TrialStopped():
            return Words(f"{event.trial} is stopped", trial=event.trial)
        case RunStarted() | SearchEnded() | GatheringBegan() | GatheringEnded():
            return _course(event)
        case CommandReceived():
            by = f"{event.command.by}: " if event.command.by else ""
            return Words(f"{by}{command_words(event.command)}", trial=event.command.trial, worker=event.command.worker)
        case _:
            return _of_worker(event)


def describe_report(report: Report) -> Words | None:
    """A report that a trial failed, in words."""
    if report.error is None:
        return None
    if report.ended:
        return Words(f"{report.trial} was ended by a person", trial=report.trial)
    return Words(f"{report.trial} has failed: {first_line(report.error)}", "error", trial=report.trial)


def command_words(command: Command) -> str:
    """What a command asks for.

    >>> command_words(Command("clone", id="c1", trial="t3", params={"lr": 0.1}, epochs=2))
    'clone t3 with lr=0.1, from its weights, for 2 more epochs'
    """
    epochs = "" if command.epochs is None else f" for {command.epochs} more epoch{'s' if command.epochs > 1 else ''}"
    match command.verb:
        case "stop_trial":
            return f"stop {command.trial}"
        case "resume_trial":
            return f"let {command.trial} go on{epochs}"
        case "clone":
            changed = ", ".join(f"{name}={value!r:.60}" for name, value in command.params.items())
            start = "from its weights" if command.warm_start else "from fresh weights"
            with_params = f" with {changed}" if changed else ""
            return f"clone {command.trial}{with_params}, {start}{',' if epochs else ''}{epochs}"
        case "add_workers":
            return f"add {command.workers} worker{'s' if command.workers > 1 else ''}"
        case "remove_worker":
            return f"remove worker {command.worker}"
        case _:
            return f"{command.verb} the run"


def _failed(event: UnitFailed, counted: bool) -> Words:
    late = "" if counted else ", too late to matter"
    text = f"{_unit(event.unit)} failed at {event.worker} ({_BLAME[event.blame]}{late}): {first_line(event.error)}"
    return Words(text, "error" if counted and event.blame == "trial" else "warning", event.unit.trial, event.worker)


def _gave_up(event: GroupGaveUp, counted: bool) -> Words:
    """Say why a group did not train a unit.

    >>> refused = GroupGaveUp(1.0, "w0", Unit("t3", 1, "p0"), 7, "no group can train trial t3 exactly: a sum", True)
    >>> describe(refused).text
    'no group of workers trains t3: a sum'
    """
    about = (event.unit.trial, event.worker)
    if event.lasting:
        reason = first_line(event.reason).removeprefix(f"no group can train trial {event.unit.trial} exactly: ")
        return Words(f"no group of workers trains {event.unit.trial}: {reason}", "info", *about)
    late = "" if counted else " (too late to matter)"
    text = f"a group gave up the {_unit(event.unit)}{late}: {first_line(event.reason)}"
    return Words(text, "warning" if counted else "info", *about)


def _asked(event: WorkAdded, counted: bool) -> Words:
    work = event.work
    start = work.warm_start
    origin = f", from {start.trial} after epoch {start.epoch}" if start is not None else ""
    vain = "" if counted else " (in vain: it is stopped)"
    asker = ", as a person wants it" if isinstance(event, WorkCommanded) else ""
    return Words(f"{work.trial} is to train until epoch {work.until_epoch}{origin}{asker}{vain}", trial=work.trial)


def _course(event: Event) -> Words:
    match event:
        case RunStarted():
            settings = event.settings
            shape = f"{settings.workers} workers, {len(settings.partitions)} partitions, policy {settings.policy}"
            return Words(f"run {event.run} starts: {shape}")
        case GatheringBegan():
            return Words(f"a driver goes on with the run and waits for {event.workers} workers", "warning")
        case GatheringEnded():
            return Words("the run goes on with the workers that are there", "warning")
        case _:
            return Words("the search asks for no more")


def _of_worker(event: Event) -> Words | None:
    match event:
        case WorkerJoined():
            host = f" on {event.host}" if event.host else ""
            return Words(f"{event.worker} is there{host}", worker=event.worker)
        case WorkerLost():
            return Words(f"{event.worker} is lost{_because(event.reason)}", "warning", worker=event.worker)
        case LossExplained():
            return Words(f"why {event.worker} was lost{_because(event.reason)}", worker=event.worker)
        case WorkerRetiring():
            return Words(f"{event.worker} is to leave after its unit", worker=event.worker)
        case PartitionLost():
            text = f"{event.worker} does not have {event.partition}{_because(event.reason)}"
            return Words(text, "warning", worker=event.worker)
        case _:
            return None


def _because(reason: str) -> str:
    return f": {first_line(reason)}" if reason.strip() else ""


def _unit(unit: Unit) -> str:
    doing = "training" if unit.kind == "train" else "evaluation"
    return f"{doing} of {unit.trial}, epoch {unit.epoch}, on {', '.join(unit.partitions)}"
