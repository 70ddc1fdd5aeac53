"""What workers need to know before they can work: data, functions, seeds. A value; it opens and loads nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.columns import Column
from cerebro_spark.store.base import Store
from cerebro_spark.trainer.checkpoints.digest import DIGEST
from cerebro_spark.trainer.feed import Columns, ColumnSpec
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import DigestName


@dataclass(frozen=True, slots=True)
class Job:
    """One run as a worker sees it.

    Attributes:
        run: The run's id.
        store: Where checkpoints go.
        dataset: The data, with the store that has it.
        trainer: What its trainer is made from.
        cache: Arguments of the cache of partitions.
        metric: The metric of the search, which a rehearsal looks for; None looks for none.
        digest: The algorithm of the digests of checkpoints.
        smallest_batch: A training unit's last batch joins the one before it if it has fewer rows.
        unit_timeout: The seconds that a unit may take, if the user said so.
        batches: How many batches a unit takes at most, by its epoch: those of the first, of the second and so on, then
            again from the first. Empty by default: all of them. Only pilots have it, which measure and learn nothing.
    """

    run: str
    store: Store
    dataset: Dataset
    trainer: TrainerSpec
    cache: Mapping[str, Any] = field(default_factory=dict)
    metric: str | None = None
    digest: DigestName = DIGEST
    smallest_batch: int = 1
    unit_timeout: float | None = None
    batches: tuple[int, ...] = ()

    @property
    def columns(self) -> Columns:
        """The data set's columns, as trainers call them."""
        weight = self.dataset.weight
        return Columns(_specs(self.dataset.features), _specs(self.dataset.labels), weight.name if weight else None)


def _specs(columns: Sequence[Column]) -> dict[str, ColumnSpec]:
    return {column.name: ColumnSpec(column.dtype, tuple(column.shape)) for column in columns}
