"""What cannot be trained on: the error names column, count and remedy, and nothing becomes visible."""

from __future__ import annotations

import datetime
import decimal
import struct
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cerebro_spark.data.loading.arrays import load_arrays
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.store.local import LocalStore

NAN, INF = float("nan"), float("inf")
DAY = datetime.datetime(2026, 11, 15)
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"

# (name, the column as a Python list, its Spark type, where it stands, what the message must say)
BAD: list[tuple[str, list[Any], str, str, str]] = [
    ("string", ["a", "b", "c", "d"], "string", "x", "'x' is of type (large_)?string.*StringIndexer"),
    ("string label", ["a", "b", "c", "d"], "string", "y", "'y' is of type (large_)?string.*StringIndexer"),
    ("timestamp", [DAY] * 4, "timestamp", "x", "'x' is of type timestamp.*unix_timestamp"),
    ("date", [DAY.date()] * 4, "date", "x", "'x' is of type date.*days since"),
    ("decimal", [decimal.Decimal("1.5")] * 4, "decimal(4,1)", "x", "'x' is of type decimal.*cast it to double"),
    ("map", [{"a": 1}] * 4, "map<string,int>", "x", "'x' is of type (map|struct).*select the"),
    ("strings in arrays", [["a"]] * 4, "array<string>", "x", "'x' is of type list.*StringIndexer"),
    ("null number", [1.0, None, None, 2.0], "double", "x", "'x' has 2 null rows: fill them"),
    ("null label", [1, None, 3, 4], "int", "y", "'y' has 1 null rows"),
    ("null boolean", [True, None, None, None], "boolean", "x", "'x' has 3 null rows"),
    ("null array", [[1.0], None, [2.0], [3.0]], "array<double>", "x", "'x' has 1 null rows"),
    ("null in an array", [[1.0], [None], [2.0], [None]], "array<double>", "x", "'x' has 2 null rows"),
    ("ragged", [[1.0], [1.0, 2.0], [1.0], [1.0]], "array<double>", "x", r"'x' is ragged: .*\(1,\), 1 rows differ.*pad"),
    ("empty array", [[1.0], [], [1.0], [1.0]], "array<double>", "x", "'x' is ragged: .*1 rows differ"),
    ("ragged inside", [[[1], [2, 3]]] * 4, "array<array<int>>", "x", "'x' has 4 rows that are ragged within"),
    ("ragged nested", [[[1]], [[1]], [[1, 2]], [[1]]], "array<array<int>>", "x", "'x' is ragged: .*1 rows differ"),
    ("NaN label", [1.0, NAN, NAN, 2.0], "double", "y", "'y' is a label and has 2 NaN rows"),
    ("infinite label", [1.0, INF, 0.0, -INF], "double", "y", "'y' is a label and has 2 infinite rows"),
    ("label beyond float32", [1.0, 1e300, 0.0, 1.0], "double", "y", "'y' has 1 rows with numbers beyond .*scale"),
    ("beyond float32", [1.0, 1e300, -1e39, 1.0], "double", "x", "'x' has 2 rows with numbers beyond .*scale"),
    ("array beyond float32", [[1e300, NAN, 1e300]] * 4, "array<double>", "x", "'x' has 4 rows with numbers beyond"),
    ("NaN feature", [1.0, NAN, NAN, 2.0], "double", "x", "'x' is a feature and has 2 NaN rows: .*allow_nan=True"),
    (
        "infinite feature",
        [1.0, INF, 0.0, -INF],
        "double",
        "x",
        "'x' is a feature and has 2 infinite rows: clip .*allow",
    ),
    ("NaN in an array", [[1.0, NAN]] * 3 + [[1.0, 2.0]], "array<double>", "x", "'x' is a feature and has 3 NaN rows"),
    ("NaN in an array label", [[1.0, NAN]] * 4, "array<double>", "y", "'y' is a label and has 4 NaN rows"),
    ("NaN weight", [1.0, NAN, 1.0, 1.0], "double", "w", "'w' is a weight and has 1 NaN rows"),
    ("negative weight", [1.0, -1.0, -2.0, 1.0], "double", "w", "'w' is a weight and has 2 negative rows"),
    ("bytes of no image", [b"hello"] * 4, "binary", "x", "'x' has 4 rows that are not a PNG or JPEG"),
    (
        "image with alpha",
        [PNG + struct.pack(">IIBB", 2, 2, 8, 6)] * 4,
        "binary",
        "x",
        "'x' has 4 rows that are a PNG with an alpha channel",
    ),
    (
        "images of two sizes",
        [PNG + struct.pack(">IIBB", width, 2, 8, 2) for width in (3, 3, 3, 4)],
        "binary",
        "x",
        r"'x' is ragged: most rows are uint8 of shape \(2, 3, 3\), 1 rows differ",
    ),
]
IDS = [case[0] for case in BAD]


def columns(values: list[Any], place: str) -> dict[str, list[Any]]:
    return {"x": [1.0, 2.0, 3.0, 4.0], "y": [0, 1, 0, 1], "w": [1.0] * 4, place: values}


def expect(df: Any, store: LocalStore, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare(df, store=store, features="x", label="y", weight="w", partitions=1)
    assert store.list() == []


@pytest.mark.parametrize(("name", "values", "kind", "place", "message"), BAD, ids=IDS)
def test_in_arrays(store: LocalStore, name: str, values: list[Any], kind: str, place: str, message: str) -> None:
    expect(columns(values, place), store, message)


@pytest.mark.parametrize(("name", "values", "kind", "place", "message"), BAD, ids=IDS)
def test_in_pandas(store: LocalStore, name: str, values: list[Any], kind: str, place: str, message: str) -> None:
    if name in ("null number", "null label"):
        # pandas has no null among floats: a nullable type has.
        data: dict[str, Any] = columns(values, place)
        data[place] = pd.array(values, dtype="Float64" if kind == "double" else "Int64")
        expect(pd.DataFrame(data), store, message)
        return
    expect(pd.DataFrame({key: pd.Series(cells) for key, cells in columns(values, place).items()}), store, message)


@pytest.mark.jvm
@pytest.mark.parametrize(("name", "values", "kind", "place", "message"), BAD, ids=IDS)
def test_in_spark(
    spark: Any,
    store: LocalStore,
    name: str,
    values: list[Any],
    kind: str,
    place: str,
    message: str,
) -> None:
    kinds = {"x": "double", "y": "int", "w": "double", place: kind}
    rows = list(zip(*columns(values, place).values(), strict=True))
    df = spark.createDataFrame(rows, ", ".join(f"{key} {kinds[key]}" for key in columns(values, place)))
    expect(df.repartition(2), store, message)


def test_all_that_is_wrong_is_said_at_once(store: LocalStore) -> None:
    data = {"a": [1.0, None], "b": [[1], [1, 2]], "y": [NAN, 1.0]}
    with pytest.raises(DataError, match=r"'a' has 1 null.*'b' is ragged.*'y' is a label and has 1 NaN"):
        prepare(data, store=store, features=["a", "b"], label="y", partitions=1)


def test_categories_are_refused_with_their_remedy(store: LocalStore) -> None:
    frame = pd.DataFrame({"x": pd.Categorical(["a", "b"]), "y": [0, 1]})
    with pytest.raises(DataError, match=r"'x' .*codes"):
        prepare(frame, store=store, features=["x"], label="y", partitions=1)


def test_features_that_are_not_finite_are_let_through_if_one_says_so(store: LocalStore) -> None:
    data = {"x": [3e38, INF, -INF, NAN], "y": [0, 1, 1, 0]}
    dataset = prepare(data, store=store, features=["x"], label="y", partitions=1, allow_nan=True)
    loaded = load_arrays(dataset, dataset.train[0])["features"]
    assert (np.isinf(loaded).sum(), np.isnan(loaded).sum()) == (2, 1)
    with pytest.raises(DataError, match="'y' is a label and has 1 NaN"):
        prepare({**data, "y": data["x"]}, store=store, features=["x"], label="y", partitions=1, allow_nan=True)
    with pytest.raises(ConfigurationError, match="allow_nan is 'yes'"):
        prepare(data, store=store, features=["x"], label="y", partitions=1, allow_nan="yes")  # type: ignore[arg-type]


def masked(*given: Any) -> Any:
    return np.ma.MaskedArray(*given)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (3.0, "'x' is a float, not a column of values"),
        (np.array(3.0), "'x' is a ndarray without rows"),
        (None, "'x' is a NoneType"),
        ("ab", "'x' is a str"),
        (b"ab", "'x' is a bytes"),
        ({"a": 1, "b": 2}, "'x' is a dict"),
        (np.zeros(2, np.longdouble), r"'x' is of type float128 .*astype\('float64'\)"),
        ([np.zeros(3, np.longdouble)] * 2, r"'x' is of type float128 .*astype\('float64'\)"),
        (masked([1.0, 2.0], [False, True]), r"'x' has 1 null rows: fill them"),
        (masked([[1.0, 2.0]] * 2, [[True, True], [False, False]]), r"'x' has 1 null rows"),
        ([2**70, 1], "'x' mixes kinds of values"),
        (np.zeros(2, complex), r"'x' is of type complex128 .*cannot be trained on"),
        (np.array(["a", "b"]), "'x' is of type string.*StringIndexer"),
        (np.array(["2026-11-15", "2026-11-16"], "datetime64[D]"), "'x' is of type date.*days since"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_column_of_numbers(store: LocalStore, values: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        prepare({"x": values, "y": [0, 1]}, store=store, features="x", label="y", partitions=1)
    assert store.list() == []


def test_an_array_that_masks_nothing_is_an_array(store: LocalStore) -> None:
    made = prepare({"x": masked([1.0, 2.0]), "y": [0, 1]}, store=store, features="x", label="y", partitions=1)
    assert sorted(load_arrays(made, made.train[0])["features"].flatten()) == [1.0, 2.0]


def test_a_sparse_column_is_a_column(store: LocalStore) -> None:
    frame = pd.DataFrame({"x": pd.arrays.SparseArray([0.0, 2.0]), "y": [0, 1]})
    made = prepare(frame, store=store, features="x", label="y", partitions=1)
    assert sorted(load_arrays(made, made.train[0])["features"].flatten()) == [0.0, 2.0]


def test_names_that_are_numbers(store: LocalStore) -> None:
    with pytest.raises(ConfigurationError, match=r"features has 0 where the name .*df\.columns\.astype\(str\)"):
        prepare(pd.DataFrame(np.zeros((3, 2))), store=store, features=[0], label=1, partitions=1)  # type: ignore[list-item, arg-type]


def test_two_columns_of_one_name(store: LocalStore) -> None:
    frame = pd.DataFrame([[1.0, 2.0, 0], [3.0, 4.0, 1]], columns=["x", "x", "y"])
    with pytest.raises(ConfigurationError, match="2 columns 'x': rename"):
        prepare(frame, store=store, features="x", label="y", partitions=1)
    assert prepare(frame, store=store, features="y", label="y", partitions=1).rows == 2


def test_columns_of_different_lengths(store: LocalStore) -> None:
    with pytest.raises(DataError, match="as many rows as each other"):
        prepare({"x": np.zeros(3), "y": np.zeros(4)}, store=store, features="x", label="y", partitions=1)


def test_no_rows_at_all(store: LocalStore) -> None:
    with pytest.raises(DataError, match="0 rows"):
        prepare({"x": np.zeros(0), "y": np.zeros(0)}, store=store, features="x", label="y", partitions=1)
    assert store.list() == []


@pytest.mark.parametrize(
    ("held_out", "kind", "message"),
    [
        ({"x": [1.0]}, ConfigurationError, "^validation frame: .*no column 'y': it has 'x'"),
        ({"x": ["a"], "y": [1]}, DataError, "^validation frame: column 'x' is of type .*string"),
    ],
)
def test_what_is_wrong_with_the_columns_of_a_validation_frame_names_it(
    store: LocalStore, held_out: dict[str, Any], kind: type[Exception], message: str
) -> None:
    data = {"x": [1.0, 2.0], "y": [0, 1]}
    with pytest.raises(kind, match=message):
        prepare(data, store=store, features="x", label="y", partitions=1, validation=held_out)
    with pytest.raises(kind) as caught:
        prepare(held_out, store=store, features="x", label="y", partitions=1, validation=data)
    assert "validation frame" not in str(caught.value)
    assert store.list() == []
