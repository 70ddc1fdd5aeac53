"""The members of a bundle: trials that one call trains or evaluates on one partition, and what comes of each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from cerebro_spark.trainer.checkpoints.writing import SavedCheckpoint
from cerebro_spark.trainer.feed import Batch, Feed
from cerebro_spark.trainer.sharing.hooks import Params
from cerebro_spark.types import Metrics, Steps, Strategy, Unit


@dataclass(frozen=True, slots=True)
class Member:
    """One trial of a bundle, with what a unit of it alone would be given.

    Attributes:
        unit: The unit. All of a bundle train, or all evaluate.
        params: The params of the trial.
        feed: The rows of the partition, in the order of this trial.
        source: The checkpoint that it starts from; None builds the trial in its initial state.
        digest: The digest of that checkpoint; "" if it is not known.
        warm_start: Whether the checkpoint may be another trial's, as of `Trainer.load`.
        carried: The metrics of the unit before this one in the same epoch, if any.
        final: Whether this is the last unit of its epoch, so that the values of the metrics are wanted.
    """

    unit: Unit
    params: Params
    feed: Feed | Iterable[Batch]
    source: Path | BinaryIO | bytes | None = None
    digest: str = ""
    warm_start: bool = False
    carried: Metrics | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class TrainedMember:
    """What came of a member.

    Attributes:
        metrics: The metrics of this partition alone.
        values: The values of the merged metrics, if the member was final; else None.
        checkpoint: The file of its checkpoint.
        saved: The size of that file, and the digest of the state in it.
        width: How many members were computed at once; 1 if this one was trained alone.
        seconds: Its share of the time.
        steps: How its steps were taken.
        strategy: How its model lay on the device.
    """

    metrics: Metrics
    values: dict[str, float] | None
    checkpoint: BytesIO
    saved: SavedCheckpoint
    width: int
    seconds: float
    steps: Steps = ""
    strategy: Strategy = ""


@dataclass(frozen=True, slots=True)
class EvaluatedMember:
    """What an evaluation found of a member.

    Attributes:
        metrics: The metrics of this partition alone.
        values: The values of the merged metrics, if the member was final; else None.
        width: How many members were computed at once; 1 if this one was evaluated alone.
        seconds: Its share of the time.
    """

    metrics: Metrics
    values: dict[str, float] | None
    width: int
    seconds: float
