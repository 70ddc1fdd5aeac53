"""open_dataset: what prepare wrote, Petastorm data sets and plain Parquet made elsewhere."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numbered_rows import READERS, needs_petastorm, numbered

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.foreign import open_dataset
from cerebro_spark.data.loading.arrays import load_arrays
from cerebro_spark.data.manifest import read_manifest
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import ConfigurationError, DataError, NotFoundInStore
from cerebro_spark.store.local import LocalStore


def plain(folder: Path, files: int = 3, rows: int = 10) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        n = np.arange(number * rows, (number + 1) * rows)
        table = pa.table(
            {"a": n, "v": [[float(i), 1.0] for i in n], "n": [[[i], [i]] for i in n], "y": n, "s": n.astype(str)}
        )
        pq.write_table(table, folder / f"part-{number:05d}.snappy.parquet")
    (folder / "_SUCCESS").touch()
    return folder


def test_what_prepare_wrote_opens_by_its_address_or_by_its_store(store: LocalStore) -> None:
    made = prepare(numbered(20), store=store, features="x", label="y", validation=0.2, partitions=2, seed=9, name="d")
    assert open_dataset(store) == made
    again = open_dataset(made.url)
    assert again.columns == made.columns
    assert again.seed == 9
    assert [partition.id for partition in again.partitions] == [partition.id for partition in made.partitions]
    for one, two in zip(made.partitions, again.partitions, strict=True):
        assert (load_arrays(made, one)["label"] == load_arrays(again, two)["label"]).all()
    assert open_dataset(made.url, features="x", label="y").id == "d"


def test_other_columns_than_those_prepared_are_refused(store: LocalStore) -> None:
    made = prepare(numbered(20), store=store, features="x", label="y", partitions=2)
    with pytest.raises(ConfigurationError, match=r"was prepared with the columns .*prepare it again"):
        open_dataset(made.url, features=["z"], label="y")


def test_a_store_with_several_or_none(store: LocalStore) -> None:
    with pytest.raises(NotFoundInStore, match="no prepared data set"):
        Dataset.open(store)
    for name in ("a", "b"):
        prepare(numbered(4), store=store, features="x", label="y", partitions=1, name=name)
    with pytest.raises(ConfigurationError, match=r"holds 2 data sets: name one of \['a', 'b'\]"):
        open_dataset(store)
    assert Dataset.open(store, "b").id == "b"


@pytest.mark.parametrize("reader", ["auto", *READERS])
def test_a_folder_of_parquet(tmp_path: Path, reader: Any) -> None:
    dataset = open_dataset(plain(tmp_path / "p"), features=["a", "v"], label="y")
    assert [partition.rows for partition in dataset.train] == [10, 10, 10]
    assert dataset.features[0].shape == (3,)
    arrays = load_arrays(dataset, dataset.train[1], reader=reader)
    n = np.arange(10, 20)
    assert (arrays["features"] == np.stack([n, n, np.ones(10)], axis=1)).all()
    assert arrays["label"].tolist() == n.tolist()


def test_nested_lists_elsewhere_are_read_although_petastorm_drops_them(tmp_path: Path) -> None:
    dataset = open_dataset(plain(tmp_path / "p"), features={"grid": "n"}, label="y")
    assert dataset.features[0].shape == (2, 1)
    arrays = load_arrays(dataset, dataset.train[0])
    assert (arrays["grid"] == arrays["label"][:, None, None]).all()


def test_a_folder_for_validation_and_empty_files(tmp_path: Path) -> None:
    plain(tmp_path / "p" / "train", 2)
    plain(tmp_path / "p" / "test", 1, 4)
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "p" / "train" / "part-9.parquet")
    dataset = open_dataset(str(tmp_path / "p"), features=["a"], label="y", validation="test")
    assert [partition.rows for partition in dataset.train] == [10, 10]
    assert [partition.rows for partition in dataset.validation] == [4]
    with pytest.raises(NotFoundInStore, match="'nobody/'"):
        open_dataset(str(tmp_path / "p"), features=["a"], label="y", validation="nobody")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"features": None}, ConfigurationError, "say which columns to take"),
        ({"features": ["q"]}, ConfigurationError, "no column 'q'"),
        ({"features": ["s"]}, DataError, "'s' is of type string"),
        ({"label": "s"}, DataError, "'s' is of type string"),
    ],
)
def test_what_cannot_be_opened(tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_dataset(plain(tmp_path / "p"), **{"features": ["a"], "label": "y", **changes})


def test_folders_without_data(tmp_path: Path) -> None:
    with pytest.raises(NotFoundInStore, match="no Parquet files"):
        open_dataset(tmp_path, features=["a"], label="y")
    (tmp_path / "x.parquet").write_bytes(b"hello")
    with pytest.raises(DataError, match=r"x.parquet.* is no Parquet file"):
        open_dataset(tmp_path, features=["a"], label="y")


def test_nulls_are_seen_in_the_footers(tmp_path: Path) -> None:
    pd.DataFrame({"a": [1.0, None], "y": [0, 1]}).to_parquet(tmp_path / "p.parquet")
    with pytest.raises(DataError, match="'a' has 1 null rows"):
        open_dataset(tmp_path, features=["a"], label="y")


@pytest.mark.parametrize("reader", READERS)
def test_nulls_without_statistics_are_seen_when_loaded(tmp_path: Path, reader: Any) -> None:
    table = pa.table({"a": [1, None, 3], "y": [0, 1, 0]})
    pq.write_table(table, tmp_path / "p.parquet", write_statistics=False)
    dataset = open_dataset(tmp_path, features="a", label="y")
    with pytest.raises(DataError, match=r"'a' has .*null rows"):
        load_arrays(dataset, dataset.train[0], reader=reader)


@pytest.mark.parametrize("reader", READERS)
def test_nan_labels_and_ragged_rows_are_seen_when_loaded(tmp_path: Path, reader: Any) -> None:
    pq.write_table(pa.table({"a": [[1.0], [1.0, 2.0]], "y": [0.0, float("nan")]}), tmp_path / "p.parquet")
    dataset = open_dataset(tmp_path, features="a", label="y")
    with pytest.raises(DataError, match=r"ragged|same length"):
        load_arrays(dataset, dataset.train[0], reader=reader)
    dataset = open_dataset(tmp_path, features="y", label="y")
    with pytest.raises(DataError, match="'y' is a label and has 1 NaN"):
        load_arrays(dataset, dataset.train[0], reader=reader)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("a", None, r"'b.parquet' in .* has no column 'a', which 'a.parquet' has: write"),
        ("a", pa.array([1, 2], pa.int32()), r"'a' is int32 in 'b.parquet' .* but int64 in 'a.parquet': cast"),
        ("a", pa.array([1.0, 2.0]), r"'a' is double in 'b.parquet'"),
        ("a", pa.array([[1], [2]]), r"'a' is list<element: int64> in 'b.parquet'"),
        ("a", pa.array(["1", "2"]), r"'a' is string in 'b.parquet'"),
        ("v", pa.array([1.0, 2.0]), r"'v' is double in 'b.parquet'"),
    ],
)
def test_files_of_different_columns_are_named_when_opened(
    tmp_path: Path, column: str, values: pa.Array | None, message: str
) -> None:
    table = pa.table({"a": [1, 2], "v": [[1.0], [2.0]], "y": [0, 1]})
    pq.write_table(table, tmp_path / "a.parquet")
    other = table.drop_columns([column])
    pq.write_table(other if values is None else other.append_column(column, values), tmp_path / "b.parquet")
    with pytest.raises(DataError, match=message):
        open_dataset(tmp_path, features={"a": "a", "v": "v"}, label="y")


@pytest.mark.parametrize("reader", READERS)
def test_floats_of_different_width_are_stored_alike(tmp_path: Path, reader: Any) -> None:
    for name, kind in (("a", pa.float32()), ("b", pa.float64())):
        columns = {"v": pa.array([[1.5], [2.5]], pa.list_(kind)), "y": pa.array([0.5, 1.5], kind), "other": [1, 2]}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    dataset = open_dataset(tmp_path, features="v", label="y")
    for partition in dataset.train:
        arrays = load_arrays(dataset, partition, reader=reader)
        assert (arrays["features"].tolist(), arrays["label"].tolist()) == ([[1.5], [2.5]], [0.5, 1.5])


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        (pa.array([1, 2], pa.int8()), pa.array([1, 300]), r"'a' .* 1 rows .* int8 .*300"),
        (pa.array([1, 2], pa.uint8()), pa.array([1, -1]), r"'a' .* 1 rows .* uint8 .*-1"),
        (pa.array([1, 2], pa.int64()), pa.array([1, 2**63], pa.uint64()), r"'a' .* 1 rows .* int64"),
        (pa.array([True, False]), pa.array([1, 5]), r"'a' .* int64 .* bool"),
        (pa.array([1.0, 2.0]), pa.array([1.0, 1e300]), r"'a' has 1 rows with numbers beyond"),
    ],
    ids=["int8", "uint8", "int64", "bool", "float32"],
)
def test_a_file_changed_after_opening_never_wraps_numbers(
    tmp_path: Path, was: pa.Array, now: pa.Array, message: str, reader: Any
) -> None:
    if now.type == pa.uint64():
        reader = "arrow"  # the only one that reads this type
    pq.write_table(pa.table({"a": was, "y": [0, 1]}), tmp_path / "p.parquet")
    dataset = open_dataset(tmp_path, features="a", label="y")
    pq.write_table(pa.table({"a": now, "y": [0, 1]}), tmp_path / "p.parquet")
    with pytest.raises(DataError, match=message):
        load_arrays(dataset, dataset.train[0], reader=reader)


@pytest.mark.parametrize("reader", READERS)
def test_a_wider_integer_type_that_fits_is_read(tmp_path: Path, reader: Any) -> None:
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int8()), "y": [0, 1]}), tmp_path / "p.parquet")
    dataset = open_dataset(tmp_path, features="a", label="y")
    pq.write_table(pa.table({"a": pa.array([-128, 127]), "y": [0, 1]}), tmp_path / "p.parquet")
    assert load_arrays(dataset, dataset.train[0], reader=reader)["features"].tolist() == [-128, 127]


@needs_petastorm
@pytest.mark.parametrize("reader", ["arrow", "petastorm"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_petastorm_data_set_with_codecs(tmp_path: Path, reader: Any) -> None:
    """As `materialize_dataset` lays it out: encoded cells, a pickled schema and row-group counts beside them."""
    from petastorm.codecs import NdarrayCodec
    from petastorm.etl.dataset_metadata import ROW_GROUPS_PER_FILE_KEY, UNISCHEMA_KEY
    from petastorm.unischema import Unischema, UnischemaField

    schema = Unischema(
        "S",
        [
            UnischemaField("m", np.float64, (2, 2), NdarrayCodec(), False),
            UnischemaField("y", np.int32, (), None, False),
        ],
    )
    field = schema.fields["m"]
    cells = [bytes(field.codec.encode(field, np.full((2, 2), float(n)))) for n in range(6)]
    table = pa.table({"m": cells, "y": pa.array(range(6), pa.int32())})
    pq.write_table(table, tmp_path / "part-0.parquet")
    keys = {UNISCHEMA_KEY: pickle.dumps(schema), ROW_GROUPS_PER_FILE_KEY: json.dumps({"part-0.parquet": 1}).encode()}
    pq.write_metadata(table.schema.with_metadata(keys), tmp_path / "_common_metadata")

    dataset = open_dataset(tmp_path, features="m", label="y")
    arrays = load_arrays(dataset, dataset.train[0], reader=reader)
    assert arrays["features"].shape == (6, 2, 2)
    assert (arrays["features"] == arrays["label"][:, None, None]).all()


def test_a_shape_that_only_the_schema_knows(store: LocalStore, tmp_path: Path) -> None:
    """Flat lists in the files, two dimensions in the Petastorm schema beside them."""
    data = {"g": np.arange(60).reshape(10, 2, 3), "y": np.arange(10)}
    made = prepare(data, store=store, features="g", label="y", partitions=1)
    file = store.local_path(made.train[0].files[0])
    assert file is not None
    dataset = open_dataset(file.parent, features={"g": "g"}, label={"y": "y"})
    assert dataset.features[0].shape == (2, 3)
    assert (load_arrays(dataset, dataset.train[0])["g"] == load_arrays(made, made.train[0])["features"]).all()


def test_a_damaged_image_is_named_when_loaded(tmp_path: Path) -> None:
    from PIL import Image

    sink = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), "uint8")).save(sink, "png")
    good = sink.getvalue()
    pq.write_table(pa.table({"i": [good, good[:40]], "y": [0, 1]}), tmp_path / "p.parquet")
    dataset = open_dataset(tmp_path, features="i", label="y")
    with pytest.raises(DataError, match="column 'i', row 1 of train-00000: cannot be decoded"):
        load_arrays(dataset, dataset.train[0])


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": "other"}', '{"format": "cerebro-spark dataset", "version": 99}']
)
def test_manifests_that_are_none(store: LocalStore, text: str) -> None:
    store.write("datasets/d/manifest.json", text.encode())
    with pytest.raises(DataError, match=r"manifest\.json"):
        read_manifest(store, "datasets/d")


def test_unknown_partitions_are_named(store: LocalStore) -> None:
    made = prepare(numbered(4), store=store, features="x", label="y", partitions=1)
    with pytest.raises(ConfigurationError, match="'train-00009' is no partition"):
        made.partition("train-00009")
    assert made.with_hosts({"train-00000": ["h1"]}).train[0].hosts == ("h1",)
    assert pickle.loads(pickle.dumps(made)).train == made.train
