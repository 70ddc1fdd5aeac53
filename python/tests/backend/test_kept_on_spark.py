"""Spark tasks that stay between runs: they give their places back to whoever needs one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kept_workers import KeptWorkers
from no_training import leave_processes
from small_search import small_dataset, small_rows, torch_model_fn

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.backend.remote import RemoteBackend
from cerebro_spark.backend.spark import SparkBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.slots import make_room

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(900)]
# A test that waits this long has failed.
FOREVER = 3600.0


def frame(spark: Any, rows: int = 200) -> Any:
    data = small_rows(rows)
    pairs = zip(data["x"], data["y"], strict=True)
    return spark.createDataFrame([(row.tolist(), float(label)) for row, label in pairs], "x array<float>, y float")


def search(backend: RemoteBackend, folder: Path) -> cs.GridSearch:
    return cs.GridSearch(
        torch_model_fn,
        space={"lr": hp.choice([0.01, 0.02]), "batch_size": 32},
        backend=backend,
        store=str(folder / "store"),
        features="x",
        label="y",
        validation=0.25,
        metric="val_loss",
        epochs=1,
        progress=False,
    )


def leave_tasks(backend: SparkBackend, dataset: Dataset) -> set[str]:
    """Have a run that trains nothing leave its tasks, and return their names."""
    left = {parent.handle.name for parent in leave_processes(backend, dataset)}
    assert len(left) == backend.num_workers
    return left


def names(backend: SparkBackend) -> set[str]:
    assert backend._parents is not None
    return {parent.handle.name for parent in backend._parents._parents if not parent.leaving}


def finished(result: Any) -> Sequence[str]:
    return [str(status) for status in result.trials.status]


def test_two_searches_of_a_frame_and_a_count_between_them_on_two_places(spark: Any, tmp_path: Path) -> None:
    """The second search prepares the frame again, which needs a place; the count gets one after the idle time."""
    df = frame(spark)
    with SparkBackend(spark, 2, idle_timeout=1.0) as backend:
        assert finished(search(backend, tmp_path).fit(df)) == ["finished"] * 2
        assert df.count() == 200
        assert finished(search(backend, tmp_path).fit(df)) == ["finished"] * 2
    assert df.count() == 200


def test_jobs_of_our_own_get_their_places_at_once(spark: Any, tmp_path: Path, kept_backend: KeptWorkers) -> None:
    """Tasks would stay for ever: each step below waits for them to go, or hangs."""
    df, dataset = frame(spark), small_dataset(tmp_path)
    result = search(kept_backend(1), tmp_path).fit(dataset)
    with SparkBackend(spark, 2, idle_timeout=FOREVER) as backend:
        leave_tasks(backend, dataset)
        measured = result.evaluate(df)
        assert names(backend) == set()
        leave_tasks(backend, dataset)
        scored = result.transform(df)
        assert names(backend) == set()
        assert scored.count() == 200
        leave_tasks(backend, dataset)
        cs.prepare(df, store=str(tmp_path / "again"), features="x", label="y")
        assert names(backend) == set()
    assert np.isfinite(measured["loss"])


def test_a_prepared_data_set_is_searched_again_by_tasks_that_are_there(spark: Any, tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    with SparkBackend(spark, 2, idle_timeout=FOREVER) as backend:
        kept = []
        for _ in range(2):
            assert finished(search(backend, tmp_path).fit(dataset)) == ["finished"] * 2
            kept.append(names(backend))
        assert kept[0] == kept[1]
        assert len(kept[0]) == 2
    assert spark.sparkContext.parallelize(range(4), 2).count() == 4, "the places are free again"


def test_a_place_that_is_free_leaves_the_tasks_where_they_are(spark: Any, tmp_path: Path) -> None:
    with SparkBackend(spark, 1, idle_timeout=FOREVER) as backend:
        before = leave_tasks(backend, small_dataset(tmp_path))
        cs.prepare(frame(spark), store=str(tmp_path / "again"), features="x", label="y")
        make_room(spark.sparkContext)
        assert names(backend) == before


def test_another_backend_of_the_session_gets_the_places(spark: Any, tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    with SparkBackend(spark, 2, idle_timeout=FOREVER) as first, SparkBackend(spark, 2) as second:
        leave_tasks(first, dataset)
        leave_tasks(second, dataset)
        assert names(first) == set()


def test_a_session_that_is_stopped_takes_its_tasks_along(spark_house: Any, tmp_path: Path) -> None:
    session = spark_house.session("local[2]")
    with SparkBackend(session, 2, idle_timeout=FOREVER) as backend:
        leave_tasks(backend, small_dataset(tmp_path))
        assert backend._parents is not None
        handles = [parent.handle for parent in backend._parents._parents]
        session.stop()
        assert all(handle.ended.wait(300) for handle in handles)
