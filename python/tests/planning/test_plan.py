"""`search.plan(data)` as users call it: on real workers, with what it says, what it leaves and what it refuses."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from plain_loop import logged

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.backend.machines import Cluster
from cerebro_spark.backend.simulated import SimulatedWorker, World
from cerebro_spark.errors import BackendError, CerebroError, ConfigurationError
from cerebro_spark.events import CostEstimated, UnitFinished, WorkAdded
from cerebro_spark.planning.plan import Plan
from cerebro_spark.planning.planner import Planner

slow = [pytest.mark.slow, pytest.mark.timeout(600)]


def model_fn(params: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    width = params["width"]
    net = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1), nn.Flatten(0))
    return cs.TorchModel(net, optimizer=torch.optim.Adam(net.parameters(), lr=params["lr"]), loss=nn.MSELoss())


def rows(count: int = 4000) -> dict[str, Any]:
    x = np.random.default_rng(0).normal(size=(count, 4)).astype("float32")
    return {"x": x, "y": x.sum(axis=1)}


def search(store: Path, model: Any = model_fn, **more: Any) -> Any:
    given = {"features": "x", "label": "y", "validation": 0.25, "backend": cs.LocalBackend(2), "progress": False}
    space = {"lr": hp.loguniform(1e-3, 1e-1), "width": hp.choice([8, 16]), "batch_size": 32}
    trained = {"num_trials": 4, "epochs": 2, "metric": "val_loss", "framework": "torch"}
    return cs.RandomSearch(model, store=str(store), **{"space": space, **trained, **given, **more})


def files(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, cs.Dataset, Plan, list[str], list[str]]:
    """A search, its data, its plan, and what was in the store before and after it."""
    store = tmp_path_factory.mktemp("planned")
    data = cs.prepare(rows(), store=str(store), features="x", label="y", validation=0.25, partitions=2)
    made = search(store, features=None, label=None, validation=None)
    before = files(store)
    return made, data, made.plan(data, price=2.0, deadline=3600.0, seconds=20.0), before, files(store)


class TestPlan:
    pytestmark = slow

    def test_it_says_what_all_options_come_to(self, planned: Any) -> None:
        _, _, plan, _, _ = planned
        table = plan.table
        assert isinstance(table, pd.DataFrame)
        assert {"workers", "threads", "partitions", "memory", "seconds", "low", "high", "cost"} <= set(table.columns)
        assert set(table.workers) == {1, 2}
        first = table.iloc[0]
        assert (first.workers, first.threads) == (plan.best.workers, plan.best.threads)
        assert (table.low <= table.seconds).all()
        assert (table.seconds <= table.high).all()
        assert first.dry_runs > 1
        assert 1e8 < plan.best.memory < 8e9
        assert plan.best.partitions == 2

    def test_it_leaves_nothing_in_the_store(self, planned: Any) -> None:
        _, _, _, before, after = planned
        assert after == before

    def test_it_shows_itself(self, planned: Any) -> None:
        _, _, plan, _, _ = planned
        assert "to be done within 1 h 00 min" in repr(plan)
        page = plan._repr_html_()
        assert "<table" in page
        assert 'src="data:image/png;base64,iVBORw0KGgo' in page
        assert "--num-executors 1" in str(plan.spark_conf())
        (axes,) = plan.plot().axes
        assert axes.get_xlabel() == "workers"
        names = [text.get_text() for text in axes.get_legend().get_texts()]
        assert any(name.startswith("the knee: ") for name in names)

    def test_a_run_follows_it(self, planned: Any, caplog: pytest.LogCaptureFixture) -> None:
        made, data, plan, _, _ = planned
        with caplog.at_level(logging.INFO, "cerebro_spark"):
            result = made.fit(data, plan=plan)
        said = [message for message in caplog.messages if "of the work done after" in message]
        assert any(message.startswith(f"run {result.run_id}: ") and "planned " in message for message in said)
        workers = {unit.worker for unit in result.units.itertuples()}
        assert len(workers) == plan.best.workers
        assert made.backend.num_workers == 2  # the search itself stays as it is
        assert len(result.trials) == 4
        assert result.planned.planned == plan.estimate.seconds
        assert result.planned.took == pytest.approx(result.units.end.max())
        assert cs.Result(made.store, result.run_id).planned == result.planned

    def test_the_run_knows_what_its_units_take_before_the_first_one(self, planned: Any) -> None:
        made, data, plan, _, _ = planned
        result = made.fit(data, plan=plan)
        events = logged(data.store, result.run_id)
        told = {event.trial: event.seconds for event in events if isinstance(event, CostEstimated)}
        params = {event.work.trial: event.work.params for event in events if isinstance(event, WorkAdded)}
        assert {params[trial]["width"] for trial in told} == {each["width"] for each in params.values()}
        assert told == {trial: plan.unit_seconds(params[trial]) for trial in told}
        usual = result.units[result.units.kind == "train"].seconds.median()
        assert all(0 < seconds < 20 * usual for seconds in told.values())
        assert events.index(next(e for e in events if isinstance(e, CostEstimated))) < next(
            index for index, event in enumerate(events) if isinstance(event, UnitFinished)
        )
        assert plan.unit_seconds({"width": 4096, "lr": 0.01, "batch_size": 32}) is None

    def test_a_run_that_is_started_is_held_against_it_too(self, planned: Any) -> None:
        made, data, plan, _, _ = planned
        result = made.start(data, plan=plan).wait()
        assert result.planned.planned == plan.estimate.seconds

    def test_what_does_not_fit_is_refused_before_anything_starts(self, planned: Any, tmp_path: Path) -> None:
        made, _, plan, _, _ = planned
        other = cs.prepare(rows(), store=str(tmp_path), features="x", label="y", validation=0.25, partitions=3)
        with pytest.raises(ConfigurationError, match="the plan has 2 partitions, but the data set has 3"):
            made.fit(other, plan=plan)
        with pytest.raises(ConfigurationError, match=r"must be what search\.plan returned"):
            made.fit(other, plan="fast")
        with pytest.raises(ConfigurationError, match="`plan` and `replay` are both given"):
            made.fit(other, plan=plan, replay="r1")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_sample_on_a_laptop_plans_for_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = search(tmp_path)
    plan = made.plan(
        pd.DataFrame({"x": list(rows()["x"]), "y": rows()["y"]}),
        rows=40_000_000,
        hosts=8,
        cores=16,
        memory="64g",
        network="10Gb",
        seconds=15.0,
    )
    assert plan.best.workers == 4  # as many as there are trials
    assert plan.best.partitions == 4
    assert plan.estimate.seconds > 600
    assert files(tmp_path) == []
    monkeypatch.setattr(cs.LocalBackend, "machines", Cluster(1, 2))
    with pytest.raises(ConfigurationError, match=r"4 workers with \d+ threads each, but there are 2 cores"):
        made.fit(rows(), plan=plan)


def test_a_sample_that_is_too_small_is_refused(tmp_path: Path) -> None:
    made = search(tmp_path)
    with pytest.raises(ConfigurationError, match=r"with batches of 32 that is too few to tell what 7500\d* rows take"):
        made.plan(rows(400), rows=1_000_000)
    assert files(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    def broken(params: dict[str, Any]) -> Any:
        raise ValueError(f"{params['width']} hidden units do not fit")

    with pytest.raises(CerebroError, match="hidden units do not fit"):
        search(tmp_path, broken).plan(rows(), seconds=10.0)
    assert files(tmp_path) == []


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"deadline": -1.0}, "`deadline` is -1.0"),
        ({"deadline": datetime.fromtimestamp(time.time() - 60)}, "which is over"),
        ({"deadline": "tomorrow"}, "`deadline` is 'tomorrow'"),
        ({"budget": 5.0}, "what a worker costs is not known"),
        ({"budget": 5.0, "price": 0.0}, "`price` is 0.0"),
        ({"price": "cheap"}, "`price` is 'cheap'"),
        ({"rows": 0}, "`rows` is 0"),
        ({"hosts": 0}, "`hosts` is 0"),
        ({"cores": 1.5}, "`cores` is 1.5"),
        ({"hosts": 2, "memory": "lots"}, "`memory` is 'lots'"),
        ({"network": "fast"}, "`network` is 'fast'"),
        ({"failure_rate": 1.0}, "`failure_rate` is 1.0"),
        ({"seconds": 0}, "`seconds` is 0"),
    ],
)
def test_bad_arguments_are_refused_by_name(tmp_path: Path, wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        search(tmp_path).plan(rows(), **wrong)
    assert files(tmp_path) == []


def test_a_backend_without_workers_cannot_measure(tmp_path: Path) -> None:
    simulated = cs.SimulatedBackend([SimulatedWorker("w0")], World(cost=lambda params: 1.0))
    with pytest.raises(BackendError, match="plan with a LocalBackend or a SparkBackend"):
        search(tmp_path, backend=simulated).plan(rows())


@pytest.mark.jvm
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_spark_cluster_is_planned_and_followed(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame(pd.DataFrame({"x": [one.tolist() for one in rows()["x"]], "y": rows()["y"]}))
    made = search(tmp_path, backend=cs.SparkBackend(spark))
    plan = made.plan(frame, seconds=25.0)
    assert plan.best.workers * plan.best.threads <= 2
    assert plan.best.partitions == plan.best.workers
    assert files(tmp_path) == []
    result = made.fit(frame, plan=plan)
    assert len({unit.worker for unit in result.units.itertuples()}) == plan.best.workers


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_trials_that_train_together_are_planned(tmp_path: Path) -> None:
    space = {"lr": hp.loguniform(1e-3, 1e-1), "width": 8, "batch_size": 32}
    plan = search(tmp_path, space=space, fuse=4, num_trials=8).plan(rows(), seconds=20.0)
    assert plan.best.width == 4
    assert plan.estimate.seconds > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_that_train_a_trial_together_are_planned_and_do_so(tmp_path: Path) -> None:
    made = search(tmp_path, num_trials=1, workers_per_trial=2)
    plan = made.plan(rows(), seconds=20.0)
    assert (plan.best.workers, plan.best.group) == (2, 2)
    assert any("2 workers together do" in sentence for sentence in plan.why)
    result = made.fit(rows(), plan=plan)
    assert set(result.units[result.units.kind == "train"].group) == {2}
    with pytest.raises(ConfigurationError, match="`workers_per_trial` is 5, but there are 2 workers"):
        search(tmp_path, workers_per_trial=5).plan(rows())


@pytest.mark.parametrize(
    ("partitions", "threads", "said"),
    [(2, None, "is 3, but there are 2 partitions to train on"), (4, 4, "is 3, but there are 2 workers")],
)
def test_groups_larger_than_any_option_has_are_refused_before_units_are_measured(
    tmp_path: Path, partitions: int, threads: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[Any] = []
    monkeypatch.setattr(Planner, "plan", lambda *asked: measured.append(asked))
    data = cs.prepare(rows(64), store=str(tmp_path), features="x", label="y", validation=0.25, partitions=partitions)
    given = {"features": None, "label": None, "validation": None, "resources": cs.Resources(threads=threads)}
    with pytest.raises(ConfigurationError, match=f"`workers_per_trial` {said}"):
        search(tmp_path, workers_per_trial=3, **given).plan(data, cores=8, seconds=5.0)
    assert not measured
