"""A search runs with PyTorch alone: no Spark, no TensorFlow, no Petastorm anywhere, workers included."""

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
import cerebro_spark as cs
from cerebro_spark import hp
from small_search import small_rows, torch_model_fn

search = cs.RandomSearch(
    torch_model_fn, space={"lr": hp.loguniform(1e-3, 1e-1), "batch_size": 32}, num_trials=2, epochs=1,
    metric="val_loss", backend=cs.LocalBackend(num_workers=1), store=sys.argv[1], features="x", label="y",
    validation=0.25,
)
result = search.fit(small_rows())
assert len(result.transform(small_rows(40))) == 40
assert result.evaluate(small_rows(40))["loss"] > 0
print("finished", result.finished, type(result).__name__)
"""


@pytest.mark.slow
def test_a_local_run_needs_only_torch(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    tests = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(tests), str(tests.parents[1])])}
    check = subprocess.run(
        [sys.executable, "-c", "import pyspark"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert "No module named 'pyspark'" in check.stderr
    script = [sys.executable, "-c", SCRIPT, str(tmp_path / "store")]
    done = subprocess.run(script, env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == "finished True Result", done.stderr
