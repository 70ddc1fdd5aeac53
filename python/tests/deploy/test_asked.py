"""Where a page's cluster is not at hand: what Spark's own client would ask of it, heard by a server in its place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pages
import pytest
from gateway import HAS_MESOS, Gateway
from hearer import Hearer

pytestmark = [pytest.mark.jvm, pytest.mark.slow, pytest.mark.timeout(600)]


def written(command: str) -> dict[str, str]:
    """The settings that a command of a page gives."""
    return dict(re.findall(r"--conf (spark\.[\w.]+)=(\S+)", command))


def asked_of_kubernetes(tmp_path: Path, under: str) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """The driver's pod, the settings that go with it, and those that the page gives."""
    command = pages.block("kubernetes", "bash", under=under)
    with Hearer({}) as hearer:
        environment = {"MASTER": f"k8s://http://{hearer.address}", "IMAGE": "example.com/search:1"}
        Gateway(tmp_path / "home").run(command, timeout=500, KUBECONFIG="/nowhere", **environment)
    kinds: dict[str, list[dict[str, Any]]] = {}
    for _, path, body in hearer.heard:
        assert path.startswith("/api/v1/namespaces/search/")
        kinds.setdefault(body["kind"], []).append(body)
    (pod,) = kinds["Pod"]
    (properties,) = [
        maps["data"]["spark.properties"] for maps in kinds["ConfigMap"] if "spark.properties" in maps["data"]
    ]
    lines = (line.replace("\\:", ":").partition("=") for line in properties.splitlines() if not line.startswith("#"))
    return pod, {name: value for name, _, value in lines}, written(command)


def test_kubernetes_is_asked_for_the_driver_of_the_page(tmp_path: Path) -> None:
    pod, settings, page = asked_of_kubernetes(tmp_path, "The job")
    assert pod["spec"]["serviceAccountName"] == "search"
    (container,) = pod["spec"]["containers"]
    assert container["image"] == "example.com/search:1"
    assert container["resources"]["limits"]["memory"] == "3072Mi", "2g and 1g beside it"
    job = ["local:///opt/job/spark_submit_job.py", "--store", "s3://bucket/churn", "--port", "4850"]
    assert container["args"][-len(job) :] == job
    page["spark.kubernetes.container.image"] = "example.com/search:1"
    assert {name: settings[name] for name in page} == page


def test_kubernetes_hears_of_the_gpus_of_executors(tmp_path: Path) -> None:
    _, settings, page = asked_of_kubernetes(tmp_path, "GPUs")
    gpus = {name: value for name, value in page.items() if ".resource.gpu." in name}
    assert len(gpus) == 4
    assert {name: settings[name] for name in gpus} == gpus


@pytest.mark.skipif(not HAS_MESOS, reason="Spark 4 has no Mesos")
def test_the_dispatcher_of_mesos_is_sent_the_job_of_the_page(tmp_path: Path) -> None:
    command = pages.block("mesos", "bash", under="Cluster mode")
    answer = {
        "action": "CreateSubmissionResponse",
        "serverSparkVersion": "3.5.9",
        "submissionId": "driver-1",
        "success": True,
    }
    with Hearer(answer) as hearer:
        Gateway(tmp_path / "home").run(command, timeout=500, DISPATCHER=f"mesos://{hearer.address}")
    (request,) = [body for _, path, body in hearer.heard if path == "/v1/submissions/create"]
    job = ["--store", "hdfs://namenode:8020/churn", "--rows", "20000"]
    assert request["appArgs"][-len(job) :] == job
    sent = request["sparkProperties"]
    assert "hdfs://namenode:8020/jobs/spark_submit_job.py" in (request["appResource"], *request["appArgs"])
    assert {name: sent[name] for name in written(command)} == written(command)
    assert sent["spark.executor.memory"] == "1g"
