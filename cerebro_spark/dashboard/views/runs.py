"""A run in a few lines, and in the head of its own page. PURE."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from cerebro_spark.dashboard.json_values import finite, metrics, plain
from cerebro_spark.dashboard.run_index import RunIndex
from cerebro_spark.events import Settings

Driver = Literal["alive", "silent", "gone"]
State = Literal["reading", "running", "paused", "finished", "interrupted", "silent", "unreadable"]


class Condition(NamedTuple):
    """What is known of a run that its log does not say.

    `driver` tells of its signs of life, `reading` whether the log was not read to its end yet, `problem` why it cannot
    be read further.
    """

    driver: Driver = "gone"
    reading: bool = False
    problem: str | None = None


def state_of(index: RunIndex, condition: Condition) -> State:
    """How a run is, in one word."""
    if index.view.finished:
        return "finished"
    if condition.problem is not None:
        return "unreadable"
    if condition.reading:
        return "reading"
    if condition.driver == "gone":
        return "interrupted"
    if condition.driver == "silent":
        return "silent"
    return "paused" if index.view.paused else "running"


def run_row(index: RunIndex, condition: Condition) -> dict[str, Any]:
    """A run in a list of runs."""
    view = index.view
    objective = view.objective
    return {
        "run": index.run,
        "generation": index.generation,
        "version": index.version,
        "state": state_of(index, condition),
        "problem": condition.problem,
        "driver": condition.driver,
        "started_clock": finite(view.started),
        "last_clock": finite(view.wall_clock),
        "now": finite(view.now),
        "ended_at": finite(index.ended_at),
        "trials": len(view.trials),
        "counts": view.counts()._asdict(),
        "objective": {"metric": objective.metric, "mode": objective.mode} if objective else None,
        "best": _best(index),
        "utilisation": finite(view.timeline.utilisation()),
    }


def run_page(index: RunIndex, condition: Condition) -> dict[str, Any]:
    """A run on its own page."""
    view = index.view
    return {
        **run_row(index, condition),
        "search_ended": view.search_ended,
        "finished": view.finished,
        "paused": view.paused,
        "settings": _settings(view.settings) if view.settings else None,
        "metrics": sorted(index.metrics),
        "params": sorted(index.params),
        "hosts": sorted({worker.host for worker in view.workers.values() if worker.host}),
        "units": len(index.units),
        "failures": len(index.failures),
        "commands": len(index.commands),
        "events": len(index.notes),
    }


def _best(index: RunIndex) -> dict[str, Any] | None:
    best, objective = index.view.best(), index.view.objective
    if best is None:
        return None
    values = metrics(best.metrics)
    value = values.get(objective.metric) if objective else None
    return {
        "trial": best.trial,
        "epoch": best.epoch,
        "value": value,
        "metrics": values,
        "params": plain(best.params),
    }


def _settings(settings: Settings) -> dict[str, Any]:
    train = [partition for partition in settings.partitions if partition.split == "train"]
    return {
        "workers": settings.workers,
        "partitions": len(train),
        "validation": len(settings.partitions) - len(train),
        "replicas": settings.replicas,
        "policy": settings.policy,
        "seed": settings.seed,
        "fuse": settings.fuse,
        "rows": sum(partition.rows for partition in train),
        "bytes": sum(partition.bytes for partition in train),
    }
