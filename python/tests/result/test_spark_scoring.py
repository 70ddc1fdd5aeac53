"""Scoring and measuring on Spark's executors: the same numbers as here, whatever the columns, and errors that help."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kept_workers import KeptWorkers
from made_runs import MadeRun, run_search, scaled, traced_fn, two_headed_fn

from cerebro_spark.data.input.columns import Column
from cerebro_spark.errors import ConfigurationError, DataError
from cerebro_spark.result import rows as result_rows
from cerebro_spark.result import spark as scoring
from cerebro_spark.trainer.base import Hooks

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(900)]


def rows_of(spark: Any, made: MadeRun, partitions: int = 3) -> Any:
    """The test rows as a DataFrame, with columns that no pandas UDF could carry."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as f

    table = made.test.assign(history=[row.tolist() for row in made.test["history"]])
    schema = "name string, age long, income double, history array<double>, churned long"
    df = spark.createDataFrame(table.to_numpy(dtype=object).tolist(), schema).repartition(partitions)
    return df.select(
        "*", f.create_map(f.lit("a"), f.col("age")).alias("a.map"), array_to_vector(f.col("history")).alias("vector")
    )


def test_predictions_are_the_same_as_here_and_all_columns_stay(spark: Any, made_run: MadeRun) -> None:
    result = made_run.result
    df = rows_of(spark, made_run)
    scored = result.transform(df)
    assert scored.columns == [*df.columns, "prediction", "probability", "rawPrediction"]
    types = dict(scored.dtypes)
    assert [types[name] for name in scored.columns[-3:]] == ["double", "vector", "vector"]
    expected = result.transform(made_run.test).set_index("name")
    rows = scored.collect()
    assert len(rows) == len(expected)
    for row in rows:
        there = expected.loc[row["name"]]
        assert row["prediction"] == there["prediction"]
        for name in ("probability", "rawPrediction"):
            np.testing.assert_allclose(row[name].toArray(), there[name], rtol=1e-4, atol=1e-6)
        assert row["a.map"] == {"a": row["age"]}
        assert row["vector"].toArray().tolist() == row["history"]


def test_sparks_own_evaluators_measure_what_comes_out(spark: Any, made_run: MadeRun) -> None:
    from pyspark.ml.evaluation import BinaryClassificationEvaluator, MulticlassClassificationEvaluator
    from sklearn import metrics

    scored = made_run.result.transform(rows_of(spark, made_run)).cache()
    rows = scored.select("churned", "prediction", "probability", "rawPrediction").collect()
    label, predicted = [row.churned for row in rows], [row.prediction for row in rows]
    likely = np.array([row.probability.toArray() for row in rows])
    binary = BinaryClassificationEvaluator(labelCol="churned")
    auc = metrics.roc_auc_score(label, likely[:, 1])
    assert binary.evaluate(scored) == pytest.approx(auc, abs=1e-6)
    assert binary.setRawPredictionCol("probability").evaluate(scored) == pytest.approx(auc, abs=1e-6)
    several = MulticlassClassificationEvaluator(labelCol="churned")
    expected = {
        "accuracy": metrics.accuracy_score(label, predicted),
        "f1": metrics.f1_score(label, predicted, average="weighted"),
        "logLoss": metrics.log_loss(label, np.clip(likely, 1e-15, 1 - 1e-15)),  # Spark's bounds
    }
    name: Any
    for name, value in expected.items():
        assert several.setMetricName(name).evaluate(scored) == pytest.approx(value, rel=1e-6), name


@pytest.mark.parametrize("count", [0, 1, 5, 6])
def test_a_batch_of_rows_is_decoded_in_pieces(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def predict(batch: Any) -> dict[str, Any]:
        seen.append(len(batch["x"]))
        return {"sum": batch["x"].sum(axis=1), "rows": batch["x"]}

    monkeypatch.setattr(result_rows, "_CHUNK_BYTES", 3 * 2 * 4)
    model: Any = SimpleNamespace(scorer=lambda: SimpleNamespace(predict=predict))
    columns = [Column("x", "feature", "float32", (2,), ("a", "b"))]
    cells = [pd.Series(np.arange(count) + 0.5), pd.Series(np.arange(count) * 10.0)]
    sums, rows = scoring._predict(model, columns, np.full(count, -1), cells).values()
    assert seen == {0: [0], 1: [1], 5: [3, 2], 6: [3, 3]}[count]
    np.testing.assert_allclose(sums, np.arange(count) * 11.0 + 0.5)
    assert rows.shape == (count, 2)


def test_vectors_and_other_widths_are_taken_as_in_training(spark: Any, torch_run: MadeRun) -> None:
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as f

    result = torch_run.result
    df = rows_of(spark, torch_run).drop("churned")
    df = df.withColumn("history", array_to_vector(f.col("history"))).withColumn("age", f.col("age").cast("smallint"))
    expected = result.transform(torch_run.test, kind="regression").set_index("name")["prediction"]
    scored = result.transform(df.withColumn("income", f.col("income").cast("float")), column="score", kind="regression")
    assert dict(scored.dtypes)["score"] == "double"
    for row in scored.collect():
        assert row["score"] == pytest.approx(expected[row["name"]], rel=1e-4, abs=1e-5)


def test_metrics_are_the_same_as_here(spark: Any, made_run: MadeRun) -> None:
    """Averages, states that add up (AUC), and a metric that can only be updated; some partitions are empty."""
    result = made_run.result
    expected = result.evaluate(made_run.test)
    df = rows_of(spark, made_run, partitions=1)
    few = df.repartition(7, "churned")
    for rows in (df, few):
        assert result.evaluate(rows) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(DataError, match="no rows"):
        result.evaluate(df.filter("age > 1000"))


def test_bad_rows_are_named(spark: Any, torch_run: MadeRun) -> None:
    from pyspark.sql import functions as f

    result = torch_run.result
    df = rows_of(spark, torch_run, partitions=1)
    with pytest.raises(ConfigurationError, match="no column 'income'"):
        result.transform(df.drop("income"))
    with pytest.raises(ConfigurationError, match="'prediction' already"):
        result.transform(df.withColumn("Prediction", f.lit(1)))
    with pytest.raises(DataError, match="'age' is of type string"):
        result.transform(df.withColumn("age", f.lit("old")))
    young = f.col("age") < 40
    count = df.filter(young).count()
    holed = f.array(f.lit(1.0), f.lit(None).cast("double"), f.lit(2.0))
    cases = {
        "income": (f.when(~young, f.col("income")), f"column 'income' has {count} null rows among 90"),
        "age": (f.when(~young, f.col("age")), f"column 'age' has {count} null rows among 90"),
        "history": (f.when(~young, f.col("history")).otherwise(holed), f"column 'history' has {count} null rows"),
    }
    for name, (column, message) in cases.items():
        with pytest.raises(Exception, match=message):
            result.transform(df.withColumn(name, column)).collect()
    ragged = f.when(young, f.array(f.lit(1.0))).otherwise(f.col("history"))
    with pytest.raises(Exception, match=r"'history' is ragged: its rows have shapes \[\(1,\), \(3,\)\]"):
        result.transform(df.withColumn("history", ragged)).collect()
    with pytest.raises(DataError, match=f"column 'churned' has {count} null rows"):
        result.evaluate(df.withColumn("churned", f.when(~young, f.col("churned"))))


def test_several_outputs_come_from_one_pass(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], kept_backend: KeptWorkers
) -> None:
    features = {"seen": "history", "told": ["age", "income"]}
    made = run_search(
        tmp_path,
        Hooks(two_headed_fn),
        features=features,
        configurations=[{"lr": 1e-5}],
        epochs=1,
        backend=kept_backend(1),
    )
    result = made.result
    df = rows_of(spark, made)
    scored = result.transform(df)
    assert scored.columns == [*df.columns, "prediction_churn", "prediction_kind"]
    assert dict(scored.dtypes)["prediction_kind"] == "array<float>"
    scored.explain()
    plan = capsys.readouterr().out
    assert plan.count("ArrowEvalPython [") == 1
    assert "pythonUDF1" not in plan, "the model would run twice"
    expected = result.transform(made.test).set_index("name")
    for row in scored.collect():
        assert row["prediction_churn"] == pytest.approx(expected["prediction_churn"][row["name"]], rel=1e-4, abs=1e-5)
        np.testing.assert_allclose(row["prediction_kind"], expected["prediction_kind"][row["name"]], rtol=1e-4)
    assert len(scored.select("prediction_churn", "name").collect()) == 90


def test_a_model_is_built_once_a_process(spark: Any, tmp_path: Path, kept_backend: KeptWorkers) -> None:
    trace = tmp_path / "trace"
    configuration = {"lr": 0.01, "hidden": 4, "trace": str(trace)}
    made = run_search(
        tmp_path,
        Hooks(traced_fn, input_fn=scaled),
        configurations=[configuration],
        epochs=1,
        backend=kept_backend(1),
    )
    df = rows_of(spark, made, partitions=8)
    result = made.result
    scored = result.transform(df)
    trace.write_text("")
    for _ in range(3):
        assert len(scored.collect()) == 90
    assert len(result.transform(df.limit(9)).collect()) == 9
    result.evaluate(df)
    built = Counter(trace.read_text().split())
    assert 1 <= len(built) <= 4
    assert set(built.values()) == {1}, built
