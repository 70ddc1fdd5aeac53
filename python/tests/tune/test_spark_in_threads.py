"""The Spark session of the process is found in threads that have none of their own, as those of Spark's validators."""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pytest
from kept_workers import KeptWorkers
from sparks import SparkHouse

import cerebro_spark as cs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.backend.spark import SparkBackend
from cerebro_spark.doctor.spark import examine_cluster
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.spark_session import active_session
from cerebro_spark.store.hadoop_settings import client_settings, name_node
from cerebro_spark.tune.training import default_backend

pytestmark = [
    pytest.mark.jvm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # Spark's validators leave their pool of threads to the collector.
    pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning"),
]
T = TypeVar("T")


def in_a_thread(work: Callable[[], T]) -> T:
    with ThreadPool(1) as pool:
        return pool.apply(work)


def line_fn(params: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    module = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    return cs.TorchModel(module, torch.optim.SGD(module.parameters(), lr=params["lr"]), nn.MSELoss())


def points(rows: int = 60) -> pd.DataFrame:
    frame = pd.DataFrame(np.random.default_rng(1).normal(size=(rows, 2)), columns=["a", "b"])
    frame["y"] = frame.a + frame.b
    return frame


def test_the_session_of_the_process_is_found_in_a_thread(spark: Any) -> None:
    found_here: Any = active_session()
    assert found_here.sparkContext is spark.sparkContext
    assert in_a_thread(active_session) is spark
    assert in_a_thread(SparkBackend)._spark is spark
    found = in_a_thread(default_backend)
    assert isinstance(found, SparkBackend)
    assert found.num_workers == 2


def test_a_search_runs_on_the_session_of_its_data(spark: Any) -> None:
    other = spark.newSession()
    found = default_backend(other.createDataFrame(points(4)))
    assert isinstance(found, SparkBackend)
    assert found._spark is other
    for data in (None, points(4), spark.createDataFrame(points(4)).a):
        assert isinstance(found := default_backend(data), SparkBackend)
        assert found._spark is spark


def test_hadoop_settings_of_the_session_are_found_in_a_thread(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    settings = {"fs.defaultFS": "hdfs://prod", "dfs.nameservices": "prod", "dfs.ha.namenodes.prod": "nn1,nn2"}
    before = {name: configuration.get(name) for name in settings}
    for name, value in settings.items():
        configuration.set(name, value)
    try:
        assert in_a_thread(name_node) == "hdfs://prod"
        assert in_a_thread(client_settings)["dfs.ha.namenodes.prod"] == "nn1,nn2"
        assert in_a_thread(lambda: cs.open_store("hdfs:///user/me")).url == "hdfs://prod/user/me"
    finally:
        for name, value in before.items():
            configuration.unset(name) if value is None else configuration.set(name, value)


class Witness:
    """Sees every run that begins on a SparkBackend, and how many go on at a time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs, self.most = 0, 0
        self._going: set[int] = set()
        self._lock = threading.Lock()
        begin, close = SparkBackend._begin_run, SparkBackend.close

        def begun(backend: SparkBackend, job: Any, at: float) -> None:
            with self._lock:
                self.runs += 1
                self._going.add(id(backend))
                self.most = max(self.most, len(self._going))
            begin(backend, job, at)

        def closed(backend: SparkBackend) -> None:
            close(backend)
            with self._lock:
                self._going.discard(id(backend))

        monkeypatch.setattr(SparkBackend, "_begin_run", begun)
        monkeypatch.setattr(SparkBackend, "close", closed)


def validated(frame: Any, folder: Path, **options: Any) -> Any:
    """Fit a split of Spark with two searches at a time, and the best of them once more."""
    from pyspark.ml.evaluation import RegressionEvaluator
    from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit

    search = cs.GridSearch(
        line_fn,
        space={"lr": 0.1},
        store=str(folder),
        metric="loss",
        epochs=1,
        features=["a", "b"],
        label="y",
        **options,
    )
    grid = ParamGridBuilder().addGrid(search.probabilityCol, ["p", "q"]).build()
    judge = RegressionEvaluator(labelCol="y")
    split = TrainValidationSplit(estimator=search, estimatorParamMaps=grid, evaluator=judge, parallelism=2, seed=1)
    return split.fit(frame)


def test_searches_in_a_validator_run_on_spark_one_after_another(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness = Witness(monkeypatch)
    fitted = validated(spark.createDataFrame(points()), tmp_path)
    assert len(fitted.validationMetrics) == 2
    assert (witness.runs, witness.most) == (3, 1)


def test_searches_in_a_validator_share_a_backend(spark: Any, tmp_path: Path, kept_backend: KeptWorkers) -> None:
    fitted = validated(spark.createDataFrame(points()), tmp_path, backend=kept_backend(1))
    assert len(fitted.validationMetrics) == 2
    assert [len(list((tmp_path / name).iterdir())) for name in ("runs", "datasets")] == [3, 3]


def test_a_doctor_in_a_thread_does_not_stop_the_session(spark: Any) -> None:
    told = in_a_thread(lambda: list(examine_cluster("local[2]", None, {}, {})))
    assert told
    assert spark.sparkContext._jsc is not None


@pytest.mark.parametrize("how", ["session", "context"])
def test_a_session_that_was_stopped_is_not_taken(how: str, spark_house: SparkHouse) -> None:
    """A context that is stopped by itself leaves its session behind in pyspark."""
    session = spark_house.session("local[2]")
    frame = session.createDataFrame(points(4))
    (session if how == "session" else session.sparkContext).stop()
    for found in (active_session(), in_a_thread(active_session)):
        assert found is None
    for backend in (default_backend(), in_a_thread(default_backend)):
        assert isinstance(backend, LocalBackend)
    with pytest.raises(ConfigurationError, match="there is no active Spark session"):
        in_a_thread(SparkBackend)
    with pytest.raises(ConfigurationError, match="stopped"):
        default_backend(frame)
