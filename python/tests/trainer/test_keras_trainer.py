"""What Keras trials share and refuse, and what comes out of `model()`, on each backend in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from trainer_process import HERE, FrameworkProcess
from unimported import keys_in

pytestmark = pytest.mark.slow


def names_in(table: str) -> list[str]:
    return keys_in(HERE / "trainer_cases_keras.py", table)


@pytest.fixture(scope="module", params=["tensorflow", "torch"])
def process(request: pytest.FixtureRequest) -> Iterator[FrameworkProcess]:
    process = FrameworkProcess(f"keras-{request.param}")
    yield process
    process.close()


@pytest.mark.parametrize("case", names_in("UNLIKE"))
def test_what_no_variable_holds_is_not_shared(process: FrameworkProcess, case: str) -> None:
    seen = process.call("sharing", table="unlike", case=case)
    first, second, alone = seen["digests"]

    assert second == alone != first
    assert seen["models"] == 2


@pytest.mark.parametrize("case", names_in("ALIKE"))
def test_trials_that_differ_in_numbers_share(process: FrameworkProcess, case: str) -> None:
    seen = process.call("sharing", table="alike", case=case)
    first, second, alone = seen["digests"]

    assert second == alone != first
    assert seen["models"] == 1


def test_a_model_saves_and_trains_on_in_keras(process: FrameworkProcess, tmp_path: Path) -> None:
    seen = process.call("saved_by_keras", target=str(tmp_path / "model.keras"))

    assert seen == {"decay": pytest.approx(0.1), "steps": 9, "same": True}


def test_kept_tensors_change_nothing_and_can_be_forgotten(process: FrameworkProcess) -> None:
    seen = process.call("kept_arrays", case="adam")
    (without, nothing, _), (kept_digest, kept, forgotten) = seen["0"], seen[str(1 << 30)]

    assert kept_digest == without
    assert nothing == forgotten == 0
    assert kept == (1 if process.framework == "keras-tensorflow" else 0)


def test_an_empty_partition_counts_nothing(process: FrameworkProcess) -> None:
    sums, weights = process.call("empty_partition")

    assert sums == weights == {"loss": 0.0, "accuracy": 0.0}


def test_a_metric_may_not_be_named_loss(process: FrameworkProcess) -> None:
    assert process.call("error_of", case="named_loss").startswith("ConfigurationError: a metric is named 'loss'")


def test_checkpoints_of_other_models_are_refused_by_name(process: FrameworkProcess, tmp_path: Path) -> None:
    seen = process.call("other_optimizers", folder=str(tmp_path))

    assert seen.keys() == {"adam", "rmsprop", "batchnorm"}
    for name, message in seen.items():
        assert message.startswith("CheckpointError")
        assert f"{name}.safetensors" in message
        assert "in the file only" in message
