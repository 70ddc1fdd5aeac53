"""prepare on Spark: one run of the plan, nothing collected, and partitions that a seed decides."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numbered_rows import labels, numbers

from cerebro_spark.data.input.spark import SparkFrame
from cerebro_spark.data.loading.arrays import load_arrays
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import ConfigurationError, DataError, StoreForbidden
from cerebro_spark.store.local import LocalStore

pytestmark = pytest.mark.jvm


def numbered_df(spark: Any, rows: int, splits: int = 3) -> Any:
    return spark.range(0, rows, 1, splits).selectExpr("cast(id as float) as x", "id as y")


def counted_df(spark: Any, ran: Any) -> Any:
    """Rows whose plan counts how often it ran."""

    def count(batches: Any) -> Any:
        for batch in batches:
            ran.add(1)
            yield batch

    return numbered_df(spark, 10).mapInArrow(count, "x float, y long")


def test_every_row_once_and_equal_partitions(spark: Any, store: LocalStore) -> None:
    dataset = prepare(
        numbered_df(spark, 1003), store=store, features=["x"], label="y", validation=0.2, partitions=4, seed=1
    )
    assert numbers(dataset, "train", "validation") == list(range(1003))
    assert [partition.rows for partition in dataset.train] == [201, 201, 200, 200]
    assert [partition.rows for partition in dataset.validation] == [51, 50, 50, 50]
    for partition in dataset.train:
        arrays = load_arrays(dataset, partition)
        assert (arrays["features"][:, 0] == arrays["label"]).all()
    assert not [name for name in store.list() if "staging" in name]


def test_the_plan_runs_once_and_only_counts_come_back(spark: Any, store: LocalStore, tmp_path: Path) -> None:
    """Every row that the user's plan makes is counted where it is made, and the jobs' results are weighed."""
    made = spark.sparkContext.accumulator(0)

    def count(batches: Any) -> Any:
        for batch in batches:
            made.add(batch.num_rows)
            yield batch

    df = numbered_df(spark, 50_000, 4).mapInArrow(count, "x float, y long")
    prepare(df, store=store, features=["x"], label="y", validation=0.1, partitions=3, seed=1)
    assert made.value == 50_000


def test_what_comes_back_does_not_grow_with_the_rows(
    spark: Any, store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = SparkFrame.map_splits

    def weighed(self: Any, task: Any) -> Any:
        reports = real(self, task)
        sizes.append(sum(len(pickle.dumps(report)) for report in reports))
        return reports

    monkeypatch.setattr(SparkFrame, "map_splits", weighed)
    for rows in (1_000, 100_000):
        prepare(numbered_df(spark, rows), store=store, features=["x"], label="y", partitions=2, name=f"d{rows}")
    assert abs(sizes[1] - sizes[0]) < 100


def test_sorted_skewed_input_is_spread_as_chance_would(spark: Any, store: LocalStore) -> None:
    from scipy import stats

    df = spark.range(0, 40_000, 1, 4).selectExpr("cast(id as float) x", "case when id < 36000 then 0 else 1 end y")
    dataset = prepare(df, store=store, features=["x"], label="y", partitions=8, seed=3)
    table = [[Counter(part)[0], Counter(part)[1]] for part in labels(dataset)]
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_the_same_seed_gives_the_same_partitions_after_a_shuffle_too(spark: Any, store: LocalStore) -> None:
    """Rows that come out of an exchange have no fixed order within their split."""
    df = numbered_df(spark, 5000, 4).repartition(3, "y")
    made = [
        prepare(df, store=store, features=["x"], label="y", partitions=2, validation=0.5, seed=seed, name=name)
        for seed, name in [(1, "a"), (1, "b"), (2, "c")]
    ]
    first, again, other = [labels(dataset) for dataset in made]
    assert first == again
    assert first != other


def test_columns_of_every_kind(spark: Any, store: LocalStore) -> None:
    df = spark.range(0, 60, 1, 2).selectExpr(
        "cast(id as byte) b", "cast(id as short) s", "cast(id as int) i", "id l", "cast(id as float) f",
        "cast(id as double) d", "id % 2 = 0 as t", "array(id, id + 1) a", "array(array(id, id), array(id, id)) n",
        "id as `dotted.name`",
    )  # fmt: skip
    dataset = prepare(
        df,
        store=store,
        features={"all": ["b", "s", "i", "l", "f", "d", "t", "a"], "nested": "n", "tokens": "a", "small": "b"},
        label={"y": "dotted.name"},
        weight="d",
        partitions=2,
    )
    for partition in dataset.train:
        arrays = load_arrays(dataset, partition)
        y = arrays["y"]
        assert (arrays["all"] == np.stack([y, y, y, y, y, y, y % 2 == 0, y, y + 1], axis=1)).all()
        assert arrays["nested"].shape == (30, 2, 2)
        assert (arrays["nested"] == y[:, None, None]).all()
        kinds = [each.dtype.name for each in (arrays["tokens"], arrays["small"], y)]
        assert kinds == ["int64", "int8", "int64"]
        assert (arrays["weight"] == y).all()


def test_vectors_dense_and_sparse(spark: Any, store: LocalStore) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [(Vectors.dense([n, 0, 1]) if n % 2 else Vectors.sparse(3, {0: n, 2: 1}), n) for n in range(20)]
    df = spark.createDataFrame(rows, ["v", "y"]).selectExpr("v", "y", "y as z")
    dataset = prepare(df, store=store, features=["v", "z"], label="y", partitions=2)
    for partition in dataset.train:
        arrays = load_arrays(dataset, partition)
        y = arrays["label"]
        assert (arrays["features"] == np.stack([y, y * 0, y * 0 + 1, y], axis=1)).all()


def test_vectors_that_are_null_or_of_two_sizes(spark: Any, store: LocalStore) -> None:
    from pyspark.ml.linalg import Vectors

    rows = [(Vectors.dense([1.0]), 0), (None, 1), (Vectors.dense([1.0, 2.0]), 1), (Vectors.dense([1.0]), 1)]
    with pytest.raises(DataError, match=r"'v' has 1 null rows.*'v' is ragged: .*1 rows differ"):
        prepare(spark.createDataFrame(rows, ["v", "y"]), store=store, features="v", label="y", partitions=1)


def test_splits_that_disagree_are_noticed(spark: Any, store: LocalStore) -> None:
    """Each split alone is well; together they are ragged."""
    df = spark.range(0, 8, 1, 2).selectExpr("case when id < 4 then array(1) else array(1, 2) end x", "id y")
    with pytest.raises(DataError, match=r"'x' is ragged: .*4 rows differ"):
        prepare(df, store=store, features="x", label="y", partitions=1)


def test_images(spark: Any, store: LocalStore) -> None:
    from test_prepare_local import encoded

    rows = [(bytearray(encoded("png", n)), n) for n in range(30)]
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    df = spark.createDataFrame(rows, "image binary, y int").repartition(2)
    dataset = prepare(df, store=store, features="image", label="y", partitions=2)
    arrays = load_arrays(dataset, dataset.train[0])
    assert (arrays["features"] == arrays["label"][:, None, None, None]).all()
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == before


def test_validation_by_column_and_by_frame(spark: Any, store: LocalStore) -> None:
    df = numbered_df(spark, 100).selectExpr("*", "y % 4 = 0 as held")
    dataset = prepare(df, store=store, features=["x"], label="y", validation="held", partitions=2, name="a")
    assert numbers(dataset, "validation") == list(range(0, 100, 4))
    other = numbered_df(spark, 9)
    dataset = prepare(df, store=store, features=["x"], label="y", validation=other, partitions=2, name="b")
    assert numbers(dataset, "validation") == list(range(9))
    assert numbers(dataset, "train") == list(range(100))


def test_arrays_beside_a_spark_frame_for_validation_and_the_other_way_round(spark: Any, store: LocalStore) -> None:
    arrays = {"x": np.arange(20.0), "y": np.arange(20)}
    df = numbered_df(spark, 9)
    dataset = prepare(arrays, store=store, features=["x"], label="y", validation=df, partitions=2, name="a")
    assert (numbers(dataset, "train"), numbers(dataset, "validation")) == (list(range(20)), list(range(9)))
    dataset = prepare(df, store=store, features=["x"], label="y", validation=arrays, partitions=2, name="b")
    assert (numbers(dataset, "train"), numbers(dataset, "validation")) == (list(range(9)), list(range(20)))
    assert not [name for name in store.list() if "staging" in name]


def test_two_columns_of_one_name(spark: Any, store: LocalStore) -> None:
    df = spark.range(4).selectExpr("id as x", "id as x", "id as y", "id as V", "id as v")
    with pytest.raises(ConfigurationError, match="2 columns 'x': rename"):
        prepare(df, store=store, features=["x"], label="y")
    with pytest.raises(ConfigurationError, match="2 columns 'v': rename"):
        prepare(df, store=store, features=["v"], label="y")
    assert prepare(df, store=store, features=["y"], label="y", partitions=1).rows == 4


def test_a_store_in_this_process_alone_is_refused_before_the_plan_runs(spark: Any) -> None:
    ran = spark.sparkContext.accumulator(0)
    df = counted_df(spark, ran)
    arrays = {"x": [1.0], "y": [1]}
    for one, other in ((df, None), (arrays, df), (df, arrays)):
        with pytest.raises(ConfigurationError, match=r"memory://s .* executors cannot reach"):
            prepare(one, store="memory://s", features=["x"], label="y", validation=other)
    assert ran.value == 0


def test_partitions_default_to_the_slots_and_empty_splits_are_no_matter(spark: Any, store: LocalStore) -> None:
    dataset = prepare(numbered_df(spark, 10, 16), store=store, features=["x"], label="y")
    assert [partition.rows for partition in dataset.train] == [5, 5]


def test_a_missing_column_is_seen_before_the_plan_runs(spark: Any, store: LocalStore) -> None:
    ran = spark.sparkContext.accumulator(0)
    df = counted_df(spark, ran)
    with pytest.raises(ConfigurationError, match="no column 'z': it has 'x', 'y'"):
        prepare(df, store=store, features=["z"], label="y")
    assert ran.value == 0


def test_a_plan_that_fails_leaves_nothing(spark: Any, store: LocalStore) -> None:
    df = numbered_df(spark, 1000).selectExpr("x", "case when y = 999 then raise_error('no') else y end y")
    with pytest.raises(Exception, match="no"):
        prepare(df, store=store, features=["x"], label="y", partitions=2)
    assert store.list() == []


class ReadOnlyStore(LocalStore):
    """Refuses what executors write."""

    def writer(self, name: str) -> Any:
        raise StoreForbidden(f"no permission for {name!r}")


def test_an_unwritable_store_raises_its_own_error(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(StoreForbidden, match="no permission for 'datasets/"):
        prepare(numbered_df(spark, 10), store=ReadOnlyStore(tmp_path / "s"), features=["x"], label="y")
