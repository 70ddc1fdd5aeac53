"""Rows of a Spark DataFrame, worked on by its executors. A row never comes to the driver."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from cerebro_spark.data.cluster import explain_missing_package, use_this_python
from cerebro_spark.data.input.base import SplitTask, StagingFolder, T
from cerebro_spark.data.slots import make_room
from cerebro_spark.errors import CerebroError, DataError, StoreForbidden, StoreFull
from cerebro_spark.store.base import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A batch of Arrow rows is held whole on both sides of the pipe: encoded images are too large for Spark's 10,000.
_ENCODED_ROWS_A_BATCH = 256


class SparkFrame:
    """Columns of a Spark DataFrame; its splits are those that Spark reads it in."""

    kind = "spark"

    def __init__(self, df: DataFrame, names: Sequence[str]) -> None:
        self.session: SparkSession = df.sparkSession
        use_this_python(self.session.sparkContext)
        self.names = list(names)
        # Under names of our own: mapInArrow fails on a dot in a name.
        self.selected = df.select(*[plain_column(df, name).alias(f"c{i}") for i, name in enumerate(names)])

    @property
    def slots(self) -> int:
        """The tasks that the cluster runs at the same time, as Spark counts them."""
        return int(self.session.sparkContext.defaultParallelism)

    def make_room(self) -> None:
        """Have workers that wait for a next run give back their places, if no other is free."""
        make_room(self.session.sparkContext)

    def types(self) -> dict[str, pa.DataType]:
        """Return the Arrow type of each column; DataError if Arrow has none."""
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
    def staging_folder(self, store: Store, folder: str) -> Iterator[StagingFolder]:
        """Stage in the store, since every executor reaches that."""
        path = f"{folder}/staging"
        try:
            yield StagingFolder(store, path)
        finally:
            store.delete(path)

    def map_splits(self, task: SplitTask[T]) -> list[T]:
        """Run the task once for each partition of the DataFrame, on the executors."""
        names = self.names

        def run(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            columns = (dict(zip(names, batch.columns, strict=True)) for batch in batches)
            outcome = _outcome(lambda: task(context.partitionId(), columns))
            yield pa.RecordBatch.from_pydict({"outcome": [pickle.dumps(outcome)]})

        self.make_room()
        with self.small_batches(), explain_missing_package():
            rows = self.selected.mapInArrow(run, "outcome binary").collect()
        # Results of executors are pickles for Spark itself too.
        return [_result(pickle.loads(row.outcome)) for row in rows]

    def starmap(self, task: Callable[..., T], items: Sequence[tuple[Any, ...]]) -> list[T]:
        """Run the task on every item, a Spark task each."""

        def run(item: tuple[Any, ...]) -> T | CerebroError:
            return _outcome(lambda: task(*item))

        self.make_room()
        work = self.session.sparkContext.parallelize(list(items), len(items))
        return [_result(outcome) for outcome in work.map(run).collect()]

    @contextmanager
    def small_batches(self) -> Iterator[None]:
        """Let Spark send fewer rows at once while the block lasts, if there are encoded cells among them."""
        if not any(field.dataType.typeName() == "binary" for field in self.selected.schema.fields):
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
    """Return the column, with ML vectors (dense or sparse) as arrays."""
    from pyspark.sql import functions

    column = functions.col("`" + name.replace("`", "``") + "`")
    kind = df.schema[name].dataType
    if type(kind).__name__ != "VectorUDT":
        return column
    from pyspark.ml.functions import vector_to_array

    return functions.when(column.isNotNull(), vector_to_array(column, "float32"))


def _outcome(work: Callable[[], T]) -> T | CerebroError:
    """Return the result, or an error that Spark would meet again if it tried the task again."""
    try:
        return work()
    except (DataError, StoreForbidden, StoreFull) as error:
        return error


def _result(outcome: T | CerebroError) -> T:
    if isinstance(outcome, CerebroError):
        raise outcome
    return outcome
