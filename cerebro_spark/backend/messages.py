"""Events and actions as messages on the wire, plain JSON both ways. It believes nothing about who sent them."""

from __future__ import annotations

from typing import Any

from cerebro_spark.backend.wire import Message, WireError
from cerebro_spark.codec import from_plain, to_plain
from cerebro_spark.errors import CerebroError
from cerebro_spark.events import (
    Action,
    Blame,
    DropPartition,
    Event,
    LoadPartition,
    PartitionLoaded,
    PartitionLost,
    RetireWorker,
    RunUnit,
    UnitFailed,
    UnitFinished,
)
from cerebro_spark.types import Checkpoint, Metrics, Unit, WorkerId


def order(action: Action) -> Message | None:
    """What a worker is told of an action; None for an action that is not for workers."""
    if isinstance(action, LoadPartition):
        return {"type": "load", "partition": action.partition}
    if isinstance(action, DropPartition):
        return {"type": "drop", "partition": action.partition}
    if isinstance(action, RetireWorker):
        return {"type": "stop"}
    if isinstance(action, RunUnit):
        return {
            "type": "run",
            "unit": list(action.unit),
            "attempt": action.attempt,
            "params": to_plain(action.params, "params"),
            "parent": None if action.parent is None else list(action.parent),
            "step": action.step,
            "carry": None if action.carry is None else to_plain(action.carry, "carry"),
            "final": action.final,
            "rebased": action.rebased,
        }
    return None


def fact(worker: WorkerId, message: Message, at: float) -> Event | None:
    """What the driver makes of a worker's message; None for one that says nothing new."""
    try:
        return _fact(worker, message, at)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, CerebroError) as error:
        raise WireError(f"{worker} sent a {message.get('type')!r} that makes no sense: {error}") from error


def _fact(worker: WorkerId, message: Message, at: float) -> Event | None:
    kind = message["type"]
    if kind == "loaded":
        return PartitionLoaded(at, worker, str(message["partition"]))
    if kind == "unloaded":
        return PartitionLost(at, worker, str(message["partition"]), str(message["reason"]))
    if kind == "finished":
        written = message["checkpoint"]
        metrics = restored_metrics(message["metrics"]) or Metrics()
        values = None if message["values"] is None else from_plain(dict[str, float], message["values"])
        return UnitFinished(
            at,
            worker,
            unit_of(message["unit"]),
            int(message["attempt"]),
            float(message["seconds"]),
            None if written is None else checkpoint_of(written),
            metrics,
            values,
            float(message["waited"]),
        )
    if kind == "failed":
        blame: Blame = message["blame"] if message["blame"] in ("trial", "store") else "worker"
        unit = unit_of(message["unit"])
        return UnitFailed(at, worker, unit, int(message["attempt"]), str(message["error"]), blame)
    return None


def finished(
    order: Message,
    seconds: float,
    waited: float,
    metrics: Metrics,
    values: dict[str, float] | None,
    checkpoint: Checkpoint | None = None,
) -> Message:
    """A worker's report on a unit."""
    return {
        "type": "finished",
        "unit": order["unit"],
        "attempt": order["attempt"],
        "seconds": seconds,
        "waited": waited,
        "metrics": to_plain(metrics, "metrics"),
        "values": None if values is None else to_plain(values, "values"),
        "checkpoint": None if checkpoint is None else list(checkpoint),
    }


def unit_of(value: Any) -> Unit:
    trial, epoch, partition, kind = value
    return Unit(str(trial), int(epoch), str(partition), "eval" if kind == "eval" else "train")


def checkpoint_of(value: Any) -> Checkpoint:
    trial, epoch, step, attempt, size, digest = value
    return Checkpoint(str(trial), int(epoch), int(step), int(attempt), int(size), str(digest))


def restored_params(value: Any) -> dict[str, Any]:
    restored: dict[str, Any] = from_plain(dict[str, Any], value)
    return restored


def restored_metrics(value: Any) -> Metrics | None:
    if value is None:
        return None
    metrics: Metrics = from_plain(Metrics, value)
    return metrics
