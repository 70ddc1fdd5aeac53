"""Which columns become which arrays, and what is refused before any work."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cerebro_spark.data.input.columns import Column, SourceType, check_type, stored_dtype
from cerebro_spark.data.input.inputs import Input, check_present, list_sources, parse_inputs, resolve_columns
from cerebro_spark.errors import ConfigurationError, DataError

SCALAR, WIDE, NESTED = SourceType("float64"), SourceType("int32", (4,)), SourceType("uint8", (2, 3))
IMAGE = SourceType("uint8", (8, 8, 3), "image")


def test_a_list_is_a_matrix_a_name_is_itself_a_dict_is_several() -> None:
    inputs = parse_inputs({"dense": ["a", "b"], "image": "i"}, {"out": "y"}, "w")
    assert inputs == (
        Input("dense", "feature", ("a", "b"), True),
        Input("image", "feature", ("i",), False),
        Input("out", "label", ("y",), False),
        Input("weight", "weight", ("w",), False),
    )


@pytest.mark.parametrize(
    ("given", "types", "dtype", "shape"),
    [
        (Input("x", "feature", ("a", "b"), True), {"a": SCALAR, "b": WIDE}, "float32", (5,)),
        (Input("x", "feature", ("a",), True), {"a": SCALAR}, "float32", (1,)),
        (Input("x", "feature", ("b",), True), {"b": WIDE}, "float32", (4,)),
        (Input("x", "feature", ("b",), False), {"b": WIDE}, "int32", (4,)),
        (Input("x", "feature", ("n",), True), {"n": NESTED}, "uint8", (2, 3)),
        (Input("x", "feature", ("i",), True), {"i": IMAGE}, "uint8", (8, 8, 3)),
        (Input("y", "label", ("a",), False), {"a": SCALAR}, "float32", ()),
        (Input("y", "label", ("k",), False), {"k": SourceType("bool")}, "bool", ()),
    ],
)
def test_types_and_shapes(given: Input, types: dict[str, SourceType], dtype: str, shape: tuple[int, ...]) -> None:
    (column,) = resolve_columns([given], types)
    assert (column.dtype, column.shape, column.codec) == (dtype, shape, types[given.sources[0]].codec)


@pytest.mark.parametrize("odd", [NESTED, IMAGE])
def test_an_image_cannot_stand_in_a_row_of_numbers(odd: SourceType) -> None:
    with pytest.raises(DataError, match=r"'n' holds .* make it an input of its own"):
        resolve_columns([Input("features", "feature", ("a", "n"), True)], {"a": SCALAR, "n": odd})


@pytest.mark.parametrize(
    ("features", "label", "weight", "message"),
    [
        ([], "y", None, "features names no column"),
        ({}, "y", None, "features is an empty dict"),
        (["a", "a"], "y", None, "names the column 'a' twice"),
        ({"label": "a"}, "y", None, "'label' stands for two arrays"),
        ({"my input": "a"}, "y", None, "'my input'"),
        ({"_x": "a"}, "y", None, "'_x'"),
        ({"class": "a"}, "y", None, "'class'"),
        (["a", 3], "y", None, "3 where the name of a column"),
        (["a"], "y", 1.5, "1.5 where the name of a column"),
    ],
)
def test_arguments_that_cannot_work(features: Any, label: Any, weight: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_inputs(features, label, weight)


def test_a_missing_column_is_named_with_those_there_are() -> None:
    with pytest.raises(ConfigurationError, match="no column 'b': it has 'a', 'y'"):
        check_present(list_sources(parse_inputs(["a", "b"], "y")), ["a", "y"])


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (pa.string(), "StringIndexer"),
        (pa.large_string(), "StringIndexer"),
        (pa.timestamp("us"), "unix_timestamp"),
        (pa.date32(), "days since"),
        (pa.decimal128(10, 2), "cast it to double"),
        (pa.map_(pa.string(), pa.int32()), "select the keys"),
        (pa.struct([("a", pa.int32())]), "select the fields"),
        (pa.dictionary(pa.int8(), pa.string()), "category codes"),
        (pa.null(), "no values at all"),
        (pa.list_(pa.string()), "StringIndexer"),
        (pa.duration("s"), "seconds"),
        (pa.list_(pa.binary()), "convert it to numbers"),
    ],
)
def test_types_that_cannot_be_trained_on_name_column_and_remedy(kind: pa.DataType, remedy: str) -> None:
    with pytest.raises(DataError, match=f"column 'c' is of type .* in all its rows.*{remedy}"):
        check_type("c", kind)


@pytest.mark.parametrize("kind", [pa.bool_(), pa.int8(), pa.uint16(), pa.int64(), pa.float16(), pa.float64()])
def test_every_numeric_type_and_arrays_of_it_can(kind: pa.DataType) -> None:
    dtype = check_type("c", kind)
    assert dtype is not None
    assert check_type("c", pa.list_(pa.list_(kind))) == dtype
    assert stored_dtype(dtype) == ("float32" if dtype.kind == "f" else dtype.name)


def test_columns_survive_json() -> None:
    column = Column("x", "feature", "uint8", (8, 8, 3), ("i",), "image")
    assert Column.from_json(column.to_json()) == column
