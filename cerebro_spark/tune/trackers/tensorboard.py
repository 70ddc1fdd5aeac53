"""A tracker that writes files for TensorBoard. It loads neither TensorFlow nor PyTorch."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cerebro_spark.result import Result
from cerebro_spark.tune.trackers.base import Params, Tracker, flat_params, require
from cerebro_spark.types import Objective, TrialId


class TensorBoardTracker(Tracker):
    """Scalars by epoch and hyperparameters for `tensorboard --logdir LOG_DIR`: a folder a trial, under one a run.

    It writes TensorBoard's files with TensorBoard's own parts, and loads neither TensorFlow nor PyTorch.

    Args:
        log_dir: The folder for the runs; it is made if it is not there.

    Raises:
        MissingDependency: TensorBoard is not installed.
    """

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        require("TensorBoardTracker", "tensorboard.summary.writer.record_writer")
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
        self._write(trial, 0, summary=hparams_pb(flat_params(params), trial_id=f"{self._run}/{trial}"))

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
