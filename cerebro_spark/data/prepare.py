"""From a DataFrame to equal, shuffled partitions in a store. It runs the user's plan once and never collects a row.

Two passes. The first runs the plan: each input split is checked and staged in random order, and only its row counts
come back. Then, from the counts alone, the driver decides which slice of which split goes where. The second pass
assembles the partitions. The manifest is written last: before that, nobody sees anything."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, Protocol

import pandas as pd
import pyarrow as pa

from cerebro_spark import errors
from cerebro_spark.data.dataset import COMMON_METADATA, Dataset, partition_id, write_manifest
from cerebro_spark.data.formats.arrow import PartitionFile, common_metadata
from cerebro_spark.data.input.columns import ColumnNames, Input, check_present, check_type, source_names, stored_columns
from cerebro_spark.data.input.frames import FrameSource, column_names
from cerebro_spark.data.partitioning import leftovers
from cerebro_spark.data.partitioning.deal import validation_rows
from cerebro_spark.data.partitioning.planning import Hands, agree, plan_flag, plan_fraction, plan_frames
from cerebro_spark.data.partitioning.shipping import package_on_executors, use_this_python
from cerebro_spark.data.partitioning.spec import Order, is_frame, is_spark
from cerebro_spark.data.partitioning.staging import AssemblePartition, Piece, SplitReport, StageSplit
from cerebro_spark.errors import (
    AlreadyInStore,
    CerebroError,
    ConfigurationError,
    DataError,
    NotFoundInStore,
    StoreError,
)
from cerebro_spark.store.base import Store
from cerebro_spark.store.paths import dataset_folder, manifest, partition_file, split_folder, writer_folder
from cerebro_spark.types import Partition, PartitionId, Split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A batch of Arrow rows is held whole on both sides of the pipe: encoded images are too large for Spark's 10,000.
_ENCODED_ROWS_A_BATCH = 256


class Source(Protocol):
    """Where the rows come from and where the two passes run."""

    @property
    def kind(self) -> str: ...
    def slots(self) -> int: ...
    def types(self) -> dict[str, pa.DataType]: ...
    def staging(self, store: Store, folder: str) -> AbstractContextManager[tuple[Store, str]]: ...
    def stage(self, task: StageSplit) -> list[SplitReport]: ...
    def assemble(self, task: AssemblePartition, hands: Mapping[str, Sequence[Piece]]) -> list[PartitionFile]: ...


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
    order = Order.of(features, label, weight, validation, partitions, seed, allow_nan)
    target = as_store(store)
    source = open_source(df, order.inputs, order.flag)
    held_out = _open_held_out(validation, order.inputs) if is_frame(validation) else None
    spark = getattr(source, "session", None) or getattr(held_out, "session", None)
    if spark is not None and target.url.startswith("memory://"):
        raise ConfigurationError(
            f"{target.url} is in the memory of this process, which Spark's executors cannot reach: use a folder that"
            " all of them mount, hdfs:// or s3://, or give pandas frames"
        )
    place = _Place(target, name or f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:6]}")
    if target.exists(manifest(place.id)):
        raise place.taken()
    try:
        dataset = _write(order, place, source, held_out)
    except BaseException:
        # The first error is the one to hear of.
        with suppress(Exception):
            place.abandon()
        raise
    # What others left only takes room, and this data set is there whatever becomes of it.
    with suppress(StoreError):
        leftovers.sweep(target)
    return dataset if spark is None else dataset.with_hosts(replica_hosts(spark, dataset))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one call of `prepare` writes: a folder of its own, so that others may try the same name meanwhile.

    The name belongs to whoever writes the manifest first. What a killed writer left is in nobody's way, and swept.
    """

    store: Store
    id: str
    token: str = field(default_factory=lambda: leftovers.new_token(time.time()))

    @property
    def folder(self) -> str:
        return writer_folder(self.id, self.token)

    def taken(self) -> AlreadyInStore:
        return AlreadyInStore(
            f"{self.store.url} has a data set {self.id!r} already: open it with open_dataset or choose another name"
        )

    def abandon(self) -> None:
        """Remove what was written, unless the manifest is there after all: a store may fail after it has written."""
        try:
            owner = Dataset.open(self.store, self.id).made.get("token")
        except NotFoundInStore:
            owner = None
        if owner != self.token:
            self.store.delete(self.folder)


def as_store(store: Store | str) -> Store:
    """The store itself, or the one at this URL."""
    from cerebro_spark.store import open_store

    return open_store(store)


def open_source(df: Any, inputs: Sequence[Input], flag: str | None) -> Source:
    """The rows of `df`, with what can be said against its columns said before any work is done."""
    wanted = [*source_names(inputs), *([flag] if flag is not None else [])]
    source: Source
    if is_spark(df):
        any_case = str(df.sparkSession.conf.get("spark.sql.caseSensitive")).lower() != "true"
        check_present(inputs, df.columns, wanted, any_case=any_case)
        source = SparkSource(df, list(dict.fromkeys(wanted)))
    elif isinstance(df, pd.DataFrame | Mapping):
        check_present(inputs, column_names(df), wanted)
        source = FrameSource(df, list(dict.fromkeys(wanted)))
    else:
        raise ConfigurationError(
            f"df is a {type(df).__name__}, but must be a Spark DataFrame, a pandas DataFrame or a dict of arrays"
        )
    types = source.types()
    for name, kind in types.items():
        check_type(name, kind)
    if flag is not None and not pa.types.is_boolean(types[flag]):
        raise DataError(
            f"validation names the column {flag!r}, which is {types[flag]} in all its rows, not boolean:"
            " cast it, or pass a fraction or a DataFrame"
        )
    return source


def _open_held_out(df: Any, inputs: Sequence[Input]) -> Source:
    try:
        return open_source(df, inputs, None)
    except (ConfigurationError, DataError) as error:
        raise type(error)(f"validation frame: {error}") from error


def _write(order: Order, place: _Place, source: Source, held_out: Source | None) -> Dataset:
    store, id = place.store, place.id
    # Rows that executors stage are reached through the store alone, by this process as well.
    stager = held_out if isinstance(held_out, SparkSource) else source
    with stager.staging(store, place.folder) as (staging, folder):
        allow_nan = order.made["allow_nan"]
        task = StageSplit(order.inputs, order.flag, staging, f"{folder}/train", order.seed, allow_nan=allow_nan)
        reports = source.stage(task)
        others = [] if held_out is None else held_out.stage(replace(task, flag=None, folder=f"{folder}/validation"))
        columns = stored_columns(order.inputs, agree(reports, others))
        partitions = order.partitions or _default_partitions(source, reports, order.fraction)
        hands = _plan(order, reports, None if held_out is None else others, partitions)
        names = {
            partition_file(id, place.token, split, partition_id(split, number)): pieces
            for (split, number), pieces in hands.items()
        }
        written = source.assemble(AssemblePartition(staging, store, columns, order.seed), names)
    files = {partition_id(split, number): file for (split, number), file in zip(hands, written, strict=True)}
    made = tuple(_partition(split, number, files) for split, number in hands)
    dataset = Dataset(
        store=store,
        folder=dataset_folder(id),
        id=id,
        columns=columns,
        train=tuple(partition for partition in made if partition.split == "train"),
        validation=tuple(partition for partition in made if partition.split == "validation"),
        seed=order.seed,
        made={**order.made, "input": source.kind, "token": place.token},
    )
    for part in (dataset.train, dataset.validation):
        if part:
            groups = {each.files[0].rpartition("/")[2]: files[each.id].row_groups for each in part}
            folder = split_folder(id, place.token, part[0].split)
            store.write(f"{folder}/{COMMON_METADATA}", common_metadata(columns, groups))
    try:
        write_manifest(dataset, files)
    except AlreadyInStore as error:
        raise place.taken() from error
    return dataset


def _default_partitions(source: Source, reports: Sequence[SplitReport], fraction: float) -> int:
    rows = sum(chunk.train for report in reports for chunk in report.chunks)
    return max(1, min(source.slots(), rows - validation_rows(rows, fraction)))


def _plan(order: Order, reports: Sequence[SplitReport], others: Sequence[SplitReport] | None, partitions: int) -> Hands:
    if others is not None:
        return plan_frames(reports, others, partitions, order.seed)
    if order.flag is not None:
        return plan_flag(reports, partitions, order.seed)
    return plan_fraction(reports, order.fraction, partitions, order.seed)


def _partition(split: Split, number: int, files: Mapping[PartitionId, PartitionFile]) -> Partition:
    id = partition_id(split, number)
    return Partition(id=id, split=split, rows=files[id].rows, bytes=files[id].bytes, files=(files[id].name,))


class SparkSource:
    """The rows of a Spark DataFrame; both passes run on its executors."""

    kind = "spark"

    def __init__(self, df: DataFrame, names: Sequence[str]) -> None:
        self.session: SparkSession = df.sparkSession
        use_this_python(self.session.sparkContext)
        self.names = list(names)
        # Under names of our own: mapInArrow trips over a dot in a name.
        self.selected = df.select(*[plain_column(df, name).alias(f"c{i}") for i, name in enumerate(names)])

    def slots(self) -> int:
        return int(self.session.sparkContext.defaultParallelism)

    def types(self) -> dict[str, pa.DataType]:
        from pyspark.sql.pandas.types import to_arrow_type

        # Spark 4 does not name the type of a time without a zone; 3.5 takes none.
        zone: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_type).parameters else {}
        types: dict[str, pa.DataType] = {}
        for name, selected in zip(self.names, self.selected.schema.fields, strict=True):
            try:
                types[name] = to_arrow_type(selected.dataType, **zone)
            except TypeError as error:
                raise DataError(
                    f"column {name!r} is {selected.dataType.simpleString()} in all its rows, which cannot be"
                    " trained on: convert it to numbers first"
                ) from error
        return types

    @contextmanager
    def staging(self, store: Store, folder: str) -> Iterator[tuple[Store, str]]:
        """A folder of the store, since every executor reaches that; gone when the block ends."""
        place = f"{folder}/staging"
        try:
            yield store, place
        finally:
            store.delete(place)

    def stage(self, task: StageSplit) -> list[SplitReport]:
        names = self.names

        def run(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            columns = (dict(zip(names, batch.columns, strict=True)) for batch in batches)
            report = _answer(lambda: task(context.partitionId(), columns).to_json())
            yield pa.RecordBatch.from_pydict({"report": [json.dumps(report)]})

        with self.batch_rows(), package_on_executors():
            rows = self.selected.mapInArrow(run, "report string").collect()
        return [SplitReport.from_json(_result(json.loads(row.report))) for row in rows]

    def assemble(self, task: AssemblePartition, hands: Mapping[str, Sequence[Piece]]) -> list[PartitionFile]:
        def run(hand: tuple[str, Sequence[Piece]]) -> dict[str, Any]:
            return _answer(lambda: task(*hand))

        work = self.session.sparkContext.parallelize(list(hands.items()), len(hands))
        return [_result(answer) for answer in work.map(run).collect()]

    @contextmanager
    def batch_rows(self) -> Iterator[None]:
        """Let Spark send fewer rows at once while the block lasts, if there are encoded cells among them."""
        if not any(kind.typeName() == "binary" for kind in (f.dataType for f in self.selected.schema.fields)):
            yield
            return
        key = "spark.sql.execution.arrow.maxRecordsPerBatch"
        before = self.session.conf.get(key)
        self.session.conf.set(key, str(_ENCODED_ROWS_A_BATCH))
        try:
            yield
        finally:
            self.session.conf.set(key, str(before))


def plain_column(df: DataFrame, name: str) -> Any:
    """The column, with ML vectors (dense or sparse) as arrays."""
    from pyspark.sql import functions

    column = functions.col("`" + name.replace("`", "``") + "`")
    kind = df.schema[name].dataType
    if type(kind).__name__ != "VectorUDT":
        return column
    from pyspark.ml.functions import vector_to_array

    return functions.when(column.isNotNull(), vector_to_array(column, "float32"))


def _answer(work: Callable[[], Any]) -> dict[str, Any]:
    """What a task sends back: its result, or an error that trying again cannot mend."""
    try:
        return {"result": work()}
    except (DataError, errors.StoreForbidden, errors.StoreFull) as error:
        return {"error": type(error).__name__, "message": str(error)}


def _result(answer: Mapping[str, Any]) -> Any:
    if "error" in answer:
        kind: type[CerebroError] = getattr(errors, answer["error"])
        raise kind(answer["message"])
    return answer["result"]


def replica_hosts(spark: SparkSession, dataset: Dataset) -> dict[PartitionId, tuple[str, ...]]:
    """Which hosts hold blocks of each partition, those with most bytes first, as the name node says now.

    Empty for a store that is not on HDFS, where no host is nearer than another.
    """
    root = dataset.store.url.rstrip("/")
    if not root.startswith(("hdfs://", "viewfs://")):
        return {}
    gateway: Any = spark
    jvm, configuration = gateway._jvm, gateway._jsc.hadoopConfiguration()
    hosts: dict[PartitionId, tuple[str, ...]] = {}
    for partition in dataset.partitions:
        held: dict[str, int] = {}
        for name in partition.files:
            path = jvm.org.apache.hadoop.fs.Path(f"{root}/{name}")
            system = path.getFileSystem(configuration)
            status = system.getFileStatus(path)
            for block in system.getFileBlockLocations(status, 0, status.getLen()):
                for host in block.getHosts():
                    held[host] = held.get(host, 0) + block.getLength()
        hosts[partition.id] = tuple(sorted(held, key=lambda host: (-held[host], host)))
    return hosts
