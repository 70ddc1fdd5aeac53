"""A search among Spark's own: validators around it, its params, and pipelines saved before and after fitting."""

from __future__ import annotations

import dataclasses
import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kept_workers import KeptWorkers

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.errors import ConfigurationError, EventLogError
from cerebro_spark.tune.spaces.space import Space

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # Spark's validators leave their pool of threads to the collector.
    pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning"),
]
SECRET = "not-for-the-pipeline"


def vector_model_fn(params: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    module = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    return cs.TorchModel(module, torch.optim.SGD(module.parameters(), lr=params["lr"]), nn.MSELoss())


def three_classes_fn(params: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    module = nn.Linear(2, 3)
    return cs.TorchModel(module, torch.optim.SGD(module.parameters(), lr=params["lr"]), nn.CrossEntropyLoss())


def points(rows: int = 120) -> pd.DataFrame:
    frame = pd.DataFrame(np.random.default_rng(1).normal(size=(rows, 2)), columns=["a", "b"])
    frame["y"] = frame.a + frame.b
    frame["third"] = np.digitize(frame.a, [-0.4, 0.4])
    return frame


def search_in(folder: Path, model_fn: Any, backend: cs.LocalBackend, **more: Any) -> cs.GridSearch:
    options: dict[str, Any] = {"backend": backend, "features": ["a", "b"], **more}
    store = str(folder / "store")
    return cs.GridSearch(model_fn, space={"lr": 0.1}, store=store, metric="loss", epochs=1, **options)


def test_a_split_and_a_regression(spark: Any, tmp_path: Path, kept_backend: KeptWorkers) -> None:
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit

    search = search_in(tmp_path, vector_model_fn, kept_backend(1), label="y")
    grid = ParamGridBuilder().addGrid(search.probabilityCol, ["p"]).build()
    split = TrainValidationSplit(
        estimator=search, estimatorParamMaps=grid, evaluator=RegressionEvaluator(labelCol="y"), seed=1
    )
    frame = spark.createDataFrame(points())
    fitted: Any = split.fit(frame)
    assert fitted.bestModel.getProbabilityCol() == "p"
    assert len(fitted.validationMetrics) == 1
    scored = fitted.transform(frame)
    assert dict(scored.dtypes)["prediction"] == "double"
    rows = scored.toPandas()
    rmse = float(np.sqrt(((rows.prediction - rows.y) ** 2).mean()))
    assert RegressionEvaluator(labelCol="y").evaluate(scored) == pytest.approx(rmse)


def test_cross_validation_of_a_pipeline_with_classes(spark: Any, tmp_path: Path, kept_backend: KeptWorkers) -> None:
    from pyspark.ml import Pipeline
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.tuning import CrossValidator, CrossValidatorModel, ParamGridBuilder
    from sklearn import metrics

    search = search_in(tmp_path, three_classes_fn, kept_backend(1), label="third", features="joined")
    search.setPredictionCol("class")
    pipeline = Pipeline(stages=[VectorAssembler(inputCols=["a", "b"], outputCol="joined"), search])
    judge = MulticlassClassificationEvaluator(labelCol="third", predictionCol="class", metricName="f1")
    grid = ParamGridBuilder().baseOn({search.rawPredictionCol: "logits"}).build()
    validator = CrossValidator(estimator=pipeline, estimatorParamMaps=grid, evaluator=judge, numFolds=2, seed=1)
    frame = spark.createDataFrame(points())
    model = validator.fit(frame)
    scored = model.transform(frame)
    assert scored.columns[-3:] == ["class", "probability", "logits"]
    rows = scored.toPandas()
    assert judge.evaluate(scored) == pytest.approx(metrics.f1_score(rows.third, rows["class"], average="weighted"))
    row: Any
    for row in rows.itertuples():
        odds = np.exp(row.logits.toArray())
        np.testing.assert_allclose(row.probability.toArray(), odds / odds.sum(), rtol=1e-5)
    model.write().overwrite().save(str(tmp_path / "validated"))
    again = CrossValidatorModel.load(str(tmp_path / "validated")).transform(frame).toPandas()
    pd.testing.assert_frame_equal(again, rows)


def test_copies_have_params_of_their_own(spark: Any, tmp_path: Path, kept_backend: KeptWorkers) -> None:
    frame = spark.createDataFrame(points())
    search = search_in(tmp_path, three_classes_fn, kept_backend(1), label="third")
    other = search.copy({search.predictionCol: "c"})
    assert (search.getPredictionCol(), other.getPredictionCol(), other.uid) == ("prediction", "c", search.uid)
    first: Any
    (first,) = search.fit(frame, [{search.probabilityCol: ""}])
    assert first.transform(frame).columns == [*frame.columns, "prediction", "rawPrediction"]
    second = first.copy({first.probabilityCol: "probability"})
    assert second.transform(frame, {search.predictionCol: "c"}).columns[-3] == "c"
    assert second.transform(frame).columns[-3] == "prediction"
    assert second.transform(frame, {search.predictionCol: "c"}, column="d", raw="").columns[-2:] == ["d", "probability"]
    assert [param.name for param in second.params] == ["predictionCol", "probabilityCol", "rawPredictionCol"]
    again = pickle.loads(pickle.dumps(first))
    assert (again.uid, again.getProbabilityCol(), again.run_id) == (first.uid, "", first.run_id)
    with pytest.raises(ConfigurationError, match="`params` has 'lr', but takes a dict from Spark's params"):
        first.transform(frame, {"lr": 0.1})


def test_what_a_saved_search_keeps(spark: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = cs.open_store("memory://searches/runs", storage_options={"password": SECRET})
    search = cs.RandomSearch(
        three_classes_fn,
        space={"lr": hp.loguniform(1e-3, 1e-1), "batch_size": hp.choice([8, 16])},
        store=place,
        metric="val_loss",
        epochs=3,
        num_trials=5,
        validation=0.25,
        features=["a", "b"],
        label="third",
        kind="multiclass",
        seed=4,
        backend=cs.LocalBackend(num_workers=1),
        trackers=[cs.CSVTracker(tmp_path / f"{SECRET}.csv")],
    ).setProbabilityCol("odds")
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        search.save(str(tmp_path / "search"))
    assert "saved without its trackers" in caplog.text
    assert all(SECRET.encode() not in file.read_bytes() for file in (tmp_path / "search").rglob("*") if file.is_file())
    loaded = cs.RandomSearch.load(str(tmp_path / "search"))
    assert (loaded.uid, loaded.getProbabilityCol(), loaded.getPredictionCol()) == (search.uid, "odds", "prediction")
    assert (loaded.epochs, loaded.num_trials, loaded.objective, loaded.store) == (3, 5, search.objective, place.url)
    changed = ("backend", "trackers", "store", "space")
    kept = [field.name for field in dataclasses.fields(search) if field.name not in changed]
    assert all(getattr(loaded, name) == getattr(search, name) for name in kept)
    assert (loaded.backend, loaded.trackers) == (None, ())
    rng = [np.random.default_rng(0) for _ in range(2)]
    assert isinstance(loaded.space, Space)
    assert isinstance(search.space, Space)
    assert loaded.space.sample(rng[0]) == search.space.sample(rng[1])
    (tmp_path / "search" / "search" / "arguments.pickle").write_bytes(b"something else")
    with pytest.raises(EventLogError, match="is not what was saved with this search"):
        cs.RandomSearch.load(str(tmp_path / "search"))


def test_what_a_saved_search_cannot_keep(spark: Any, tmp_path: Path) -> None:
    cases: dict[str, dict[str, Any]] = {
        "`validation` is a DataFrame, which is data": {"validation": spark.createDataFrame(points(4))},
        "the address of the store has a password": {"store": f"sftp://me:{SECRET}@host/runs"},
    }
    for message, more in cases.items():
        options = {"store": str(tmp_path), "features": ["a"], "label": "y", "metric": "loss", "epochs": 1, **more}
        search = cs.GridSearch(vector_model_fn, space={"lr": 0.1}, **options)
        with pytest.raises(ConfigurationError, match=message):
            search.write().overwrite().save(str(tmp_path / "search"))
    assert not (tmp_path / "search").exists()


PIPELINE = """
import sys
from pyspark.ml import PipelineModel
from sparks import SparkHouse

house = SparkHouse()
spark = house.session("local[1]")
loaded = PipelineModel.load(sys.argv[1])
frame = spark.createDataFrame([(0.5, 1.5, 1), (-2.0, -1.0, 0)], ["a", "b", "y"])
print("scored", [round(row.prediction, 5) for row in loaded.transform(frame).collect()])
house.close()
"""


def test_a_pipeline_is_saved_before_and_after_it_is_fitted(spark: Any, tmp_path: Path) -> None:
    """The one that is loaded runs on the active session, and what it makes outlives the run."""
    from pyspark.ml import Estimator, Pipeline
    from pyspark.ml.feature import VectorAssembler

    search = cs.GridSearch(
        vector_model_fn,
        space={"lr": hp.choice([0.1, 0.01])},
        backend=cs.LocalBackend(num_workers=1),
        store=str(tmp_path / "store"),
        features="joined",
        label="y",
        validation=0.2,
        metric="val_loss",
        epochs=1,
    )
    assert isinstance(search, Estimator)
    Pipeline(stages=[VectorAssembler(inputCols=["a", "b"], outputCol="joined"), search]).save(
        str(tmp_path / "unfitted")
    )
    pipeline: Any = Pipeline.load(str(tmp_path / "unfitted"))
    assert pipeline.getStages()[1].backend is None
    assert pipeline.getStages()[1].uid == search.uid
    model = pipeline.fit(spark.createDataFrame(points(300)))
    assert model.stages[1].units.worker.nunique() == 2, "two cores of the session, not a process of this machine"
    probe = spark.createDataFrame([(0.5, 1.5, 1), (-2.0, -1.0, 0)], ["a", "b", "y"])
    expected = [round(row.prediction, 5) for row in model.transform(probe).collect()]
    model.write().overwrite().save(str(tmp_path / "pipeline"))
    cs.open_store(str(tmp_path / "store")).delete("runs")
    here = Path(__file__).parent
    folders = os.pathsep.join(map(str, (here, here.parent)))
    done = subprocess.run(
        [sys.executable, "-c", PIPELINE, str(tmp_path / "pipeline")],
        env={**os.environ, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert f"scored {expected}" in done.stdout, done.stderr[-2000:]
