"""From a DataFrame to equal, shuffled partitions in a store. It runs the user's plan once and never collects a row.

The steps, a module each: check the arguments (spec), open the frames (input), check and stage every input split
(staging), decide from the row counts which rows go where (planning), write the partitions (assembling), and commit
(dataset_writer). The manifest is written last: before that, the data set does not exist for readers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cerebro_spark.data.cluster import find_replica_hosts
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.columns import ColumnNames
from cerebro_spark.data.input.opening import open_frames
from cerebro_spark.data.partitioning.assembling import assemble_partitions
from cerebro_spark.data.partitioning.dataset_writer import DatasetWriter, delete_abandoned, new_id
from cerebro_spark.data.partitioning.planning import plan_partitions
from cerebro_spark.data.partitioning.spec import PrepareSpec
from cerebro_spark.data.partitioning.staging import stage_rows
from cerebro_spark.errors import StoreError
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store


def prepare(
    df: Any,
    *,
    store: Store | str,
    features: ColumnNames,
    label: ColumnNames,
    validation: Any = None,
    partitions: int | None = None,
    seed: int = 0,
    weight: str | None = None,
    name: str | None = None,
    allow_nan: bool = False,
) -> Dataset:
    """Write the rows of `df` as equal, shuffled partitions, and return the Dataset they make.

    `df` is a Spark DataFrame, a pandas DataFrame or a dict of arrays. `features` and `label`: a list of columns is one
    float32 matrix, a single name is that column with its own shape (floats become float32, integers and booleans stay),
    a dict names several of either. `validation` is a fraction, the name of a boolean column, or a second DataFrame.
    In the files each of them is a column: called as yours is, where it is one of yours, else as the array.
    `partitions` defaults to the cluster's slots. The same rows in the same input splits with the same `seed` give the
    same partitions (a split above 128 MB must also come in the same order).

    What would be stored otherwise than it is raises DataError with the column and the number of rows: whole numbers in
    a matrix that float32 rounds, numbers beyond float32, and NaN or infinite numbers. `allow_nan` lets the latter two
    through among the features, for models that know what to do with them.

    >>> import tempfile
    >>> data = {"a": [1.0, 2.0, 3.0, 4.0], "b": [0, 1, 0, 1], "y": [0, 0, 1, 1]}
    >>> dataset = prepare(data, store=tempfile.mkdtemp(), features=["a", "b"], label="y", partitions=2)
    >>> [(partition.id, partition.rows) for partition in dataset.train]
    [('train-00000', 2), ('train-00001', 2)]
    """
    spec = PrepareSpec.parse(features, label, weight, validation, partitions, seed, allow_nan)
    target = open_store(store)
    frames = open_frames(df, validation, spec.inputs, spec.validation_column)
    frames.check_reach(target)
    with DatasetWriter(target, name or new_id()) as writer:
        with frames.staging_folder(target, writer.folder) as staging:
            staged = stage_rows(frames, spec, staging)
            plan = plan_partitions(staged, spec, frames.data.slots)
            files = assemble_partitions(frames.data, plan, staging, writer, spec.seed)
        dataset = writer.commit(plan, files, spec.seed, {**spec.made, "input": frames.data.kind})
    # What dead writers left only takes room: a failure to delete it must not cost this data set.
    with suppress(StoreError):
        delete_abandoned(target)
    if frames.session is None:
        return dataset
    return dataset.with_hosts(find_replica_hosts(frames.session, dataset))
