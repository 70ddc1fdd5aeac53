"""What workers need to know before they can work: data, functions, seeds. A value; it opens and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.store.base import Store
from cerebro_spark.trainer.base import Hooks, Resources, Trainer
from cerebro_spark.trainer.feed import Columns, ColumnSpec

Framework = Literal["auto", "keras", "torch"] | type[Trainer]


@dataclass(frozen=True, slots=True)
class Job:
    """One run as a worker sees it: where its data and its checkpoints are, and the user's functions.

    `metric` is what the search goes by, if that is to be looked for when one batch is tried. A training unit's last
    batch of fewer rows than `smallest_batch` joins the one before it. `unit_timeout` are the seconds that a unit may
    take, if the user said so.
    """

    run: str
    store: Store
    dataset: Dataset
    hooks: Hooks
    seed: int = 0
    framework: Framework = "auto"
    resources: Resources = field(default_factory=Resources)
    cache: Mapping[str, Any] = field(default_factory=dict)
    metric: str | None = None
    smallest_batch: int = 1
    unit_timeout: float | None = None

    @property
    def columns(self) -> Columns:
        """The data set's columns, as trainers call them."""
        specs = {column.name: ColumnSpec(column.dtype, tuple(column.shape)) for column in self.dataset.columns}
        return Columns(
            {column.name: specs[column.name] for column in self.dataset.features},
            {column.name: specs[column.name] for column in self.dataset.labels},
            self.dataset.weight.name if self.dataset.weight else None,
        )
