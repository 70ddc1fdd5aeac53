"""What prepare writes is a Petastorm data set, and either reader opens what the other's stack wrote."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from numbered_rows import READERS, needs_petastorm, numbered

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.formats import arrow, petastorm
from cerebro_spark.data.formats.unischema import (
    CompressedImageCodec,
    Unischema,
    UnischemaField,
    codec_of,
    dump_unischema,
    load_unischema,
)
from cerebro_spark.data.input.columns import Column
from cerebro_spark.data.loading.arrays import load_arrays
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import DataError, MissingDependency
from cerebro_spark.store.local import LocalStore
from cerebro_spark.types import Partition

# Readers without threads ("dummy"): Petastorm's pools may say that they are done before they are.
quiet_petastorm = pytest.mark.filterwarnings(
    "ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning"
)


@pytest.fixture
def dataset(store: LocalStore) -> Dataset:
    data = {**numbered(300), "grid": np.arange(300 * 6).reshape(300, 2, 3).astype("int16"), "w": np.ones(300)}
    return prepare(
        data, store=store, features={"x": ["x"], "grid": "grid"}, label="y", weight="w", validation=0.2, partitions=3
    )


def folder(dataset: Dataset, split: str = "train") -> str:
    chosen = dataset.train if split == "train" else dataset.validation
    path = dataset.store.local_path(chosen[0].files[0])
    assert path is not None
    return f"file://{path.parent}"


@needs_petastorm
@quiet_petastorm
def test_a_plain_batch_reader_opens_it(dataset: Dataset) -> None:
    from petastorm import make_batch_reader

    for split, rows in (("train", 240), ("validation", 60)):
        with make_batch_reader(folder(dataset, split), shuffle_row_groups=False, reader_pool_type="dummy") as reader:
            batches = list(reader)
        assert sum(len(batch.y) for batch in batches) == rows
        assert batches[0].x.shape[1:] == (3,)
        assert batches[0].grid.shape[1:] == (2, 3)
        assert batches[0].grid.dtype == np.int16
        assert all((batch.x[:, 0] == batch.y).all() for batch in batches)


@needs_petastorm
@quiet_petastorm
def test_the_row_reader_sees_the_schema(dataset: Dataset) -> None:
    from petastorm import make_reader

    with make_reader(folder(dataset), shuffle_row_groups=False, reader_pool_type="dummy") as reader:
        fields = reader.schema.fields
        row = next(reader)
    assert {name: (field.numpy_dtype, field.shape) for name, field in fields.items()} == {
        "x": (np.float32, (3,)),
        "grid": (np.int16, (2, 3)),
        "y": (np.int64, ()),
        "w": (np.float32, ()),
    }
    assert row.x[0] == row.y


@pytest.mark.slow
@needs_petastorm
@quiet_petastorm
@pytest.mark.parametrize("loader", ["torch", "tensorflow"])
def test_loaders_over_a_batch_reader_give_the_declared_shapes(dataset: Dataset, loader: str) -> None:
    """The row reader gives arrays of more than one dimension as flat as they are stored: the docs say so."""
    from petastorm import make_batch_reader, make_reader

    with make_reader(folder(dataset), shuffle_row_groups=False, reader_pool_type="dummy") as rows:
        assert next(rows).grid.shape == (6,)
    with make_batch_reader(folder(dataset), shuffle_row_groups=False, reader_pool_type="dummy") as reader:
        if loader == "torch":
            from petastorm.pytorch import DataLoader

            batch = next(iter(DataLoader(reader, batch_size=4)))
            shapes = {name: tuple(values.shape[1:]) for name, values in batch.items()}
        else:
            from petastorm.tf_utils import make_petastorm_dataset

            first = next(iter(make_petastorm_dataset(reader)))
            shapes = {name: tuple(values.shape[1:]) for name, values in first._asdict().items()}
    assert shapes == {"x": (3,), "grid": (2, 3), "y": (), "w": ()}


NAMES: list[tuple[Any, Any, list[str]]] = [
    (["a", "b"], "y", ["features", "y"]),
    ("a", "y", ["a", "y"]),
    (["a"], ["y"], ["a", "y"]),
    ({"x": ["a", "b"], "day": "c"}, {"left": "y"}, ["x", "c", "y"]),
    ("a", "a", ["features", "label"]),
    ("label", "y", ["features", "y"]),
    ({"y": ["a", "b"]}, "y", ["y", "label"]),
    ("my col", "_y", ["features", "label"]),
    ("A", {"a": "y"}, ["features", "y"]),
]


@pytest.mark.parametrize(("features", "label", "names"), NAMES, ids=str)
def test_columns_have_the_users_own_names(store: LocalStore, features: Any, label: Any, names: list[str]) -> None:
    """Where one column of theirs is one of the file; a matrix has the name of its array."""
    data = {
        name: np.arange(4) + number for number, name in enumerate(("a", "A", "b", "c", "y", "_y", "my col", "label"))
    }
    dataset = prepare(data, store=store, features=features, label=label, partitions=1)
    (file,) = dataset.train[0].files
    assert pq.read_schema(store.local_path(file)).names == names
    again = Dataset.open(store)
    loaded = load_arrays(again, again.train[0])
    for column, source in ((again.features[0], features), (again.labels[0], label)):
        if isinstance(source, str):
            assert sorted(loaded[column.name].tolist()) == data[source].tolist()


def test_data_whose_files_have_the_names_of_the_arrays_is_read(store: LocalStore) -> None:
    """As they were before columns had the names of the user."""
    columns = (
        Column("features", "feature", "float32", (2,), ("features",)),
        Column("label", "label", "int64", (), ("label",)),
    )
    block = {"features": np.ones((3, 2), "float32"), "label": np.arange(3)}
    written = arrow.write_partition(store, "p.parquet", columns, 3, 60, lambda rows: iter([block]))
    assert pq.read_schema(store.local_path("p.parquet")).names == ["features", "label"]
    partition = Partition("train-00000", rows=3, files=(written.name,))
    dataset = Dataset(store, "", "d", columns, (partition,))
    assert load_arrays(dataset, partition)["label"].tolist() == [0, 1, 2]


@needs_petastorm
@quiet_petastorm
def test_row_groups_are_known_without_opening_the_files(dataset: Dataset) -> None:
    from petastorm.etl.dataset_metadata import ROW_GROUPS_PER_FILE_KEY, load_row_groups

    path = folder(dataset).removeprefix("file://")
    keys = pq.read_metadata(Path(path) / "_common_metadata").metadata
    assert ROW_GROUPS_PER_FILE_KEY in keys
    pieces = load_row_groups(pq.ParquetDataset(path, validate_schema=False, use_legacy_dataset=True))
    files = [Path(name) for name in sorted(Path(path).glob("*.parquet"))]
    assert len(pieces) == sum(pq.read_metadata(name).num_row_groups for name in files)


@needs_petastorm
@quiet_petastorm
def test_our_schema_pickle_is_petastorms_own() -> None:
    from petastorm.codecs import CompressedImageCodec as TheirImages
    from petastorm.codecs import NdarrayCodec as TheirArrays
    from petastorm.unischema import Unischema as TheirSchema
    from petastorm.unischema import UnischemaField as TheirField

    ours = Unischema(
        "s",
        [
            UnischemaField("x", np.float32, (3,), None, False),
            UnischemaField("i", np.uint8, (4, 4, 3), CompressedImageCodec("png"), False),
        ],
    )
    theirs = pickle.loads(dump_unischema(ours))
    image = TheirImages.__new__(TheirImages)
    expected = TheirSchema("s", [TheirField("x", np.float32, (3,)), TheirField("i", np.uint8, (4, 4, 3), image)])
    assert isinstance(theirs, TheirSchema)
    assert dict(theirs.fields) == dict(expected.fields)
    assert theirs.x == expected.x
    assert isinstance(theirs.fields["i"].codec, TheirImages)
    assert theirs.fields["i"].codec.image_codec == "png"

    arrays = TheirSchema("s", [TheirField("a", np.float64, (None, 2), TheirArrays(), True)])
    for protocol in (2, 4, 5):
        read = load_unischema(pickle.dumps(arrays, protocol=protocol))
        assert read.fields["a"].shape == (None, 2)
        assert codec_of(read.fields["a"]) == "ndarray"


class Evil:
    def __reduce__(self) -> Any:
        return print, ("this must never run",)


def test_a_schema_pickle_cannot_run_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DataError, match=r"asks for builtins.print.*refused"):
        load_unischema(pickle.dumps(Evil()))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("data", [b"", b"garbage", pickle.dumps({"a": 1})])
def test_what_is_no_schema_pickle(data: bytes) -> None:
    with pytest.raises(DataError, match="Petastorm schema"):
        load_unischema(data)


@needs_petastorm
def test_both_readers_give_the_same_arrays(dataset: Dataset) -> None:
    for partition in dataset.partitions:
        one = load_arrays(dataset, partition, reader="petastorm")
        two = load_arrays(dataset, partition, reader="arrow")
        assert list(one) == list(two)
        for name in one:
            assert one[name].dtype == two[name].dtype
            assert (one[name] == two[name]).all()


@needs_petastorm
def test_rows_keep_their_order_over_many_row_groups(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_ROW_GROUP_BYTES", (1, 1 << 20))
    dataset = prepare(numbered(3000), store=store, features="x", label="y", partitions=1)
    (name,) = dataset.train[0].files
    assert pq.read_metadata(store.local_path(name)).num_row_groups > 50
    stored = pq.read_table(store.local_path(name)).column("y").to_pylist()
    assert load_arrays(dataset, dataset.train[0], reader="petastorm")["label"].tolist() == stored


@pytest.mark.slow
@needs_petastorm
def test_a_box_without_petastorm_writes_the_same_bytes_and_reads_them(tmp_path: Path) -> None:
    """A process in which Petastorm cannot be imported prepares and loads; this one, which has it, opens the result."""
    code = """
        import sys
        sys.modules["petastorm"] = None
        from numbered_rows import READERS, needs_petastorm, numbered
        from cerebro_spark.data.formats import petastorm
        from cerebro_spark.data.loading.arrays import load_arrays
        from cerebro_spark.data.prepare import prepare
        from cerebro_spark.store.local import LocalStore
        assert not petastorm.is_installed()
        dataset = prepare(numbered(100), store=LocalStore(sys.argv[1]), features="x", label="y", partitions=2, name="d")
        print(load_arrays(dataset, dataset.train[0])["label"].tolist())
    """
    here = str(Path(__file__).parent)
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {here!r})\n{textwrap.dedent(code)}",
            str(tmp_path / "a"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    without = Dataset.open(LocalStore(tmp_path / "a"), "d")
    assert str(load_arrays(without, without.train[0], reader="petastorm")["label"].tolist()) == run.stdout.strip()
    here_made = prepare(
        numbered(100), store=LocalStore(tmp_path / "b"), features="x", label="y", partitions=2, name="d"
    )
    tokens = [dataset.made["token"] for dataset in (here_made, without)]
    assert len(here_made.store.list()) == 4
    for name in here_made.store.list():
        there = without.store.read(name.replace(*tokens))
        assert here_made.store.read(name).replace(*(token.encode() for token in tokens)) == there


def test_petastorm_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, dataset: Dataset) -> None:
    monkeypatch.setitem(sys.modules, "petastorm", None)
    with pytest.raises(MissingDependency, match=r"cerebro-spark\[petastorm\]"):
        load_arrays(dataset, dataset.train[0], reader="petastorm")


@needs_petastorm
@pytest.mark.parametrize("odd", ["a b", "a#b", "a?b", "a%20b", "ä"])
def test_paths_that_a_url_would_read_otherwise(tmp_path: Path, odd: str) -> None:
    store = LocalStore(tmp_path / odd)
    dataset = prepare(numbered(10), store=store, features="x", label="y", partitions=1)
    assert sorted(load_arrays(dataset, dataset.train[0], reader="petastorm")["label"].tolist()) == list(range(10))


@pytest.mark.parametrize("reader", READERS)
def test_files_that_were_changed_are_noticed(dataset: Dataset, reader: Any) -> None:
    first, second = dataset.train[0], dataset.validation[0]
    path = dataset.store.local_path(first.files[0])
    assert path is not None
    path.write_bytes(dataset.store.read(second.files[0]))
    with pytest.raises(DataError, match=r"train-00000 .* should hold 80 rows but holds 20"):
        load_arrays(dataset, first, reader=reader)
    path.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match="cannot be read"):
        load_arrays(dataset, first, reader=reader)


def test_which_columns_the_batch_reader_can_give() -> None:
    columns = [Column("a", "feature", "float32", (3,)), Column("b", "label", "int64"), Column("c", "label", "uint32")]
    schema = arrow.parquet_schema(columns)
    assert petastorm.can_read(schema, ["a", "b"])
    assert not petastorm.can_read(schema, ["c"])
