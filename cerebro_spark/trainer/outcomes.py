"""What came of a unit: the user's numbers as metrics, and a loss that has exploded. It never trains."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro_spark.errors import ConfigurationError, TrialFailed
from cerebro_spark.types import Metrics, Unit

EXPLODED = 1e30


def check_loss(metrics: Metrics, unit: Unit, params: Mapping[str, Any]) -> None:
    """Raise TrialFailed when a loss of the unit has exploded: NaN, infinite, or beyond 1e30 a row.

    Nothing learns from a loss of 1e30, float32 ends at 3e38, and the square of such a number is infinite already.
    """
    for name, total in metrics.sums.items():
        value = total / (metrics.weights.get(name) or 1.0)
        if (name == "loss" or name.endswith("_loss")) and not abs(value) <= EXPLODED:
            raise TrialFailed(
                f"trial {unit.trial} failed in epoch {unit.epoch} on partition {unit.partition}: its {name} is {value},"
                f" which is beyond {EXPLODED:g}; params {dict(params)!r}. Lower the learning rate, clip the gradients,"
                " or look for odd rows"
            )


def user_metrics(value: Any) -> Metrics:
    """What `train_fn` or `eval_fn` returned, as Metrics: sums with a row count, or Metrics itself.

    >>> user_metrics({"loss": 6.0, "rows": 3}).values()
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
