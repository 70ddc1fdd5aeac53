"""No metric of Keras is taken for one that keeps its state in attributes, on each backend in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from trainer_process import FrameworkProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["tensorflow", "torch"])
def process(request: pytest.FixtureRequest) -> Iterator[FrameworkProcess]:
    process = FrameworkProcess(f"keras-{request.param}")
    yield process
    process.close()


def test_all_metrics_of_keras_are_measured(process: FrameworkProcess) -> None:
    measured = process.call("keras_metrics.measure", sparse=False) + process.call("keras_metrics.measure", sparse=True)

    assert len(measured) > 35
    assert sorted(measured) == process.call("keras_metrics.names")
