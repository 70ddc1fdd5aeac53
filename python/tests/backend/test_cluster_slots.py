"""How many tasks an executor has places for: cores and GPUs both count, as Spark counts them."""

from __future__ import annotations

import pytest

from cerebro_spark.backend.driver.spark_cluster import tasks_an_executor


def settings(gpus: str, share: str) -> dict[str, str]:
    return {"spark.executor.resource.gpu.amount": gpus, "spark.task.resource.gpu.amount": share}


@pytest.mark.parametrize(
    ("cores", "task_cpus", "said", "expected"),
    [
        (4, 1, {}, 4),
        (4, 2, {}, 2),
        (3, 2, {}, 1),
        (4, 1, settings("2", "1"), 2),
        (4, 1, settings("4", "2"), 2),
        (4, 1, settings("2", "0.5"), 4),
        (9, 1, settings("2", "0.3"), 6),  # three shares fit on one GPU, and none on two halves of two
        (1, 1, settings("2", "1"), 1),
        (4, 1, {"spark.executor.resource.gpu.amount": "2"}, 4),  # tasks do not ask for any
        (
            8,
            1,
            settings("4", "1") | {"spark.executor.resource.fpga.amount": "1", "spark.task.resource.fpga.amount": "1"},
            1,
        ),
    ],
)
def test_places_for_tasks(cores: int, task_cpus: int, said: dict[str, str], expected: int) -> None:
    assert tasks_an_executor(cores, task_cpus, said) == expected
