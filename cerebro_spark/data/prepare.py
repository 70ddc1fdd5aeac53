"""From a DataFrame to equal, shuffled partitions in a store. It runs the user's plan once and never collects a row.

The steps, a module each: check the arguments (spec), open the frames (input), check and stage every input split
(staging), decide from the row counts which rows go where (planning), write the partitions (assembling), and commit
(dataset_writer). The manifest is written last: before that, the data set does not exist for readers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from cerebro_spark.data.cluster import find_replica_hosts
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.input.inputs import ColumnNames
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
    """Write rows as equal, shuffled partitions in a store: once, for many searches.

    The rows of a Spark DataFrame are written by the executors; its plan runs once, and no row comes to the driver. The
    data set becomes visible when all of it is written. The same rows in the same input splits with the same `seed` give
    the same partitions (a split above 128 MB must also have its rows in the same order).

    In the files each array is a column. It has the name of the source column if there is one, else that of the array.

    Args:
        df: The rows: a Spark DataFrame, a pandas DataFrame or a dict of arrays.
        store: Where to write: a path, a URL such as "hdfs:///user/me/churn", or a Store.
        features: The input columns. A list of names becomes one float32 matrix. A single name is that column with its
            own shape; floats become float32, integers and booleans stay. A dict names several inputs, each of them a
            list or a single name.
        label: The label columns, in the same three forms.
        validation: The rows to evaluate on: a fraction from 0 to below 1, the name of a boolean column that is true
            for these rows, or a second DataFrame with the same columns. Defaults to None: no validation rows.
        partitions: The number of training partitions, at least 1. None, the default, means one for each slot of the
            cluster (without Spark, each core).
        seed: The seed of the shuffle, a whole number. Defaults to 0.
        weight: The column of sample weights. Defaults to None: every row counts as much.
        name: The name of the data set in the store. None, the default, makes one of date, time and random letters.
        allow_nan: Let NaN, infinite numbers and numbers beyond float32 through among the features. Defaults to False:
            they raise DataError. Labels and weights must always be finite.

    Returns:
        The data set, for `search.fit(dataset)`.

    Raises:
        ConfigurationError: If an argument is none of those above.
        DataError: If values cannot be stored as they are: nulls, text, arrays of different shapes, NaN, or whole
            numbers that a float32 matrix would round. The message has the column and the number of rows.
        AlreadyInStore: If the store has a data set of this name.

    Examples:
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
