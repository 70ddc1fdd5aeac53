"""The mistake that everybody makes once: the job is sent, and the environment is not."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest
from gateway import Gateway, borrow_libraries

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(900)]


def test_executors_without_the_package_are_told_of_in_words(tmp_path: Path) -> None:
    gateway = Gateway(tmp_path / "home")
    gateway.configure("spark.ui.enabled false\nspark.master local-cluster[1,1,1024]\n")
    venv.create(tmp_path / "bare", symlinks=True)
    borrow_libraries(tmp_path / "bare")
    said = gateway.fail(
        f"spark-submit examples/spark_submit_job.py --store {tmp_path / 'store'} --rows 1000 --workers 1",
        PYSPARK_DRIVER_PYTHON=gateway.python,
        PYSPARK_PYTHON=tmp_path / "bare" / "bin" / "python",
    )
    # spark-submit passes on all that the driver's Python says as output.
    assert "the executors do not have cerebro_spark" in said.out, said.out[-3000:]
    assert "spark.archives" in said.out
