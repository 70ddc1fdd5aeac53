"""The command of docs/deploy/standalone.md, on a real master with two workers."""

from __future__ import annotations

import re
from pathlib import Path

import pages
import pyarrow.parquet as pq
import pytest
from gateway import Gateway
from integration.standalone import StandaloneCluster

import cerebro_spark as cs
from cerebro_spark.result import Result
from cerebro_spark.store import paths

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(900)]
HOSTS = ["127.0.0.2", "127.0.0.3"]
# The job counts its executors: so that a busy machine is no trouble, it is begun only when both are there.
SETTINGS = """
spark.ui.enabled false
spark.driver.memory 512m
spark.ui.showConsoleProgress false
spark.scheduler.minRegisteredResourcesRatio 1.0
spark.scheduler.maxRegisteredResourcesWaitingTime 600s
"""


def test_the_job_runs_on_two_workers_in_its_own_environment(gateway: Gateway, tmp_path: Path) -> None:
    gateway.configure(SETTINGS)
    place = tmp_path / "store"
    with StandaloneCluster(tmp_path, HOSTS, python_path=()) as cluster:
        command = pages.block("standalone", "bash", under="The job")
        told = gateway.run(command, MASTER=cluster.url, STORE=place)
    store = cs.open_store(str(place))
    (run,) = paths.run_ids(store.list("runs"))
    result = Result(store, run)
    assert result.finished
    assert told.line("best").startswith(f"{result.best_trial.id} ")
    assert told.line("hosts").split() == HOSTS
    homes = told.line("package").split()
    assert len(homes) == 2, "one in each executor's folder"
    assert all(
        re.fullmatch(r".*-work/app-\w+-\d+/\d+/environment/lib/python[\d.]+/site-packages/cerebro_spark", h)
        for h in homes
    )
    assert pq.read_table(place / "scored").num_rows == 20_000
