"""Checks what the user's functions returned: the batches of `input_fn`, the metrics of `train_fn` and `eval_fn`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.feed import Batch
from cerebro_spark.types import Metrics


def check_batches(batches: Iterable[Batch], names: Iterable[str]) -> Iterator[Batch]:
    """Yield the batches of `input_fn`. Raises ConfigurationError for one that lacks a column of `names`."""
    wanted = list(names)
    for batch in batches:
        if not isinstance(batch, Mapping):
            raise ConfigurationError(
                f"input_fn returned {type(batch).__name__}, but must return a batch, a dict of arrays, such as"
                " {**batch, 'features': batch['features'] / 255}"
            )
        missing = [name for name in wanted if name not in batch]
        if missing:
            raise ConfigurationError(
                f"input_fn returned a batch without {list_names(missing)}: it has the keys {list_names(batch)}, but"
                f" needs {list_names(wanted)}; return {{**batch, ...}}, with all that came in"
            )
        yield batch


def read_metrics(value: Any) -> Metrics:
    """Return as Metrics what `train_fn` or `eval_fn` returned: sums with a row count, or Metrics.

    >>> read_metrics({"loss": 6.0, "rows": 3}).values()
    {'loss': 2.0}
    """
    if isinstance(value, Metrics):
        if value.sums.keys() != value.weights.keys():
            raise ConfigurationError(
                f"train_fn or eval_fn returned Metrics with sums of {sorted(value.sums)} but weights of"
                f" {sorted(value.weights)}: give each sum its weight, as in Metrics({{'loss': 12.5}}, {{'loss': 1000}})"
            )
        return value
    if not isinstance(value, Mapping) or "rows" not in value:
        raise ConfigurationError(
            f"train_fn or eval_fn returned {value!r}, but must return sums over the rows with their count, such as"
            " {'loss': 12.5, 'rows': 1000}, or cerebro_spark.types.Metrics"
        )
    rows = float(value["rows"])
    sums = {str(name): float(total) for name, total in value.items() if name != "rows"}
    return Metrics(sums, dict.fromkeys(sums, rows))


def describe_metrics(metrics: Metrics) -> dict[str, str]:
    """Return all that was measured as text, by metric: equal only if each bit is.

    >>> describe_metrics(Metrics({"loss": 6.0}, {"loss": 3.0}))
    {'loss': '[6.0, 3.0, None, None]'}
    """
    parts = metrics.sums, metrics.weights, metrics.states, metrics.carried
    return {name: repr([part.get(name) for part in parts]) for name in {name: None for part in parts for name in part}}


def list_names(names: Iterable[str]) -> str:
    """Return these names, quoted, as a list in a sentence."""
    return ", ".join(map(repr, names))
