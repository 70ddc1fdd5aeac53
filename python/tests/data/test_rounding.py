"""Numbers that storing would change, and features that are not finite: said by column and count."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from numbered_rows import READERS

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.foreign import open_dataset
from cerebro_spark.data.loading.arrays import first_rows, load_arrays
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import DataError
from cerebro_spark.rounding import count_rounded
from cerebro_spark.store.local import LocalStore

LARGE = (1 << 24) + 1
NAN, INF = float("nan"), float("inf")
SAID = (
    r"'id' has 2 rows with whole numbers beyond 16777216 .*features=\{'x': \[\.\.\.\], 'id': 'id'\}.*cast it to double"
)
IDS = [1, LARGE, -LARGE, 1 << 30]


@given(
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1), st.sampled_from(["int64", "int32", "uint64", "int8"])
)
@settings(max_examples=drawn(200), deadline=None)
def test_rounding_is_seen_exactly_where_it_happens(numbers: list[int], dtype: str) -> None:
    values = np.array([number % (1 << 63) for number in numbers], "uint64") if dtype == "uint64" else np.array(numbers)
    values = values.astype(dtype)
    lost = [int(number) for number in values if int(np.float32(number)) != int(number)]
    assert count_rounded(values) == len(lost)


@pytest.mark.parametrize(
    "number", [0, -(1 << 63), (1 << 63) - 1, -(1 << 24), 1 << 24, LARGE, -LARGE, (1 << 62) + (1 << 38)]
)
def test_rounding_at_the_edges(number: int) -> None:
    assert count_rounded(np.array([number])) == (int(np.float32(number)) != number)
    assert count_rounded(np.array([[1, number], [number, number], [2, 3]])) == 2 * (int(np.float32(number)) != number)


FRAMES: dict[str, Callable[[], Any]] = {
    "arrays": lambda: {"id": np.array(IDS), "a": np.ones(4), "y": [0, 1, 0, 1]},
    "lists": lambda: {"id": IDS, "a": [1.0] * 4, "y": [0, 1, 0, 1]},
    "pandas": lambda: pd.DataFrame({"id": IDS, "a": 1.0, "y": [0, 1, 0, 1]}),
    "nullable pandas": lambda: pd.DataFrame({"id": pd.array(IDS, "Int64"), "a": 1.0, "y": [0, 1, 0, 1]}),
    "vectors": lambda: {"id": np.array(IDS)[:, None], "a": np.ones(4), "y": [0, 1, 0, 1]},
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("features", [["id"], ["id", "a"], {"m": ["a", "id"]}], ids=str)
def test_whole_numbers_that_a_matrix_rounds_are_refused(store: LocalStore, frame: str, features: Any) -> None:
    with pytest.raises(DataError, match=SAID):
        prepare(FRAMES[frame](), store=store, features=features, label="y", partitions=1)
    assert store.list() == []


def test_they_are_counted_over_all_splits_and_in_a_validation_frame(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cerebro_spark.data.input.local._SPLIT_ROWS", 2)
    data = FRAMES["arrays"]()
    with pytest.raises(DataError, match=SAID):
        prepare(data, store=store, features=["id"], label="y", partitions=1)
    with pytest.raises(DataError, match=f"validation frame: column {SAID}"):
        prepare({**data, "id": [1] * 4}, store=store, features=["id"], label="y", validation=data, partitions=1)


@pytest.mark.parametrize("label", [False, True])
def test_the_ways_out_keep_every_digit_or_round_on_purpose(store: LocalStore, label: bool) -> None:
    data = FRAMES["arrays"]()
    options: dict[str, Any] = {"store": store, "partitions": 1}
    if label:
        kept = prepare(data, features=["a"], label="id", **options)
    else:
        kept = prepare(data, features={"x": ["a"], "id": "id"}, label="y", **options)
    name = "label" if label else "id"
    assert sorted(load_arrays(kept, kept.train[0])[name].tolist()) == sorted(IDS)
    rounded = prepare({**data, "id": data["id"].astype("float64")}, features=["a", "id"], label="y", **options)
    assert load_arrays(rounded, rounded.train[0])["features"].shape == (4, 2)
    with pytest.raises(DataError, match="'id' has 2 rows with whole"):
        prepare(data, features=["a"], label=["id"], **options)


def test_numbers_that_float32_has_are_let_through(store: LocalStore) -> None:
    data = {"id": [1 << 24, 1 << 30, -(1 << 40), 3 << 50], "y": [0, 1, 0, 1]}
    dataset = prepare(data, store=store, features=["id"], label="y", partitions=1)
    assert sorted(load_arrays(dataset, dataset.train[0])["features"][:, 0].tolist()) == sorted(map(float, data["id"]))


def test_arrays_of_more_dimensions_keep_their_type(store: LocalStore) -> None:
    data = {"x": np.full((2, 2, 2), LARGE), "y": [0, 1]}
    dataset = prepare(data, store=store, features=["x"], label="y", partitions=1)
    assert (load_arrays(dataset, dataset.train[0])["features"] == LARGE).all()


def parquet(folder: Path, statistics: bool = True, **columns: Any) -> str:
    table = pa.table({"y": [0, 1, 0, 1], **columns})
    folder.mkdir(exist_ok=True)
    pq.write_table(table, folder / "a.parquet", row_group_size=2, write_statistics=statistics)
    return str(folder)


def test_files_from_elsewhere_say_it_when_they_are_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=SAID):
        open_dataset(parquet(tmp_path / "p", id=IDS), features=["id"], label="y")
    kept = open_dataset(parquet(tmp_path / "p", id=IDS), features={"id": "id"}, label="y")
    assert load_arrays(kept, kept.train[0])["id"].tolist() == IDS
    exact = open_dataset(parquet(tmp_path / "q", id=[1 << 30] * 4), features=["id"], label="y")
    assert load_arrays(exact, exact.train[0])["features"].tolist() == [[float(1 << 30)]] * 4


@pytest.mark.parametrize("reader", READERS)
def test_files_without_statistics_say_it_when_they_are_read(tmp_path: Path, reader: Any) -> None:
    """Counted over all of the partition, also if the first rows were enough to see it."""
    dataset = open_dataset(parquet(tmp_path / "p", statistics=False, id=IDS), features=["id"], label="y")
    with pytest.raises(DataError, match=SAID):
        load_arrays(dataset, dataset.train[0], reader=reader)
    with pytest.raises(DataError, match=SAID):
        first_rows(dataset, dataset.train[0], 2)


@pytest.mark.parametrize("reader", READERS)
def test_features_from_elsewhere_that_are_not_finite_are_said_when_they_are_read(tmp_path: Path, reader: Any) -> None:
    folder = parquet(tmp_path / "p", x=[1.0, NAN, INF, -INF], v=[[1.0, NAN]] * 4)
    dataset = open_dataset(folder, features=["x", "v"], label="y")
    said = r"'x' is a feature and has 3 NaN or infinite rows in train-00000: .*allow_nan=True.*'v' .* has 4 NaN"
    acts: list[Callable[[], object]] = [
        lambda: load_arrays(dataset, dataset.train[0], reader=reader),
        lambda: first_rows(dataset, dataset.train[0], 2),
    ]
    for act in acts:
        with pytest.raises(DataError, match=said):
            act()
    let = open_dataset(folder, features=["x", "v"], label="y", allow_nan=True)
    assert np.isnan(load_arrays(let, let.train[0], reader=reader)["features"]).any()


def test_saved_arrays_that_are_not_finite_are_said_when_they_are_read(store: LocalStore) -> None:
    sink = io.BytesIO()
    np.save(sink, np.array([1.0, NAN]))
    dataset = prepare({"x": [sink.getvalue()] * 2, "y": [0, 1]}, store=store, features="x", label="y", partitions=1)
    with pytest.raises(DataError, match=r"is a feature and has 2 NaN .*allow_nan=True"):
        load_arrays(dataset, dataset.train[0])
    let = open_dataset(store, allow_nan=True)
    assert np.isnan(load_arrays(let, let.train[0])["features"]).sum() == 2


def test_what_one_reader_lets_through_is_refused_to_another_who_finds_it_in_the_cache(tmp_path: Path) -> None:
    folder = parquet(tmp_path / "p", x=[1.0, NAN, 2.0, 3.0])
    let, strict = (open_dataset(folder, features=["x"], label="y", allow_nan=allow) for allow in (True, False))
    with Cache(tmp_path / "disk", memory_folder=tmp_path / "memory") as cache:
        assert np.isnan(cache.load(let, let.train[0])["features"]).any()
        with pytest.raises(DataError, match="'x' is a feature and has 1 NaN"):
            cache.load(strict, strict.train[0])


def test_data_of_before_is_read_as_it_was(store: LocalStore, tmp_path: Path) -> None:
    """Nothing was asked of features then, and a run of then must be replayed on what it saw."""
    data = {"x": [1.0, NAN], "y": [0, 1]}
    dataset = prepare(data, store=store, features=["x"], label="y", partitions=1, allow_nan=True)
    folder = parquet(tmp_path / "p", statistics=False, id=IDS, x=[NAN] * 4)
    elsewhere = open_dataset(folder, features=["id", "x"], label="y")
    for new in (dataset, elsewhere):
        made = {key: value for key, value in new.made.items() if key != "allow_nan"}
        old = Dataset(new.store, new.folder, new.id, new.columns, new.train, made=made)
        assert np.isnan(load_arrays(old, old.train[0])["features"]).any()
