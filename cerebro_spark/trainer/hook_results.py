"""Checks what the user's functions returned: the batches of `input_fn`, the metrics of `train_fn` and `eval_fn`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any

import numpy as np

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.feed import Batch, Feed
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
        # What knows how becomes an array: a tensor, a Series.
        yield {
            name: value if isinstance(value, np.ndarray) or not hasattr(value, "__array__") else np.asarray(value)
            for name, value in batch.items()
        }


def check_rows(batch: Batch, made: Any, names: Iterable[str]) -> Any:
    """Return what `input_fn` made of a batch. Raises ConfigurationError if that has another number of rows.

    >>> check_rows({"x": np.zeros(3)}, {"x": np.zeros(2)}, ["x"])
    Traceback (most recent call last):
        ...
    cerebro_spark.errors.ConfigurationError: input_fn returned 2 rows of 'x' for a batch of 3, but must return as many \
as came in: drop, add or draw rows before the data is prepared, or give those that shall not count a weight of 0
    """
    rows = len(next(iter(batch.values())))
    for name in names if isinstance(made, Mapping) else ():
        value = made.get(name)
        if hasattr(value, "__len__") and len(value) != rows:
            raise ConfigurationError(
                f"input_fn returned {len(value)} rows of {name!r} for a batch of {rows}, but must return as many as"
                " came in: drop, add or draw rows before the data is prepared, or give those that shall not count a"
                " weight of 0"
            )
    return made


class OnePass(Iterator[Batch]):
    """The batches of a unit as a function of the user's gets them: they can be gone through once.

    Args:
        batches: The batches.
        feed: Where they come from, which may know how many they are.

    >>> batches = OnePass(iter([{"x": np.zeros(2)}]), [])
    >>> [len(batch["x"]) for batch in batches]
    [2]
    >>> list(batches)
    Traceback (most recent call last):
        ...
    cerebro_spark.errors.ConfigurationError: the batches of a unit can be gone through once: each unit is one pass \
over a partition, and epochs= of the search says how many there are. To see them again, keep them: \
batches = list(batches)
    """

    def __init__(self, batches: Iterator[Batch], feed: Feed | Iterable[Batch]) -> None:
        self._batches = batches
        self._feed = feed
        self._begun = False

    def __iter__(self) -> Iterator[Batch]:
        if self._begun:
            raise ConfigurationError(
                "the batches of a unit can be gone through once: each unit is one pass over a partition, and epochs= of"
                " the search says how many there are. To see them again, keep them: batches = list(batches)"
            )
        self._begun = True
        return self._batches

    def __next__(self) -> Batch:
        return next(self._batches)

    def __len__(self) -> int:
        if isinstance(self._feed, Feed):
            return len(self._feed.sizes)
        if isinstance(self._feed, Sized):
            return len(self._feed)
        raise TypeError("it is not known how many batches there are")


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
