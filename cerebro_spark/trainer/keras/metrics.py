"""Keras metrics as sums and states that add up over partitions. It never imports Keras itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.types import Metrics


def named_metrics(model: Any) -> dict[str, Any]:
    """Return the metrics of a compiled and built model by the names under which `fit` would log them."""
    named: dict[str, Any] = {}
    for metric in model.metrics:
        parts = getattr(metric, "metrics", None)
        if parts is None:
            named[metric.name] = metric
        elif parts:
            # CompileMetrics: its results come in the order of its parts, with the output in their names.
            with _without_results(parts):
                names = list(metric.result())
            for name, part in zip(names, parts, strict=True):
                if name in named:
                    raise ConfigurationError(
                        f"a metric is named {name!r}, which is the name of another already: name it otherwise"
                    )
                named[name] = part
    return named


@contextmanager
def _without_results(metrics: Sequence[Any]) -> Iterator[None]:
    """Let no metric compute a result: one of a user's own may have none of no rows."""
    for metric in metrics:
        vars(metric)["result"] = lambda: None
    try:
        yield
    finally:
        for metric in metrics:
            del vars(metric)["result"]


def read_metrics(named: Mapping[str, Any]) -> Metrics:
    """Return what the metrics have measured: averages as sum and weight, others as a state."""
    sums: dict[str, float] = {}
    weights: dict[str, float] = {}
    states: dict[str, tuple[float, ...]] = {}
    carried: dict[str, Any] = {}
    for name, metric in named.items():
        if is_average(metric):
            sums[name], weights[name] = float(metric.total), float(metric.count)
        elif adds_up(metric):
            states[name] = tuple(float(x) for variable in metric.variables for x in _flat(variable))
        else:
            carried[name] = [_flat(variable) for variable in metric.variables]
    return Metrics(sums, weights, states, carried)


def start_metrics(named: Mapping[str, Any], carried: Metrics | None) -> None:
    """Put carried states into the metrics, which were reset."""
    for name, metric in named.items():
        if carried is not None and name in carried.carried:
            for variable, values in zip(metric.variables, carried.carried[name], strict=True):
                _assign(variable, values)


def finish_metrics(named: Mapping[str, Any], metrics: Metrics) -> dict[str, float]:
    """Return the values of merged states: each is assigned to its metric, which computes the result."""
    results: dict[str, float] = {}
    for name, metric in named.items():
        if name in metrics.states:
            values = iter(metrics.states[name])
            for variable in metric.variables:
                _assign(variable, list(islice(values, math.prod(variable.shape))))
        elif name in metrics.carried:
            start_metrics({name: metric}, metrics)
        else:
            continue
        result = np.asarray(metric.result(), dtype=np.float64)
        names = [name] if result.ndim == 0 else [f"{name}_{index}" for index in range(result.size)]
        results.update(zip(names, result.reshape(-1).tolist(), strict=True))
        metric.reset_state()
    return results


def is_average(metric: Any) -> bool:
    """Whether the value is total / count, as of Mean, the accuracies, and losses used as metrics."""
    return _definer(metric, "result").__name__ == "Mean" and adds_up(metric) and len(metric.variables) == 2


def adds_up(metric: Any) -> bool:
    """Whether the states of parts add up to the state of the whole: Keras' own, with their own updates."""
    return all(_definer(metric, name).__module__.startswith("keras.") for name in ("update_state", "reset_state"))


def _definer(metric: Any, method: str) -> type:
    return next(kind for kind in type(metric).__mro__ if method in vars(kind))


def _flat(variable: Any) -> list[float]:
    values: list[float] = np.asarray(variable.numpy(), dtype=np.float64).reshape(-1).tolist()
    return values


def _assign(variable: Any, values: Any) -> None:
    variable.assign(np.asarray(values, dtype=np.float64).reshape(tuple(variable.shape)).astype(variable.dtype))
