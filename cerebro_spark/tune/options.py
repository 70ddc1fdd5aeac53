"""The arguments that searches, CerebroTrials and `optimize` share: the one place for their defaults and meanings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from cerebro_spark.backend.base import Backend
from cerebro_spark.data.input.inputs import ColumnNames
from cerebro_spark.store.base import Store
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.spec import Framework
from cerebro_spark.tune.trackers.base import Tracker

ModelFn = Callable[[Any], Any]


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingOptions:
    """What a run trains on, where, and what it measures.

    Args:
        store: Where data, checkpoints and results are written: a folder, an address such as `hdfs://` or `s3://`, or
            what `cs.open_store` returned.
        metric: The metric that decides which trial is better, such as "val_auc" or "loss".
        mode: "min" or "max": which direction of `metric` is better. Defaults to None: inferred from the name of a
            well-known metric; for other metrics it must be given.
        backend: Where the units run. Defaults to None: the cluster of the active Spark session; without a session, two
            processes on this machine.
        features: The columns that the model reads; a dict from input name to columns for a model with several inputs.
            Required unless the data is a Dataset; see `cs.prepare`. Of a Dataset, what is named here and below must be
            as it was prepared.
        label: The column, or columns, that the model predicts; a dict for several outputs. Required unless the data is
            a Dataset.
        weight: The column with the weight of each row. Defaults to None: all rows have the same weight.
        validation: Which rows are for validation: a fraction such as 0.2, the name of a boolean column, or a second
            DataFrame. Defaults to None: none.
        partitions: Into how many partitions the data is split. Defaults to None: one for each worker.
        allow_nan: Whether features may be NaN or infinite. Defaults to False: such rows are refused.
        seed: The seed of all random choices: partitions, trials, initial weights, the order of rows. Defaults to 0.
        input_fn: Called as `input_fn(batch, params)` for each batch; returns a batch with the same keys. A batch is a
            dict of arrays with the keys "features", "label" and, with `weight`, "weight"; where `features` or `label`
            is a dict, its keys take their place. Defaults to None: batches stay as they are.
        train_fn: Called as `train_fn(model, batches, params)` to train one unit; returns sums with their count, such as
            `{"loss": 12.5, "rows": 1000}`. Defaults to None: the framework's usual training step.
        eval_fn: Called as `eval_fn(model, batches, params)` to evaluate one unit; returns the same as `train_fn`.
            Defaults to None: the model's loss and metrics.
        framework: "keras", "torch" or "auto". Defaults to "auto", which is read from the code of `model_fn`.
        resources: The threads, device and precision of a worker. Defaults to None: `cs.Resources()`.
        replicas: How many workers hold each partition. Defaults to 1.
        max_kills: How many workers in a row, on different hosts, may die in one unit before its trial fails. Defaults
            to None: estimated from how often workers die otherwise.
        unit_timeout: The seconds after which a unit, or the loading of a partition, counts as stuck and its worker is
            replaced. Defaults to None: estimated from how long they usually take.
        fuse: Whether trials that differ in real numbers only, such as a learning rate, may be trained and evaluated
            together on one worker: "auto" for as many as is sensible, or how many at most, such as 8. What a trial
            learns does not depend on it. There are never fewer bundles than workers, so it takes more trials at a time
            than workers: grid search, random search, Hyperband and PBT run all they can, others some for each worker.
            Defaults to False: every trial goes by itself.
        workers_per_trial: How many workers train a unit of a trial together, each on a partition of its own: a number,
            or "auto" for more than one only while there would be idle workers otherwise, and as many as make it faster,
            as measured in the run. What a trial learns depends on it, as on the order of its partitions: a replay
            repeats both. Trials that cannot be trained like that are trained by single workers; the log says why.
            Defaults to 1.
        kind: What the model puts out, where its loss does not tell: see `Result.transform`. Defaults to None: inferred
            from the loss.
        trackers: What records the run as it goes on, such as `[cs.CSVTracker("run.csv")]`. Defaults to `()`: none.
    """

    store: Store | str
    metric: str
    mode: str | None = None
    backend: Backend | None = None
    features: ColumnNames | None = None
    label: ColumnNames | None = None
    weight: str | None = None
    validation: Any = None
    partitions: int | None = None
    allow_nan: bool = False
    seed: int = 0
    input_fn: Callable[..., Any] | None = None
    train_fn: Callable[..., Any] | None = None
    eval_fn: Callable[..., Any] | None = None
    framework: Framework = "auto"
    resources: Resources | None = None
    replicas: int = 1
    max_kills: int | None = None
    unit_timeout: float | None = None
    fuse: Literal["auto"] | bool | int = False
    workers_per_trial: Literal["auto"] | int = 1
    kind: str | None = None
    trackers: Sequence[Tracker] = ()


def copy_options(holder: TrainingOptions, **changes: Any) -> TrainingOptions:
    """Return the shared options of a search or of CerebroTrials, with changes.

    Args:
        holder: What has the options among its fields.
        changes: Other values, by name.

    Returns:
        Options of their own, without the holder's other fields.
    """
    return TrainingOptions(**{field.name: getattr(holder, field.name) for field in fields(TrainingOptions)} | changes)
