"""Which Python executors run: on this machine this one where nobody says otherwise, elsewhere what they were told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sparks import QUICK_JVM

from cerebro_spark.data.cluster import use_this_python


def a_context(master: str, told: str | None = None, python: str = "python3") -> Any:
    return SimpleNamespace(
        master=master, pythonExec=python, getConf=lambda: {"spark.pyspark.python": told} if told else {}
    )


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*, 3]", "local-cluster[2,1,1024]"])
def test_a_spark_of_this_machine_runs_this_python(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    context = a_context(master)
    use_this_python(context)
    assert context.pythonExec == sys.executable


@pytest.mark.parametrize(
    "context",
    [
        a_context("yarn"),
        a_context("spark://host:7077"),
        a_context("k8s://https://host"),
        a_context("local[2]", told="/opt/environment/bin/python"),
        a_context("local[2]", python="./environment/bin/python"),
    ],
    ids=lambda context: f"{context.master} {context.pythonExec} {dict(context.getConf())}",
)
def test_what_was_said_holds(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    before = context.pythonExec
    use_this_python(context)
    assert context.pythonExec == before


def test_the_environment_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python3")
    context = a_context("local[2]")
    use_this_python(context)
    assert context.pythonExec == "python3"


SCRIPT = """
import sys
from pyspark.sql import SparkSession
import cerebro_spark as cs
from cerebro_spark import hp

def model_fn(params):
    import torch
    module = torch.nn.Linear(1, 1)
    return cs.TorchModel(module, torch.optim.SGD(module.parameters(), lr=params["lr"]), torch.nn.MSELoss())

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
df = spark.range(40).selectExpr("double(id) / 40 as x", "double(id) / 20 as y")
search = cs.GridSearch(
    model_fn, space={"lr": 0.1}, store=sys.argv[1], metric="loss", epochs=1, features=["x"], label="y", progress=False
)
print("scored", search.fit(df).transform(df).select("prediction").collect()[0][0] > -99)
spark.stop()
"""


@pytest.mark.jvm
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_search_runs_where_the_environment_is_not_activated(tmp_path: Path) -> None:
    """The `python3` of the PATH is one that cannot run anything: data, workers and scoring must do without it."""
    wrong = tmp_path / "bin" / "python3"
    wrong.parent.mkdir()
    wrong.write_text("#!/bin/sh\necho this is the wrong python >&2\nexit 3\n")
    wrong.chmod(0o755)
    java = os.environ.get("JAVA_HOME") or str(Path(str(shutil.which("java"))).resolve().parents[1])
    environment = {
        "PATH": os.pathsep.join([str(wrong.parent), f"{java}/bin", "/usr/bin", "/bin"]),
        "JAVA_HOME": java,
        "HOME": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": QUICK_JVM,
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "store")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert "scored True" in done.stdout, done.stderr[-3000:]
