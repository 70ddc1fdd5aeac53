"""What MLflow, TensorBoard and a CSV file hold after a search, read back by their own readers."""

from __future__ import annotations

import csv
import json
import logging
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_fmin import LossyBackend, torch_fn
from small_search import small_dataset, torch_model_fn

from cerebro_spark import hp
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import BackendError
from cerebro_spark.result import Result, load_result
from cerebro_spark.tune.optuna import optimize
from cerebro_spark.tune.searches import GridSearch
from cerebro_spark.tune.trackers import CSVTracker, MLflowTracker, TensorBoardTracker, Tracker
from cerebro_spark.tune.trackers.call_queue import CallQueue
from cerebro_spark.types import Objective

pytestmark = pytest.mark.timeout(600)
OBJECTIVE = Objective("val_loss", "min")
SPACE = {
    "x": hp.choice([0, 1, 2]),
    "net": hp.choice([{"kind": "wide", "layers": [8, 4]}, {"kind": "flat"}]),
    "batch_size": 16,
}


def loss_of(params: Mapping[str, Any], epoch: int) -> float:
    if params["x"] == 2:
        return 1 / 0
    return float(params["x"]) + len(params["net"]) + 1 / epoch


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture
def search(dataset: Dataset, tmp_path: Path) -> Callable[..., Result]:
    """Three trials of each net: four go well, two fail."""

    def searched(*trackers: Tracker) -> Result:
        options: dict[str, Any] = {"metric": "val_loss", "epochs": 2, "trackers": trackers, "progress": False}
        backend = LossyBackend(loss_of)
        result: Result = GridSearch(
            torch_fn, space=SPACE, store=str(tmp_path / "store"), backend=backend, **options
        ).fit(dataset)
        return result

    return searched


# -- CSV


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_csv_file_has_every_epoch_and_every_failure(search: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "deep" / "runs.csv"
    result = search(CSVTracker(path))
    rows = rows_of(path)
    epochs = {(row["trial"], int(row["epoch"])): float(row["val_loss"]) for row in rows if row["epoch"]}
    known = {(row.trial, row.epoch): row.val_loss for row in result.history.itertuples()}
    assert epochs == known
    assert len(epochs) == 8
    failed = [row for row in rows if row["error"]]
    assert {row["param_x"] for row in failed} == {"2"}
    assert len(failed) == 2
    assert {row["run"] for row in rows} == {result.run_id}
    assert {row["param_net.layers"] for row in rows} == {"[8, 4]", ""}


@pytest.mark.slow
def test_a_second_run_goes_on_in_the_same_file(search: Callable[..., Result], tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    tracker = CSVTracker(path)
    first = search(tracker)
    before = rows_of(path)
    second = search(tracker)
    assert rows_of(path)[: len(before)] == before
    assert [row["run"] for row in rows_of(path)] == [first.run_id] * 10 + [second.run_id] * 10


def test_a_metric_that_is_called_like_a_column_gets_another(tmp_path: Path) -> None:
    tracker = CSVTracker(tmp_path / "runs.csv")
    tracker.start("r1", OBJECTIVE)
    tracker.epoch("t0", {}, 1, {"error": 0.3, "val_error": 0.4})
    tracker.failed("t1", {}, "it broke")
    told = [(row["trial"], row["error"], row["metric_error"], row["val_error"]) for row in rows_of(tracker.path)]
    assert told == [("t0", "", "0.3", "0.4"), ("t1", "it broke", "", "")]


words = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), min_size=1, max_size=4)
reports = st.tuples(words, st.dictionaries(words, st.integers() | words, max_size=2), st.floats(allow_nan=False))


@settings(max_examples=drawn(25))
@given(told=st.lists(reports, max_size=6), cut=st.integers(0, 6))
def test_whatever_it_is_told_the_file_holds(
    told: list[Any], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("csv") / "runs.csv"
    for run, part in (("r1", told[:cut]), ("r2", told[cut:])):
        tracker = CSVTracker(path)
        tracker.start(run, OBJECTIVE)
        for trial, params, value in part:
            tracker.epoch(trial, params, 1, {"val_loss": value})
    rows = rows_of(path)
    assert [(row["trial"], float(row["val_loss"])) for row in rows] == [(trial, value) for trial, _, value in told]
    for row, (_, params, _) in zip(rows, told, strict=True):
        assert {n: v for n, v in row.items() if n.startswith("param_") and v} == {
            f"param_{name}": str(value) for name, value in params.items()
        }


# -- TensorBoard


@pytest.fixture
def _no_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard's own switch for doing without TensorFlow, which takes seconds to load."""
    monkeypatch.setitem(sys.modules, "tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))


def shown_hparams(log_dir: Path) -> dict[str, Any]:
    """What TensorBoard's hparams page gets from its server: by session, (hparams, status, metrics)."""
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    many = plugin_event_multiplexer.EventMultiplexer().AddRunsFromDirectory(str(log_dir))
    many.Reload()
    provider = data_provider.MultiplexerDataProvider(many, str(log_dir))
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=100, allowed_statuses=api_pb2.Status.values(), col_params=[]
    )
    server = backend_context.Context(base_plugin.TBContext(data_provider=provider))
    answer = list_session_groups.Handler(context.RequestContext(), server, "", request).run()
    return {
        group.sessions[0].name: (
            {name: getattr(value, str(value.WhichOneof("kind"))) for name, value in group.hparams.items()},
            api_pb2.Status.Name(group.sessions[0].status),
            {metric.name.tag: metric.value for metric in group.metric_values},
        )
        for group in answer.session_groups
    }


@pytest.mark.slow
@pytest.mark.usefixtures("_no_tensorflow")
def test_tensorboard_shows_scalars_and_hparams(search: Callable[..., Result], tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_dir = tmp_path / "board"
    result = search(TensorBoardTracker(log_dir))
    for trial, rows in result.history.groupby("trial"):
        events = EventAccumulator(str(log_dir / result.run_id / str(trial)))
        events.Reload()
        for metric in ("loss", "val_loss", "val_score"):
            found = [(e.step, e.tensor_proto.float_val[0]) for e in events.Tensors(metric)]
            assert found == [(row.epoch, pytest.approx(getattr(row, metric))) for row in rows.itertuples()]
            assert events.SummaryMetadata(metric).plugin_data.plugin_name == "scalars"
    shown = shown_hparams(log_dir)
    assert len(shown) == 6
    row: Any
    for row in result.trials.itertuples():
        hparams, status, metrics = shown[f"{result.run_id}/{row.trial}"]
        assert (hparams["x"], hparams["net.kind"]) == (row.param_x, row.param_net["kind"])
        assert status == ("STATUS_FAILURE" if row.status == "failed" else "STATUS_SUCCESS")
        if row.status != "failed":
            assert metrics["val_loss"] == pytest.approx(row.val_loss)


@pytest.mark.slow
def test_tensorboard_files_need_neither_tensorflow_nor_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from cerebro_spark.tune.trackers import TensorBoardTracker as T; from cerebro_spark.types import"
        " Objective; t = T(sys.argv[1]); t.start('r1', Objective('loss', 'min')); t.epoch('t0', {'lr': 0.1}, 1,"
        " {'loss': 0.5}); t.finish(None); assert not {'tensorflow', 'torch', 'keras'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=300)
    assert list((tmp_path / "r1" / "t0").glob("events.out.tfevents.*"))


@pytest.mark.slow
@pytest.mark.usefixtures("_no_tensorflow")
def test_a_run_that_stops_early_is_shown_as_far_as_it_came(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    tracker.start("r1", OBJECTIVE)
    tracker.epoch("t0", {"lr": 0.1, "nested": {"deep": None}}, 1, {"val_loss": 0.5})
    tracker.close()
    hparams = {"lr": 0.1, "nested.deep": "None"}
    assert shown_hparams(tmp_path) == {"r1/t0": (hparams, "STATUS_UNKNOWN", {"val_loss": 0.5})}


# -- MLflow


@pytest.fixture
def mlflow_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    pytest.importorskip("mlflow")
    # However slow the disk is: what is not written when a run breaks off would come while the tests look.
    monkeypatch.setattr("cerebro_spark.tune.trackers.mlflow._SECONDS_TO_CLOSE", 300.0)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    client.create_experiment("churn", artifact_location=f"file://{tmp_path}/artifacts")
    yield client
    client._tracking_client.store.engine.dispose()


# SQLAlchemy's words for what MLflow does with it.
mlflow_test = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")]


def runs_of(client: Any) -> tuple[Any, dict[str, Any]]:
    """The parent, and the others by trial."""
    (experiment,) = [each.experiment_id for each in client.search_experiments() if each.name == "churn"]
    found = client.search_runs([experiment])
    (parent,) = [run for run in found if "mlflow.parentRunId" not in run.data.tags]
    nested = [run for run in found if run is not parent]
    assert {run.data.tags["mlflow.parentRunId"] for run in nested} <= {parent.info.run_id}
    return parent, {run.data.tags["cerebro.trial"]: run for run in nested}


class TestMLflow:
    pytestmark = mlflow_test

    def test_params_metrics_by_epoch_and_the_best_model(
        self, dataset: Dataset, mlflow_client: Any, tmp_path: Path
    ) -> None:
        search = GridSearch(
            torch_model_fn,
            space={"lr": hp.choice([0.001, 0.05]), "batch_size": 16},
            store=str(tmp_path / "store"),
            backend=LocalBackend(2, threads=1),
            metric="val_loss",
            epochs=2,
            trackers=[MLflowTracker("churn", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")],
            progress=False,
        )
        result = search.fit(dataset)
        parent, nested = runs_of(mlflow_client)
        assert (parent.info.run_name, parent.info.status) == (result.run_id, "FINISHED")
        assert {trial: run.data.params["lr"] for trial, run in nested.items()} == {
            row.trial: str(row.param_lr) for row in result.trials.itertuples()
        }
        for trial, rows in result.history.groupby("trial"):
            measured = mlflow_client.get_metric_history(nested[str(trial)].info.run_id, "val_loss")
            assert [(m.step, m.value) for m in measured] == [(row.epoch, row.val_loss) for row in rows.itertuples()]
            assert nested[str(trial)].info.status == "FINISHED"
        assert parent.data.tags["cerebro.best_trial"] == result.best_trial.id
        assert parent.data.metrics["val_loss"] == result.best_trial.metrics["val_loss"]
        folder = mlflow_client.download_artifacts(parent.info.run_id, "best_model", str(tmp_path))
        loaded = load_result(folder)
        assert loaded.best_trial.id == result.best_trial.id
        for ours, theirs in zip(result.model().parameters(), loaded.model().parameters(), strict=True):
            assert ours.tolist() == theirs.tolist()

    def test_failed_trials_changed_params_and_odd_names(self, mlflow_client: Any, tmp_path: Path) -> None:
        tracker = MLflowTracker("churn", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
        tracker.start("r1", OBJECTIVE)
        tracker.epoch("t0", {"lr": 0.1, "net": {"layers": [8] * 900}}, 1, {"val_loss": 1.0, "recall@5": 0.5})
        tracker.epoch("t0", {"lr": 0.2, "net": {"layers": [8] * 900}}, 2, {"val_loss": 0.5, "recall@5": 0.6})
        tracker.failed("t1", {"lr": -1}, "no such rate")
        tracker.close()
        parent, nested = runs_of(mlflow_client)
        assert parent.info.status == nested["t0"].info.status == "KILLED"
        assert (nested["t1"].info.status, nested["t1"].data.tags["cerebro.error"]) == ("FAILED", "no such rate")
        assert nested["t0"].data.params["lr"] == "0.1"
        assert json.loads(nested["t0"].data.tags["cerebro.params"])["lr"] == 0.2
        assert nested["t0"].data.metrics["recall_5"] == 0.6

    def test_a_led_run_that_goes_on_is_one_run_there_with_all_epochs_of_its_trials(
        self, dataset: Dataset, mlflow_client: Any, tmp_path: Path
    ) -> None:
        options: dict[str, Any] = {"metric": "val_loss", "epochs": 3, "n_trials": 4, "max_concurrent": 2}

        def go(lives: int | None = None) -> Result:
            study = optuna.create_study(
                sampler=optuna.samplers.RandomSampler(seed=5), pruner=optuna.pruners.NopPruner()
            )
            tracker = MLflowTracker("churn", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db", save_model=False)
            space = {"x": optuna.distributions.FloatDistribution(-3, 3)}
            where: dict[str, Any] = {"store": str(tmp_path / "store"), "data": dataset, "run_id": "mine"}
            backend = LossyBackend(lambda params, epoch: params["x"] ** 2 + 1 / epoch, lives=lives)
            return optimize(study, torch_fn, space, backend=backend, trackers=[tracker], **where, **options)

        for lives in (26, 9):
            with pytest.raises(BackendError, match="all workers are gone"):
                go(lives)
            parent, nested = runs_of(mlflow_client)
            assert {run.info.status for run in (parent, *nested.values())} == {"KILLED"}
        result = go()
        again, nested = runs_of(mlflow_client)
        assert (again.info.run_id, again.info.status) == (parent.info.run_id, "FINISHED")
        assert len(mlflow_client.search_runs([again.info.experiment_id])) == 1 + 4, "one a trial"
        assert len(result.history) == 4 * 3
        for trial, rows in result.history.groupby("trial"):
            measured = mlflow_client.get_metric_history(nested[str(trial)].info.run_id, "val_loss")
            assert [(m.step, m.value) for m in measured] == [(row.epoch, row.val_loss) for row in rows.itertuples()]
            assert nested[str(trial)].info.status == "FINISHED"
            assert "cerebro.params" not in nested[str(trial)].data.tags

    def test_a_run_is_looked_for_only_where_it_goes_on(
        self, mlflow_client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("cerebro_spark.tune.trackers.mlflow._MOST_RUNS", 2)  # of one answer of the server
        experiment = mlflow_client.get_experiment_by_name("churn").experiment_id

        def hear(how: str, run: str, epoch: int) -> str:
            """A driver hears of a run and dies without a word; returns the id of its run there."""
            tracker = MLflowTracker("churn", tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
            getattr(tracker, how)(run, OBJECTIVE)
            for trial in ("t0", "t1", "t2", "t3"):
                tracker.epoch(trial, {"lr": 0.1}, epoch, {"val_loss": 1 / epoch})
            tracker.failed("t4", {"lr": -1}, "no such rate")
            tracker._queue().wait(300)
            return tracker._parent

        def nested(parent: str) -> list[Any]:
            return list(mlflow_client.search_runs([experiment], f"tags.mlflow.parentRunId = '{parent}'"))

        first, other, second = hear("start", "r1", 1), hear("start", "r2", 1), hear("start", "r1", 1)
        assert len({first, other, second}) == 3, "another store may have a run of that name"
        mlflow_client.set_terminated(second, "KILLED")
        assert hear("resume", "r1", 2) == second
        assert mlflow_client.get_run(second).info.status == "RUNNING"
        assert hear("resume", "r3", 1) not in (first, other, second)
        trials = sorted(run.data.tags["cerebro.trial"] for run in nested(second))
        assert trials == ["t0", "t1", "t2", "t3", "t4", "t4"], "one that has failed is over"
        for run in nested(second):
            steps = [metric.step for metric in mlflow_client.get_metric_history(run.info.run_id, "val_loss")]
            failed = run.data.tags["cerebro.trial"] == "t4"
            assert (run.info.status, steps) == (("FAILED", []) if failed else ("RUNNING", [1, 2]))
        assert [len(nested(run)) for run in (first, other)] == [5, 5]

    def test_a_server_that_is_not_there_is_one_warning(
        self, search: Callable[..., Result], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        with caplog.at_level(logging.WARNING, "cerebro_spark"):
            result = search(MLflowTracker(tracking_uri="http://127.0.0.1:9"))
        assert result.finished
        assert [record.message.split(" failed ")[0] for record in caplog.records].count("MLflowTracker") == 1


# -- trackers that fail


class Broken(Tracker):
    def __init__(self, method: str) -> None:
        self.calls = 0
        setattr(self, method, self._break)

    def _break(self, *args: Any) -> None:
        self.calls += 1
        raise OSError("the disk is full")


SLOW = [pytest.param(method, marks=pytest.mark.slow) for method in ("start", "failed", "close")]


@pytest.mark.parametrize("method", ["epoch", "finish", *SLOW])
def test_a_tracker_that_fails_warns_once_and_stops_nobody(
    method: str, search: Callable[..., Result], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    broken, path = Broken(method), tmp_path / "runs.csv"
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        result = search(broken, CSVTracker(path))
    assert result.finished
    assert broken.calls == 1
    assert len([record for record in caplog.records if "the disk is full" in record.message]) == 1
    assert len(rows_of(path)) == 10, "the others hear everything"


def test_a_csv_file_that_cannot_be_written_stops_nobody(
    search: Callable[..., Result], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        assert search(CSVTracker(tmp_path / "file" / "runs.csv")).finished
    assert [record.message.startswith("CSVTracker failed") for record in caplog.records].count(True) == 1


def test_a_queue_of_calls_says_once_what_went_wrong_and_then_does_nothing_more() -> None:
    done: list[int] = []
    calls = CallQueue("test")
    calls.put(lambda: done.append(1))
    calls.put(lambda: done.append(1 // 0))
    calls.put(lambda: done.append(2))
    with pytest.raises(ZeroDivisionError):
        calls.wait(300)
    calls.put(lambda: done.append(3))
    calls.wait(300)
    calls.close(300)
    calls._thread.join(300)
    assert done == [1]
    assert not calls._thread.is_alive()


def test_an_endless_call_is_not_waited_for() -> None:
    calls, never = CallQueue("test"), threading.Event()

    def wait() -> None:
        never.wait(300)

    calls.put(wait)
    with pytest.raises(TimeoutError, match=r"not all was done after 0\.01 s"):
        calls.wait(0.01)
    never.set()
    calls._thread.join(300)
    assert not calls._thread.is_alive()
