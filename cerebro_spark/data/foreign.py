"""Open data that was prepared before, or by other programs: a Petastorm data set or a folder of Parquet files.

It reads footers and one row, and never writes or moves anything."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from cerebro_spark.data.dataset import Dataset, partition_id
from cerebro_spark.data.formats.unischema import COMMON_METADATA, UNISCHEMA_KEY, Unischema, codec_of, load_unischema
from cerebro_spark.data.input.cells import read_cells
from cerebro_spark.data.input.checks import ColumnCheck, list_problems, raise_problems
from cerebro_spark.data.input.columns import (
    Column,
    SourceType,
    check_type,
    is_numeric,
    stored_dtype,
    unnest_type,
)
from cerebro_spark.data.input.inputs import (
    ColumnNames,
    Input,
    check_present,
    list_sources,
    name_sources,
    parse_inputs,
    resolve_columns,
)
from cerebro_spark.data.manifest import MANIFEST, read_manifest
from cerebro_spark.data.partitioning.spec import check_allow_nan
from cerebro_spark.errors import ConfigurationError, DataError, NotFoundInStore
from cerebro_spark.rounding import EXACT
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store
from cerebro_spark.store.paths import DATASETS, dataset_ids
from cerebro_spark.types import Partition, Split

Footers = Mapping[str, pq.FileMetaData]


def open_dataset(
    url: str | os.PathLike[str] | Store,
    *,
    features: ColumnNames | None = None,
    label: ColumnNames | None = None,
    weight: str | None = None,
    validation: str | None = None,
    allow_nan: bool = False,
) -> Dataset:
    """Open a data set that `prepare` wrote, a Petastorm data set, or a folder of Parquet files. Nothing is copied.

    In data of other programs each file is a partition, so the files should be of about the same size, and shuffled.

    Args:
        url: The folder of the data set, or a store that holds exactly one: a path, a URL such as "hdfs:///user/me", or
            a Store.
        features: The input columns, as in `prepare`. Data that `prepare` wrote has its columns already: leave it out,
            or give the same ones. Defaults to None.
        label: The label columns, in the same way. Defaults to None.
        weight: The column of sample weights, in the same way. Defaults to None: every row counts as much.
        validation: The folder under `url` whose files are for validation. Defaults to None: there are none. Data that
            `prepare` wrote has its own.
        allow_nan: Let NaN and infinite features through. Defaults to False: they raise DataError when they are read.

    Returns:
        The data set.

    Raises:
        ConfigurationError: If `features` or `label` is missing for data of other programs, or differs from what the
            data was prepared with.
        NotFoundInStore: If there are no Parquet files, or none in the `validation` folder.
        DataError: If columns are missing, hold what cannot be trained on, or differ between files. Whole numbers that
            a float32 matrix would round raise it here if a file's statistics show them, else when its rows are read.

    Examples:
        >>> import pandas, tempfile
        >>> folder = tempfile.mkdtemp()
        >>> pandas.DataFrame({"a": [1.0, 2.0], "y": [0, 1]}).to_parquet(folder + "/part-0.parquet")
        >>> [partition.rows for partition in open_dataset(folder, features=["a"], label="y").train]
        [2]
    """
    check_allow_nan(allow_nan)
    store = open_store(url)
    if store.exists(MANIFEST):
        return _open_prepared(read_manifest(store, ""), features, label, weight, allow_nan)
    if dataset_ids(store.list(DATASETS)):
        return _open_prepared(Dataset.open(store), features, label, weight, allow_nan)
    if features is None or label is None:
        raise ConfigurationError(
            f"{store.url} was not written by prepare: say which columns to take with features= and label="
        )
    return _open_foreign(store, parse_inputs(features, label, weight), validation, allow_nan)


def _open_prepared(
    dataset: Dataset,
    features: ColumnNames | None,
    label: ColumnNames | None,
    weight: str | None,
    allow_nan: bool,
) -> Dataset:
    """Return data that `prepare` wrote; other columns than it was prepared with are refused."""
    if not (features is None and label is None and weight is None):
        known = dataset.made.get("columns", {})
        asked = name_sources(parse_inputs(features or [], label or [], weight))
        if asked != known:
            raise ConfigurationError(
                f"{dataset.url} was prepared with the columns {known}, not {asked}: prepare it again"
            )
    # Saved arrays are decoded only when they are read: NaN in them can be allowed even then.
    return replace(dataset, made={**dataset.made, "allow_nan": True}) if allow_nan else dataset


def _open_foreign(store: Store, inputs: Sequence[Input], validation: str | None, allow_nan: bool) -> Dataset:
    footers = _read_footers(store)
    columns = _find_columns(store, inputs, footers)
    held_out = _find_validation(store, footers, validation)
    return Dataset(
        store=store,
        folder="",
        id=hashlib.blake2b(store.url.encode(), digest_size=8).hexdigest(),
        columns=columns,
        train=_make_partitions("train", [name for name in footers if name not in held_out], footers, columns),
        validation=_make_partitions("validation", held_out, footers, columns),
        made={
            "by": "elsewhere",
            "allow_nan": allow_nan,
            "columns": name_sources(inputs),
            "versions": {name: _version(store, name, footer) for name, footer in footers.items()},
            "footers": {name: _digest(footer) for name, footer in footers.items()},
        },
    )


def check_unchanged(dataset: Dataset) -> None:
    """Raise DataError if a file of a data set of another program was written again since it was opened.

    Footers are compared, so a data set may move. Data sets that versions before opened say nothing of theirs.

    Args:
        dataset: The data set, with the store that has it now.

    Raises:
        NotFoundInStore: A file is missing.
        DataError: A file has another footer: other sizes, or other smallest and largest values.
    """
    for name, known in dataset.made.get("footers", {}).items():
        if _digest(_read_footer(dataset.store, name)) != known:
            raise DataError(
                f"{name!r} in {dataset.store.url} was written again since the data set was opened: bring back the rows"
                " that were there, or begin a new run on those that are there now"
            )


def _read_footers(store: Store) -> Footers:
    """Return the footers of all Parquet files that have rows, by name."""
    names = [name for name in store.list() if _is_data(name)]
    if not names:
        raise NotFoundInStore(f"{store.url} holds no Parquet files (*.parquet): is the path right?")
    footers = {name: footer for name in names if (footer := _read_footer(store, name)).num_rows}
    if not footers:
        raise DataError(f"{store.url} holds Parquet files, but with 0 rows: write rows to them")
    return footers


def _find_columns(store: Store, inputs: Sequence[Input], footers: Footers) -> tuple[Column, ...]:
    """Return the columns that all files have, checked as far as the footers go."""
    first = next(iter(footers))
    schema = footers[first].schema.to_arrow_schema()
    sources = list_sources(inputs)
    check_present(sources, schema.names)
    for name in sources:
        check_type(name, schema.field(name).type)
    _check_alike(store, sources, footers)
    _check_nulls(sources, footers)
    columns = resolve_columns(inputs, _source_types(store, first, sources))
    _check_rounding(store, columns, footers)
    return columns


def _find_validation(store: Store, footers: Footers, validation: str | None) -> list[str]:
    """Return the names of the files in the folder that `validation` names."""
    if not validation:
        return []
    inside = f"{validation.strip('/')}/"
    found = [name for name in footers if name.startswith(inside)]
    if not found:
        raise NotFoundInStore(f"{store.url} has no Parquet files in {inside!r}, which validation= names")
    return found


def _is_data(name: str) -> bool:
    hidden = any(part.startswith(("_", ".")) for part in name.split("/"))
    return not hidden and name.endswith((".parquet", ".parq", ".pq"))


def _read_footer(store: Store, name: str) -> pq.FileMetaData:
    try:
        with store.reader(name) as file:
            return pq.read_metadata(file)
    except pa.ArrowException as error:
        raise DataError(f"{name!r} in {store.url} is no Parquet file: {error}") from error


def _version(store: Store, name: str, footer: pq.FileMetaData) -> str:
    """Return what changes when the file is written again: a digest of its footer, and of its age if that is known.

    A footer has the sizes of all pages, and the smallest and largest values unless its writer left them out.
    """
    path = store.local_path(name)
    stat = path.stat() if path is not None else None
    age = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}" if stat is not None else str(store.size(name))
    return hashlib.blake2b(_bytes(footer) + age.encode(), digest_size=10).hexdigest()


def _digest(footer: pq.FileMetaData) -> str:
    return hashlib.blake2b(_bytes(footer), digest_size=10).hexdigest()


def _bytes(footer: pq.FileMetaData) -> bytes:
    sink = io.BytesIO()
    footer.write_metadata_file(sink)
    return sink.getvalue()


def _check_alike(store: Store, sources: Sequence[str], footers: Footers) -> None:
    """Raise DataError if a file lacks a column, or has it as another type than the first file."""
    schemas = {name: footer.schema.to_arrow_schema() for name, footer in footers.items()}
    first, schema = next(iter(schemas.items()))
    for name, other in schemas.items():
        for source in sources:
            if source not in other.names:
                raise DataError(
                    f"{name!r} in {store.url} has no column {source!r}, which {first!r} has: write it with that column"
                    " or take the file away"
                )
            kind, found = schema.field(source).type, other.field(source).type
            if _stored_type(kind) != _stored_type(found):
                raise DataError(
                    f"column {source!r} is {found} in {name!r} of {store.url}, but {kind} in {first!r}: cast it to one"
                    " type in all files, or take the file away"
                )


def _stored_type(kind: pa.DataType) -> tuple[int, str]:
    """Return how deep the lists of a column are nested, and the type their elements are stored as."""
    element, depth = unnest_type(kind)
    if is_numeric(element):
        return depth, stored_dtype(np.dtype(element.to_pandas_dtype()))
    return depth, str(element).replace("large_", "")


def _make_partitions(
    split: Split, names: Sequence[str], footers: Footers, columns: Sequence[Column]
) -> tuple[Partition, ...]:
    row_bytes = sum(column.row_bytes for column in columns)
    return tuple(
        Partition(
            id=partition_id(split, number),
            split=split,
            rows=footers[name].num_rows,
            bytes=footers[name].num_rows * row_bytes,
            files=(name,),
        )
        for number, name in enumerate(names)
    )


def _check_nulls(sources: Sequence[str], footers: Footers) -> None:
    """Raise DataError for nulls that the footers count, before a worker reads them."""
    checks = {name: ColumnCheck("feature") for name in sources}
    for footer in footers.values():
        for _, source, statistics in _list_statistics(footer, checks):
            checks[source].bad["nulls"] += statistics.null_count or 0
    raise_problems(list_problems(checks))


def _check_rounding(store: Store, columns: Sequence[Column], footers: Footers) -> None:
    """Raise DataError for whole numbers that a matrix of floats would round.

    Only row groups whose footer has large numbers are read.
    """
    wanted = [column for column in columns if column.dtype == "float32"]
    checks = {source: ColumnCheck("feature", in_matrix=True) for source in list_sources(wanted)}
    for name, footer in footers.items():
        chunks = _list_statistics(footer, checks)
        suspect = [(group, source) for group, source, statistics in chunks if _has_large_integers(statistics)]
        if suspect:
            with store.reader(name) as file, pq.ParquetFile(file) as parquet:
                for group, source in suspect:
                    read_cells(source, parquet.read_row_group(group, columns=[source]).column(source), checks[source])
    raise_problems(list_problems({name: check for name, check in checks.items() if check.bad["rounded"]}))


def _list_statistics(footer: pq.FileMetaData, sources: Collection[str]) -> Iterator[tuple[int, str, pq.Statistics]]:
    """Yield the row group, the source and the statistics of each column chunk of these sources that has any."""
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            chunk = footer.row_group(group).column(number)
            source = chunk.path_in_schema.split(".")[0]
            if source in sources and chunk.is_stats_set:
                yield group, source, chunk.statistics


def _has_large_integers(statistics: pq.Statistics) -> bool:
    if not statistics.has_min_max:
        return False
    low, high = statistics.min, statistics.max
    return isinstance(low, int) and isinstance(high, int) and max(-low, high) > EXACT


def _source_types(store: Store, name: str, sources: Sequence[str]) -> dict[str, SourceType]:
    """Return the types of the first row, with the shapes and codecs that a Petastorm schema adds."""
    with store.reader(name) as file, pq.ParquetFile(file) as parquet:
        row = next(parquet.iter_batches(batch_size=1, columns=list(sources)))
    checks = {source: ColumnCheck("feature") for source in sources}
    for source, check in checks.items():
        read_cells(source, row.column(source), check)
    raise_problems(list_problems(checks))
    types = {source: next(iter(check.types)) for source, check in checks.items()}
    schema = _read_unischema(store)
    if schema is None:
        return types
    return {source: _apply_schema(kind, schema, source) for source, kind in types.items()}


def _apply_schema(found: SourceType, schema: Unischema, source: str) -> SourceType:
    field = schema.fields.get(source)
    if field is None or None in field.shape:
        return found
    shape = tuple(int(size) for size in field.shape if size is not None)
    if codec_of(field) is None and (found.codec or np.prod(shape) != np.prod(found.shape)):
        return found
    return SourceType(found.dtype, shape, found.codec)


def _read_unischema(store: Store) -> Unischema | None:
    if not store.exists(COMMON_METADATA):
        return None
    keys = _read_footer(store, COMMON_METADATA).metadata or {}
    return load_unischema(keys[UNISCHEMA_KEY]) if UNISCHEMA_KEY in keys else None
