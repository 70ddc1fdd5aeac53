"""prepare without Spark: equal, shuffled, seeded partitions of every kind of column."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fast_tier import drawn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numbered_rows import READERS, labels, numbered, numbers

from cerebro_spark.data.input import local
from cerebro_spark.data.loading.arrays import load_arrays
from cerebro_spark.data.partitioning import staging
from cerebro_spark.data.prepare import prepare
from cerebro_spark.data.shuffling import record_order
from cerebro_spark.errors import DataError
from cerebro_spark.store.local import LocalStore

COUNTER = itertools.count()


@settings(max_examples=drawn(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.integers(8, 300),
    partitions=st.integers(1, 6),
    seed=st.integers(0, 2**40),
    fraction=st.sampled_from([0.0, 0.1, 0.25, 0.3]),
)
def test_every_row_once_in_partitions_that_differ_by_at_most_one(
    store: LocalStore, rows: int, partitions: int, seed: int, fraction: float
) -> None:
    if rows - int(rows * fraction + 0.5) < partitions:
        partitions = 1
    dataset = prepare(
        numbered(rows),
        store=store,
        features="x",
        label="y",
        validation=fraction,
        partitions=partitions,
        seed=seed,
        name=f"d{next(COUNTER)}",
    )
    train, held_out = labels(dataset), labels(dataset, "validation")
    assert numbers(dataset, "train", "validation") == list(range(rows))
    assert sum(map(len, held_out)) == int(rows * fraction + 0.5)
    assert len(train) == partitions
    for group in (train, held_out):
        assert not group or max(map(len, group)) - min(map(len, group)) <= 1
    assert [partition.rows for partition in dataset.train] == [len(part) for part in train]


def test_features_stay_with_their_labels(store: LocalStore) -> None:
    dataset = prepare(numbered(500), store=store, features=["x"], label="y", partitions=3, validation=0.2)
    for partition in dataset.partitions:
        arrays = load_arrays(dataset, partition, reader="arrow")
        assert (arrays["features"] == arrays["label"][:, None]).all()


def test_sorted_skewed_input_is_spread_as_chance_would(store: LocalStore) -> None:
    """Chi-square over (partition, class): a sorted input must not be told from a shuffled one, seed after seed."""
    from scipy import stats

    counts = {0: 15000, 1: 4000, 2: 900, 3: 100}
    classes = np.repeat(list(counts), list(counts.values()))
    values = []
    for seed in range(12):
        data = {"x": np.arange(len(classes), dtype="float32"), "y": classes}
        dataset = prepare(data, store=store, features=["x"], label="y", partitions=8, seed=seed, name=f"s{seed}")
        table = [[Counter(part)[label] for label in counts] for part in labels(dataset)]
        values.append(stats.chi2_contingency(table).pvalue)
    assert min(values) > 1e-4
    assert max(values) < 1 - 1e-4
    assert stats.kstest(values, "uniform").pvalue > 1e-3


def test_rows_that_are_all_alike_are_spread_too(store: LocalStore) -> None:
    """Few distinct rows: an order by content alone would keep equal rows together."""
    from scipy import stats

    data = {"x": np.zeros(4000, "float32"), "y": np.repeat([0, 1], 2000)}
    dataset = prepare(data, store=store, features=["x"], label="y", partitions=4)
    assert stats.chi2_contingency([[Counter(part)[0], Counter(part)[1]] for part in labels(dataset)]).pvalue > 1e-4
    assert any(np.diff(labels(dataset)[0]))


def test_the_stored_order_within_a_partition_is_shuffled(store: LocalStore) -> None:
    from scipy import stats

    dataset = prepare(numbered(2000), store=store, features="x", label="y", partitions=2)
    for part in labels(dataset):
        assert abs(stats.spearmanr(part, range(len(part))).statistic) < 0.15


def test_the_same_seed_gives_the_same_partitions_in_whatever_order_rows_come(store: LocalStore) -> None:
    data = numbered(700)
    mixed = np.random.default_rng(0).permutation(700)
    again = {name: values[mixed] for name, values in data.items()}
    made = [
        prepare(rows, store=store, features="x", label="y", validation=0.3, partitions=3, seed=seed, name=name)
        for rows, seed, name in [(data, 5, "a"), (data, 5, "b"), (again, 5, "c"), (data, 6, "d")]
    ]
    first, twice, reordered, other = [labels(dataset) + labels(dataset, "validation") for dataset in made]
    assert first == twice == reordered
    assert first != other
    files = [store.read(dataset.train[0].files[0]) for dataset in made]
    assert files[0] == files[1] == files[2]


def test_many_splits_and_chunks_are_dealt_alike(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_SPLIT_ROWS", 90)
    monkeypatch.setattr(local, "_BATCH_ROWS", 7)
    monkeypatch.setattr(staging, "StageSplit", partial(staging.StageSplit, chunk_bytes=500))
    dataset = prepare(numbered(1000), store=store, features="x", label="y", partitions=7, validation=0.1)
    assert numbers(dataset, "train", "validation") == list(range(1000))
    assert {partition.rows for partition in dataset.train} == {128, 129}


def test_without_a_number_partitions_are_no_more_than_the_rows(store: LocalStore) -> None:
    dataset = prepare(numbered(1), store=store, features="x", label="y")
    assert [partition.rows for partition in dataset.train] == [1]


def test_equal_records_get_an_order_of_their_own() -> None:
    same = np.zeros(1000, "V16")
    assert sorted(record_order(same, 1).tolist()) == list(range(1000))


@pytest.mark.parametrize("kind", ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers_and_booleans_keep_their_type(store: LocalStore, kind: str) -> None:
    values = np.array([0, 1, 1, 0], dtype=kind)
    dataset = prepare({"x": values, "y": values}, store=store, features="x", label="y", partitions=1)
    arrays = load_arrays(dataset, dataset.train[0])
    assert arrays["features"].dtype == arrays["label"].dtype == np.dtype(kind)
    assert sorted(arrays["label"].tolist()) == sorted(values.tolist())


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_floats_become_float32(store: LocalStore, kind: str) -> None:
    values = np.array([0.5, 1.5], dtype=kind)
    dataset = prepare({"x": values, "y": values}, store=store, features="x", label="y", partitions=1)
    assert load_arrays(dataset, dataset.train[0])["label"].dtype == np.float32


def test_columns_side_by_side_named_inputs_and_weights(store: LocalStore) -> None:
    number = np.arange(50)
    frame = pd.DataFrame(
        {
            "age": number,
            "flag": number % 2 == 0,
            "history": [[float(n), n + 0.5] for n in number],
            "grid": [np.full((2, 3), n, dtype="int16") for n in number],
            "nested": [[[n, n], [n, n]] for n in number],
            "y": number.astype("int32"),
            "y2": number / 2,
            "w": number / 50,
        }
    )
    dataset = prepare(
        frame,
        store=store,
        features={"dense": ["age", "flag", "history"], "grid": "grid", "nested": "nested"},
        label={"main": "y", "aux": "y2"},
        weight="w",
        partitions=2,
    )
    for partition in dataset.train:
        arrays = load_arrays(dataset, partition)
        n = arrays["main"]
        assert arrays["dense"].shape == (25, 4)
        assert (arrays["dense"] == np.stack([n, n % 2 == 0, n, n + 0.5], axis=1)).all()
        assert arrays["grid"].shape == (25, 2, 3)
        assert arrays["grid"].dtype == np.int16
        assert (arrays["grid"] == n[:, None, None]).all()
        assert arrays["nested"].shape == (25, 2, 2)
        assert (arrays["aux"] == n / 2).all()
        assert np.allclose(arrays["weight"], n / 50)
    assert [column.name for column in dataset.labels] == ["main", "aux"]
    assert dataset.weight is not None


def encoded(kind: str, number: int) -> bytes:
    from PIL import Image

    sink = io.BytesIO()
    pixels = np.full((6, 5, 3), number, dtype="uint8")
    if kind == "npy":
        np.save(sink, pixels)
    elif kind == "npz":
        np.savez_compressed(sink, arr=pixels)
    elif kind == "grey":
        Image.fromarray(pixels[:, :, 0]).save(sink, "png")
    else:
        Image.fromarray(pixels).save(sink, kind)
    return sink.getvalue()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["png", "jpeg", "grey", "npy", "npz"])
def test_encoded_cells_stay_encoded_and_are_decoded_when_loaded(store: LocalStore, kind: str, reader: Any) -> None:
    cells = [encoded(kind, number) for number in range(40)]
    data = {"image": cells, "y": np.arange(40)}
    dataset = prepare(data, store=store, features="image", label="y", partitions=2, validation=0.25)
    column = dataset.features[0]
    assert column.shape == ((6, 5) if kind == "grey" else (6, 5, 3))
    for partition in dataset.partitions:
        arrays = load_arrays(dataset, partition, reader=reader)
        means = arrays["features"].reshape(len(arrays["label"]), -1).mean(axis=1)
        assert arrays["features"].dtype == np.uint8
        assert np.abs(means - arrays["label"]).max() <= (2 if kind == "jpeg" else 0)


def saved_array(*values: float) -> bytes:
    sink = io.BytesIO()
    np.save(sink, np.array(values))
    return sink.getvalue()


def test_saved_arrays_of_floats_are_kept_as_float32(store: LocalStore) -> None:
    data = {"x": [saved_array(1.0, 2.0), saved_array(3.0, 4.0)], "y": [0, 1]}
    dataset = prepare(data, store=store, features="x", label="y", partitions=1)
    assert dataset.features[0].dtype == "float32"
    assert sorted(load_arrays(dataset, dataset.train[0])["features"].sum(axis=1).tolist()) == [3.0, 7.0]


def test_a_saved_array_without_a_number_is_no_label(store: LocalStore) -> None:
    data = {"x": [1.0, 2.0, 3.0], "y": [saved_array(1.0, np.nan), saved_array(3.0, 4.0), saved_array(np.nan, np.inf)]}
    dataset = prepare(data, store=store, features=["x"], label="y", partitions=1)
    with pytest.raises(DataError, match="'y' is a label and has 2 NaN or infinite rows"):
        load_arrays(dataset, dataset.train[0])


def test_a_weight_is_one_number_a_row(store: LocalStore) -> None:
    data = {"x": [1.0, 2.0], "y": [0, 1], "w": np.ones((2, 1))}
    with pytest.raises(DataError, match=r"'w' is a weight and holds arrays of shape \(1,\).*one number a row"):
        prepare(data, store=store, features=["x"], label="y", weight="w", partitions=1)


def test_of_a_column_that_is_several_things_the_strictest_counts(store: LocalStore) -> None:
    data = {"a": [1.0, -2.0], "y": [0.0, np.nan]}
    with pytest.raises(DataError, match="'a' is a weight and has 1 negative rows"):
        prepare({**data, "y": [0, 1]}, store=store, features=["a"], label="y", weight="a", partitions=1)
    with pytest.raises(DataError, match="'y' is a label and has 1 NaN"):
        prepare(data, store=store, features=["y"], label="y", partitions=1)


def test_validation_by_a_boolean_column(store: LocalStore) -> None:
    data = {**numbered(100), "held": np.arange(100) % 5 == 0}
    dataset = prepare(data, store=store, features="x", label="y", validation="held", partitions=3)
    assert numbers(dataset, "validation") == list(range(0, 100, 5))
    assert len(numbers(dataset, "train")) == 80
    assert "held" not in [column.name for column in dataset.columns]


def test_validation_by_a_second_frame(store: LocalStore) -> None:
    other = {name: values[:7] for name, values in numbered(7).items()}
    dataset = prepare(numbered(20), store=store, features="x", label="y", validation=other, partitions=2)
    assert numbers(dataset, "validation") == list(range(7))
    assert numbers(dataset, "train") == list(range(20))


@pytest.mark.parametrize(
    ("columns", "kinds"),
    [
        ({"features": ["x"], "label": "y"}, {"x": "float64"}),
        ({"features": "x", "label": "y"}, {"x": "float64"}),
        ({"features": ["x", "y"], "label": "z"}, {"y": "int32"}),
        ({"features": ["x", "y"], "label": "z"}, {"x": "float16", "y": "float64"}),
    ],
)
def test_a_validation_frame_of_other_types_that_are_stored_alike(
    store: LocalStore, columns: Any, kinds: dict[str, str]
) -> None:
    data = {**numbered(20), "z": numbered(20)["y"]}
    other = {name: values[:7].astype(kinds.get(name, values.dtype)) for name, values in data.items()}
    dataset = prepare(data, store=store, validation=other, partitions=2, **columns)
    assert [part.rows for part in dataset.validation] == [4, 3]
    for partition in dataset.partitions:
        arrays = load_arrays(dataset, partition)
        assert arrays["features"].dtype == np.float32
        assert (
            arrays["features"].reshape(partition.rows, -1)[:, 0] == arrays["label"].reshape(partition.rows, -1)[:, 0]
        ).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.arange(7, dtype="int32")}, r"'y' is int64 in df, but int32 in the validation frame: cast"),
        ({"y": np.arange(7) / 2}, r"'y' is int64 in df, but float32 in the validation frame: cast"),
        (
            {"x": np.zeros((7, 2))},
            r"'x' has rows of shape \(3,\) in df, but \(2,\) in the validation frame: pad or crop",
        ),
        ({"y": [1, None, 3, 4, 5, 6, 7]}, r"validation frame: column 'y' has 1 null rows"),
    ],
)
def test_a_validation_frame_that_does_not_fit_is_named(store: LocalStore, change: Any, message: str) -> None:
    other = {**numbered(7), **change}
    with pytest.raises(DataError, match=message):
        prepare(numbered(20), store=store, features="x", label="y", validation=other, partitions=2)
    assert store.list() == []


def test_fewer_validation_rows_than_partitions_make_fewer_partitions(store: LocalStore) -> None:
    dataset = prepare(numbered(20), store=store, features="x", label="y", validation=0.1, partitions=4)
    assert [partition.rows for partition in dataset.validation] == [1, 1]


def test_nothing_is_left_when_a_write_fails(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = LocalStore.write

    def full(self: LocalStore, name: str, data: bytes) -> None:
        if name.endswith("manifest.json"):
            raise OSError("disk on fire")
        real(self, name, data)

    monkeypatch.setattr(LocalStore, "write", full)
    with pytest.raises(OSError, match="disk on fire"):
        prepare(numbered(10), store=store, features="x", label="y", partitions=2)
    assert store.list() == []
