"""What a trainer does beyond the law, in a process of each framework: sharing, metrics, failures, memory."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from trainer_process import FRAMEWORKS, FrameworkProcess

pytestmark = pytest.mark.slow


def gpus() -> bool:
    return Path("/dev/nvidia0").exists()


COUNTED = {"accuracy", "auc", "precision", "recall", "f1_score_0", "iou", "top", "largest", "click_auc"}


@pytest.fixture(scope="module", params=reversed(FRAMEWORKS))
def process(request: pytest.FixtureRequest) -> Iterator[FrameworkProcess]:
    process = FrameworkProcess(request.param)
    process.framework = request.param
    yield process
    process.close()


def test_trials_that_differ_in_numbers_share_one_trace(process: FrameworkProcess) -> None:
    seen = process.call("shared_and_alone")

    assert seen["together"] == seen["alone"], "sharing changes no bit"
    assert len(set(seen["alone"])) == 8, "the numbers matter"
    if process.framework != "keras-torch":
        assert seen["models"] == 1
    assert seen["builds"] == 8, "the second visit builds nothing"
    traced = process.framework == "keras-tensorflow"
    assert seen["traces"] == (1 if traced else 0)


def test_a_gpu_that_is_not_there_is_said(process: FrameworkProcess) -> None:
    if gpus():
        pytest.skip("this machine has GPUs")
    assert "ConfigurationError: device is 'cuda:3', but" in process.call("device_error", name="cuda:3")
    assert process.call("device_error", name="cpu") == "no error"


@pytest.mark.parametrize("case", ["adam", "weighted", "masks"])
def test_a_partition_may_be_larger_than_memory(process: FrameworkProcess, tmp_path: Path, case: str) -> None:
    held, mapped = process.call("mapped_unit", case=case, folder=str(tmp_path))

    assert mapped == held


def test_what_closes_over_params_is_not_shared(process: FrameworkProcess) -> None:
    seen = process.call("closures")

    assert seen["models"] == 2
    assert seen["digests"][0] != seen["digests"][1]


def test_least_recently_used_models_go(process: FrameworkProcess) -> None:
    assert process.call("small_memory") == {"models": [1, 2], "same": True}


@pytest.mark.parametrize("cuts", [[90], [45], [1, 2, 60], [13, 26, 39, 52, 65, 78]], ids=len)
@pytest.mark.parametrize("case", ["metrics", "class_metrics", "several", "dropout", "weighted"])
def test_metrics_do_not_depend_on_the_split(process: FrameworkProcess, case: str, cuts: list[int]) -> None:
    cuts = [cut for cut in cuts if cut < 90]
    seen = process.call("split_metrics", case=case, cuts=cuts)

    assert seen["unchanged"], "evaluating leaves the trial as it is"
    assert seen["whole"].keys() == seen["parts"].keys()
    for name, value in seen["whole"].items():
        assert seen["parts"][name] == pytest.approx(value, rel=2e-6), name
        if name in COUNTED and case != "weighted":
            assert seen["parts"][name] == pytest.approx(value, rel=1e-7), f"{name} counts rows, so is exact"


def test_metric_names(process: FrameworkProcess) -> None:
    names = {
        case: set(process.call("split_metrics", case=case, cuts=[])["whole"])
        for case in ("metrics", "several", "dropout")
    }

    if process.framework == "torch":
        assert names == {
            "metrics": {"loss", "accuracy", "precision", "largest"},
            "several": {"loss"},
            "dropout": {"loss"},
        }
    else:
        assert names["metrics"] == {
            "loss",
            "accuracy",
            "auc",
            "precision",
            "recall",
            "root_mean_squared_error",
            "largest",
        }
        assert names["several"] == {"loss", "click_loss", "price_loss", "click_auc", "price_mae"}
        assert names["dropout"] == {"loss"}


def test_predictions_have_the_outputs_names(process: FrameworkProcess) -> None:
    single = process.call("split_metrics", case="classes", cuts=[])["prediction"]
    several = process.call("split_metrics", case="several", cuts=[])["prediction"]

    assert single == {"prediction": [90, 3]}
    assert several.keys() == {"click", "price"}


@pytest.mark.parametrize("case", ["adam", "dropout", "batchnorm", "several", "cnn", "weighted"])
def test_plain_batches_train_as_whole_arrays_do(process: FrameworkProcess, case: str) -> None:
    of_arrays, of_batches = process.call("batches_like_feed", case=case)

    assert of_arrays == of_batches


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"lr": 1e6}, ["TrialFailed", "trial bad", "epoch", "partition 0", "'lr': 1000000.0", "loss"]),
        ({"raises": True}, ["TrialFailed", "no such layer", "'raises': True", "Traceback"]),
        ({"returns": "module"}, ["ConfigurationError", "model_fn must return", "compile", "return"]),
        ({"returns": "class"}, ["ConfigurationError", "model_fn must return"]),
        ({"returns": "plateau"}, ["ConfigurationError"]),
    ],
    ids=["nan", "raises", "uncompiled", "class", "plateau"],
)
def test_a_failing_trial_says_why_and_harms_no_other(
    process: FrameworkProcess, params: dict[str, object], words: list[str]
) -> None:
    seen = process.call("failing", params=params)

    if process.framework == "torch":
        words = [word for word in words if word != "compile"]
    assert [word for word in words if word not in seen["error"]] == [], seen["error"]
    assert seen["unharmed"]


def test_a_warm_start_takes_numbers_from_params(process: FrameworkProcess) -> None:
    seen = process.call("warm_start")

    assert seen["rates"] == [pytest.approx([0.1, 0.01]), pytest.approx([0.025, 0.3])]
    assert seen["same"]
    assert seen["differs"]


@pytest.fixture(scope="module")
def samples() -> dict[str, str]:
    """Checkpoints that were made so far, by framework: another process takes seconds to start."""
    return {}


def foreign_to(process: FrameworkProcess, samples: dict[str, str]) -> str:
    """A checkpoint of PyTorch's for Keras, and one of Keras' for PyTorch."""
    kind = "keras-torch" if process.framework == "torch" else "torch"
    if kind not in samples:
        other = FrameworkProcess(kind)
        samples[kind] = other.call("sample", case="adam")
        other.close()
    return samples[kind]


def test_checkpoints_that_do_not_fit_are_refused(process: FrameworkProcess, samples: dict[str, str]) -> None:
    samples[process.framework] = process.call("sample", case="adam")
    seen = process.call("misfits", foreign=foreign_to(process, samples))

    assert "was written by" in seen["foreign"]
    assert "architecture" in seen["architecture"] or "structure" in seen["architecture"]
    assert "truncated" in seen["truncated"]
    assert "damaged" in seen["digest"]
    assert all(message.startswith("Checkpoint") for message in seen.values())


def test_a_checkpoint_needs_little_memory(process: FrameworkProcess, tmp_path: Path) -> None:
    seen = process.call("checkpoint_memory", target=str(tmp_path / "large.safetensors"))

    assert seen["megabytes"] > 90
    assert max(seen["shares"]) < 1.3, seen


def test_the_process_keeps_its_own_generators(process: FrameworkProcess) -> None:
    assert process.call("process_untouched", case="input_fn")


@pytest.mark.rare
def test_memory_is_flat_over_200_units(process: FrameworkProcess) -> None:
    sizes = process.call("resident_megabytes", units=200)

    early, late = statistics.mean(sizes[2:5]), statistics.mean(sizes[-3:])
    assert late - early < 0.03 * early, f"grew from {early:.0f} to {late:.0f} MB: {sizes}"
