"""A tracker for MLflow. It talks to the server in a thread of its own, and never holds up a run."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from cerebro_spark.errors import CerebroError
from cerebro_spark.result import Result
from cerebro_spark.tune.trackers.base import Params, Tracker, flat_params, require
from cerebro_spark.tune.trackers.call_queue import CallQueue
from cerebro_spark.types import Objective, TrialId

_SECONDS_TO_CLOSE = 10.0
_LONGEST_PARAM, _LONGEST_TAG, _MOST_PARAMS, _MOST_RUNS = 500, 5000, 100, 1000

_PARENT = "mlflow.parentRunId"


class MLflowTracker(Tracker):
    """An MLflow run a search, and one nested in it a trial: params, metrics by epoch, and the best model.

    The best model is a folder "best_model" of artifacts: download it, and `cs.load_result(folder)` gives its Result.
    The active run of this process is left alone. A thread of its own talks to the server, so that a slow server does
    not hold up the run.

    A run of Hyperopt or Optuna that was interrupted goes on in the MLflow runs that it has: in the newest one of the
    experiment with its id, and in those of its trials that have not failed. If there is none, a new one is made.

    Args:
        experiment: The name of the experiment; it is made if it is not there. Defaults to "cerebro_spark".
        tracking_uri: The address of the server. None, the default, means the one that MLflow is configured with.
        save_model: Whether to keep the best model as an artifact. Defaults to True.
        patience: Seconds that the server has at the end of the run for what is left. Defaults to 600.

    Raises:
        MissingDependency: MLflow is not installed.
    """

    def __init__(
        self,
        experiment: str = "cerebro_spark",
        *,
        tracking_uri: str | None = None,
        save_model: bool = True,
        patience: float = 600.0,
    ) -> None:
        require("MLflowTracker", "mlflow")
        self.experiment = experiment
        self.tracking_uri = tracking_uri
        self.save_model = save_model
        self.patience = patience
        self._calls: CallQueue | None = None
        self._client: Any = None
        self._experiment_id = ""
        self._parent = ""
        self._children: dict[TrialId, str] = {}
        self._params: dict[TrialId, Params] = {}

    # -- what is heard, in the driver's thread

    def start(self, run_id: str, objective: Objective) -> None:
        self._open().put(lambda: self._begin(run_id, objective))

    def resume(self, run_id: str, objective: Objective) -> None:
        self._open().put(lambda: self._go_on(run_id, objective))

    def epoch(self, trial: TrialId, params: Params, epoch: int, metrics: Mapping[str, float]) -> None:
        at = int(time.time() * 1000)
        self._queue().put(lambda: self._log(trial, params, epoch, metrics, at))

    def failed(self, trial: TrialId, params: Params, error: str) -> None:
        self._queue().put(lambda: self._fail(trial, params, error))

    def finish(self, result: Result) -> None:
        self._queue().put(lambda: self._finish(result))
        self._queue().wait(self.patience)

    def close(self) -> None:
        calls, self._calls = self._calls, None
        if calls is not None:
            calls.put(lambda: self._end("KILLED"))
            calls.close(min(self.patience, _SECONDS_TO_CLOSE))

    def _open(self) -> CallQueue:
        self._children, self._params = {}, {}
        self._calls = CallQueue("mlflow")
        self._calls.put(self._connect)
        return self._calls

    def _queue(self) -> CallQueue:
        assert self._calls is not None, "start comes first"
        return self._calls

    # -- what is done about it, in the thread of the calls

    def _connect(self) -> None:
        from mlflow.tracking import MlflowClient

        self._client = MlflowClient(tracking_uri=self.tracking_uri)
        known = self._client.get_experiment_by_name(self.experiment)
        self._experiment_id = known.experiment_id if known else self._client.create_experiment(self.experiment)

    def _go_on(self, run_id: str, objective: Objective) -> None:
        """Go on with the runs of an earlier driver, which it ended or left as they were."""
        found = [run for run in self._runs_with("cerebro.run", run_id) if _PARENT not in run.data.tags]
        if not found:
            self._begin(run_id, objective)
            return
        self._parent = str(found[0].info.run_id)
        self._client.update_run(self._parent, "RUNNING")
        for run in self._runs_with(_PARENT, self._parent):
            trial = run.data.tags.get("cerebro.trial")
            if trial and trial not in self._children and run.info.status != "FAILED":
                self._children[trial] = str(run.info.run_id)
                self._client.update_run(self._children[trial], "RUNNING")

    def _runs_with(self, tag: str, value: str) -> list[Any]:
        """The runs of the experiment with this value of a tag, the newest first."""
        found: list[Any] = []
        wanted, order, token = f"tags.`{tag}` = '{value}'", ["attributes.start_time DESC"], None
        while True:
            page = self._client.search_runs(
                [self._experiment_id], wanted, max_results=_MOST_RUNS, order_by=order, page_token=token
            )
            found += page
            token = page.token
            if not token:
                return found

    def _begin(self, run_id: str, objective: Objective) -> None:
        tags = {"cerebro.run": run_id, "cerebro.metric": objective.metric, "cerebro.mode": objective.mode}
        self._parent = self._run_named(run_id, tags)

    def _run_named(self, name: str, tags: Mapping[str, str]) -> str:
        run = self._client.create_run(self._experiment_id, run_name=name, tags=dict(tags))
        return str(run.info.run_id)

    def _child(self, trial: TrialId, params: Params) -> str:
        """The MLflow run of a trial. MLflow's params never change; those of a trial may (PBT): then a tag tells."""
        if trial not in self._children:
            self._children[trial] = self._run_named(trial, {_PARENT: self._parent, "cerebro.trial": trial})
            self._log_params(self._children[trial], params)
        elif params != self._params.get(trial, params):  # of a run that goes on they are not known yet
            self._client.set_tag(self._children[trial], "cerebro.params", json.dumps(flat_params(params)))
        self._params[trial] = params
        return self._children[trial]

    def _log_params(self, run: str, params: Params) -> None:
        from mlflow.entities import Param

        named = [Param(_allowed(name), str(value)[:_LONGEST_PARAM]) for name, value in flat_params(params).items()]
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
            try:
                best = result.best_trial
            except CerebroError as error:
                self._client.set_tag(self._parent, "cerebro.error", str(error)[:_LONGEST_TAG])
                return
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


def _allowed(name: str) -> str:
    """A name with only the characters that MLflow allows.

    >>> _allowed("recall@5")
    'recall_5'
    """
    return re.sub(r"[^\w\-. :/]", "_", name)
