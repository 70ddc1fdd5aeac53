"""Trackers for MLflow, TensorBoard and CSV files: `trackers=[...]` of any search. They watch, and never hold up a run.

What a tracker raises is caught by whoever calls it (see `tracking.py`): one warning, and the run goes on without it.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cerebro_spark.errors import MissingDependency
from cerebro_spark.result import Result
from cerebro_spark.tune.courier import Courier
from cerebro_spark.tune.tracking import Tracker
from cerebro_spark.types import Objective, TrialId

Params = Mapping[str, Any]
_OWN_COLUMNS = ("run", "trial", "epoch", "error")


class CSVTracker(Tracker):
    """A row an (run, trial, epoch) in a file, with all metrics and params. What the file held before stays.

    A column that comes up late is added to the rows before it, so the file is written anew then.

    >>> folder = tempfile.mkdtemp()
    >>> tracker = CSVTracker(f"{folder}/runs.csv")
    >>> tracker.start("r1", Objective("val_loss", "min"))
    >>> tracker.epoch("t0", {"lr": 0.1}, 1, {"val_loss": 0.5})
    >>> print(Path(f"{folder}/runs.csv").read_text().strip())
    run,trial,epoch,error,val_loss,param_lr
    r1,t0,1,,0.5,0.1
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._run = ""
        self._rows: list[dict[str, str]] = []
        self._columns: dict[str, None] = {}

    def start(self, run_id: str, objective: Objective) -> None:
        self._run = run_id
        self._rows, self._columns = [], dict.fromkeys(_OWN_COLUMNS)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            with self.path.open(newline="") as file:
                known = csv.DictReader(file)
                self._rows = list(known)
                self._columns = dict.fromkeys([*(known.fieldnames or ()), *self._columns])
        self._write_all()

    def epoch(self, trial: TrialId, params: Params, epoch: int, metrics: Mapping[str, float]) -> None:
        shown = {f"metric_{name}" if name in _OWN_COLUMNS else name: value for name, value in metrics.items()}
        self._add({"trial": trial, "epoch": epoch, **shown, **_prefixed(params)})

    def failed(self, trial: TrialId, params: Params, error: str) -> None:
        self._add({"trial": trial, "error": error, **_prefixed(params)})

    def _add(self, values: Mapping[str, Any]) -> None:
        row = {name: str(value) for name, value in {"run": self._run, **values}.items()}
        late = [name for name in row if name not in self._columns]
        self._rows.append(row)
        self._columns.update(dict.fromkeys(late))
        if late:
            self._write_all()
        else:
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, list(self._columns)).writerow(row)

    def _write_all(self) -> None:
        """All at once, so that whoever reads the file never sees half of it."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(self._columns))
        writer.writeheader()
        writer.writerows(self._rows)
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        beside.write_text(text.getvalue(), newline="")
        beside.replace(self.path)


class TensorBoardTracker(Tracker):
    """Scalars by epoch and hyperparameters for `tensorboard --logdir LOG_DIR`: a folder a trial, under one a run.

    It writes TensorBoard's files with TensorBoard's own parts, and loads neither TensorFlow nor PyTorch.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        _need("TensorBoardTracker", "tensorboard.summary.writer.record_writer")
        self.log_dir = Path(log_dir)
        self._run = ""
        self._files: dict[TrialId, Path] = {}
        self._failed: set[TrialId] = set()

    def start(self, run_id: str, objective: Objective) -> None:
        self._run, self._files, self._failed = run_id, {}, set()
        (self.log_dir / run_id).mkdir(parents=True, exist_ok=True)

    def epoch(self, trial: TrialId, params: Params, epoch: int, metrics: Mapping[str, float]) -> None:
        from tensorboard.compat.proto import summary_pb2, types_pb2
        from tensorboard.plugins.scalar.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        self._begin(trial, params)
        summary = summary_pb2.Summary()
        for name, value in metrics.items():
            tensor = make_tensor_proto(value, dtype=types_pb2.DT_FLOAT)
            summary.value.add(tag=name, tensor=tensor, metadata=create_summary_metadata(name, ""))
        self._write(trial, epoch, summary=summary)

    def failed(self, trial: TrialId, params: Params, error: str) -> None:
        self._begin(trial, params)
        self._end(trial, "STATUS_FAILURE")
        self._failed.add(trial)

    def finish(self, result: Result) -> None:
        for trial in self._files:
            if trial not in self._failed:
                self._end(trial, "STATUS_SUCCESS")

    def _begin(self, trial: TrialId, params: Params) -> None:
        """The file of a trial, which begins with its hyperparameters."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        if trial in self._files:
            return
        folder = self.log_dir / self._run / trial
        folder.mkdir(parents=True, exist_ok=True)
        self._files[trial] = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.0"
        self._write(trial, 0, file_version="brain.Event:2")
        self._write(trial, 0, summary=hparams_pb(_simple(params), trial_id=f"{self._run}/{trial}"))

    def _end(self, trial: TrialId, status: str) -> None:
        from tensorboard.compat.proto import summary_pb2
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        info = plugin_data_pb2.SessionEndInfo(status=api_pb2.Status.Value(status), end_time_secs=time.time())
        about = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=info))
        summary = summary_pb2.Summary()
        summary.value.add(tag=metadata.SESSION_END_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR)
        self._write(trial, 0, summary=summary)

    def _write(self, trial: TrialId, step: int, **what: Any) -> None:
        """A file is open no longer than it takes: a run may have thousands of trials."""
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        event = event_pb2.Event(wall_time=time.time(), step=step, **what)
        with self._files[trial].open("ab") as file:
            RecordWriter(file).write(event.SerializeToString())


class MLflowTracker(Tracker):
    """An MLflow run a search, and one nested in it a trial: params, metrics by epoch, and the best model.

    The best model is a folder "best_model" of artifacts: download it, and `cs.load_result(folder)` gives its Result.
    `tracking_uri` is what MLflow goes by if not given. The experiment is made if it is not there; the active run of
    this process is left alone.
    A thread of its own talks to the server, so that a slow one holds nobody up; at the end of the run it has `patience`
    seconds for what is left.
    """

    def __init__(
        self,
        experiment: str = "cerebro_spark",
        *,
        tracking_uri: str | None = None,
        save_model: bool = True,
        patience: float = 600.0,
    ) -> None:
        _need("MLflowTracker", "mlflow")
        self.experiment = experiment
        self.tracking_uri = tracking_uri
        self.save_model = save_model
        self.patience = patience
        self._courier: Courier | None = None
        self._client: Any = None
        self._experiment_id = ""
        self._parent = ""
        self._children: dict[TrialId, str] = {}
        self._params: dict[TrialId, Params] = {}

    # -- what is heard, in the driver's thread

    def start(self, run_id: str, objective: Objective) -> None:
        self._children, self._params = {}, {}
        self._courier = Courier("mlflow")
        self._courier.send(lambda: self._begin(run_id, objective))

    def epoch(self, trial: TrialId, params: Params, epoch: int, metrics: Mapping[str, float]) -> None:
        at = int(time.time() * 1000)
        self._sent().send(lambda: self._log(trial, params, epoch, metrics, at))

    def failed(self, trial: TrialId, params: Params, error: str) -> None:
        self._sent().send(lambda: self._fail(trial, params, error))

    def finish(self, result: Result) -> None:
        self._sent().send(lambda: self._finish(result))
        self._sent().wait(self.patience)

    def close(self) -> None:
        courier, self._courier = self._courier, None
        if courier is not None:
            courier.send(lambda: self._end("KILLED"))
            courier.close(min(self.patience, _SECONDS_TO_CLOSE))

    def _sent(self) -> Courier:
        assert self._courier is not None, "start comes first"
        return self._courier

    # -- what is done about it, in the courier's thread

    def _begin(self, run_id: str, objective: Objective) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self.tracking_uri)
        known = self._client.get_experiment_by_name(self.experiment)
        self._experiment_id = known.experiment_id if known else self._client.create_experiment(self.experiment)
        tags = {"cerebro.run": run_id, "cerebro.metric": objective.metric, "cerebro.mode": objective.mode}
        self._parent = self._run_named(run_id, tags)

    def _run_named(self, name: str, tags: Mapping[str, str]) -> str:
        run = self._client.create_run(self._experiment_id, run_name=name, tags=dict(tags))
        return str(run.info.run_id)

    def _child(self, trial: TrialId, params: Params) -> str:
        """The MLflow run of a trial. MLflow's params never change; those of a trial may (PBT): then a tag tells."""
        if trial not in self._children:
            self._children[trial] = self._run_named(trial, {"mlflow.parentRunId": self._parent, "cerebro.trial": trial})
            self._log_params(self._children[trial], params)
        elif params != self._params[trial]:
            self._client.set_tag(self._children[trial], "cerebro.params", json.dumps(_simple(params)))
        self._params[trial] = params
        return self._children[trial]

    def _log_params(self, run: str, params: Params) -> None:
        from mlflow.entities import Param

        named = [Param(_allowed(name), str(value)[:_LONGEST_PARAM]) for name, value in _simple(params).items()]
        for first in range(0, len(named), _MOST_PARAMS):
            self._client.log_batch(run, params=named[first : first + _MOST_PARAMS])

    def _log(self, trial: TrialId, params: Params, epoch: int, metrics: Mapping[str, float], at: int) -> None:
        from mlflow.entities import Metric

        values = [Metric(_allowed(name), value, at, epoch) for name, value in metrics.items()]
        self._client.log_batch(self._child(trial, params), metrics=values)

    def _fail(self, trial: TrialId, params: Params, error: str) -> None:
        run = self._child(trial, params)
        self._client.set_tag(run, "cerebro.error", error[:_LONGEST_TAG])
        self._client.set_terminated(run, "FAILED")
        del self._children[trial]

    def _finish(self, result: Result) -> None:
        trials = result.trials
        if (trials["epoch"].notna() & (trials["status"] != "failed")).any():
            best = result.best_trial
            self._log_params(self._parent, best.params)
            self._client.set_tag(self._parent, "cerebro.best_trial", best.id)
            for name, value in best.metrics.items():
                self._client.log_metric(self._parent, _allowed(name), value, step=best.epoch)
            if self.save_model:
                with tempfile.TemporaryDirectory() as folder:
                    result.save(f"{folder}/model", trials=[best.id])
                    self._client.log_artifacts(self._parent, f"{folder}/model", "best_model")
        self._end("FINISHED")

    def _end(self, status: str) -> None:
        runs, self._children, self._parent = [*self._children.values(), self._parent], {}, ""
        for run in runs:
            if run:
                self._client.set_terminated(run, status)


_SECONDS_TO_CLOSE = 10.0
_LONGEST_PARAM, _LONGEST_TAG, _MOST_PARAMS = 500, 5000, 100


def _need(tracker: str, module: str) -> None:
    """Say now, and not in the middle of a run, that a library is missing."""
    from importlib import import_module

    try:
        import_module(module)
    except ImportError as error:
        raise MissingDependency(
            f"{tracker} needs {module.partition('.')[0]}, which cannot be imported ({error}):"
            " pip install 'cerebro-spark[trackers]'"
        ) from error


def _simple(params: Params, before: str = "") -> dict[str, bool | int | float | str]:
    """Params as one flat dict of numbers, booleans and strings.

    >>> _simple({"lr": 0.1, "net": {"kind": "cnn", "layers": [64, 32]}, "clip": None})
    {'lr': 0.1, 'net.kind': 'cnn', 'net.layers': '[64, 32]', 'clip': 'None'}
    """
    simple: dict[str, bool | int | float | str] = {}
    for name, value in params.items():
        if isinstance(value, Mapping):
            simple.update(_simple(value, f"{before}{name}."))
        else:
            simple[before + name] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return simple


def _prefixed(params: Params) -> dict[str, Any]:
    return {f"param_{name}": value for name, value in _simple(params).items()}


def _allowed(name: str) -> str:
    """A name with only the characters that MLflow allows.

    >>> _allowed("recall@5")
    'recall_5'
    """
    return re.sub(r"[^\w\-. :/]", "_", name)
