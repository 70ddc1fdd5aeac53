"""A search's engine runs with PyTorch alone: no Spark, no TensorFlow, no Petastorm anywhere, workers included."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKER = """
import sys

from importlib.machinery import PathFinder

class Poor:
    @staticmethod
    def find_spec(name, path=None, target=None):
        missing = {"pyspark", "tensorflow", "keras", "petastorm", "hyperopt", "hdfs_native", "fsspec"}
        return None if name.split(".")[0] in missing else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Poor if finder is PathFinder else finder for finder in sys.meta_path]
"""
SCRIPT = """
import sys
from pathlib import Path
import cerebro_spark as cs
from cerebro_spark.backend.job import Job
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Settings
from cerebro_spark.search import FixedSearch
from cerebro_spark.trainer import Hooks
from small_search import small_dataset, torch_model_fn

dataset = small_dataset(Path(sys.argv[1]))
backend = cs.LocalBackend(num_workers=1)
backend.bind(Job("r1", dataset.store, dataset, Hooks(torch_model_fn)))
search = FixedSearch([{"lr": 0.01, "batch_size": 32}] * 2, 1)
engine = Engine(search, Settings(dataset.partitions, 1), backend, EventLog(dataset.store, "r1"))
engine.run()
print("finished", engine.scheduler.finished)
"""


@pytest.mark.slow
def test_a_local_run_needs_only_torch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    tests = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(tests), str(tests.parents[1])])}
    check = subprocess.run(
        [sys.executable, "-c", "import pyspark"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert "No module named 'pyspark'" in check.stderr
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "finished True", done.stderr
