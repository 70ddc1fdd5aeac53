"""A tracker that writes a CSV file."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cerebro_spark.tune.trackers.base import Params, Tracker, flat_params
from cerebro_spark.types import Objective, TrialId

_OWN_COLUMNS = ("run", "trial", "epoch", "error")


class CSVTracker(Tracker):
    """A row an (run, trial, epoch) in a file, with all metrics and params. What the file held before stays.

    A column that comes up late is added to the rows before it, so the file is written anew then.

    Args:
        path: The file; it is made if it is not there, with the folder that it is in.

    >>> import tempfile
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
        self._add({"trial": trial, "epoch": epoch, **shown, **_param_columns(params)})

    def failed(self, trial: TrialId, params: Params, error: str) -> None:
        self._add({"trial": trial, "error": error, **_param_columns(params)})

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
        """All at once, so that a reader of the file never sees half of it."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(self._columns))
        writer.writeheader()
        writer.writerows(self._rows)
        beside = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        beside.write_text(text.getvalue(), newline="")
        beside.replace(self.path)


def _param_columns(params: Params) -> dict[str, Any]:
    return {f"param_{name}": value for name, value in flat_params(params).items()}
