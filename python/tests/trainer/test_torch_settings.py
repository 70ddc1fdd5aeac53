"""Settings of PyTorch that a trial changes hop with it, and reach no other trial."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from trainer_data import columns, feed

from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.base import Member, TrainedMember
from cerebro_spark.trainer.checkpoints.arrays import MemorySource
from cerebro_spark.trainer.torch.settings import capture_settings, claim_settings, restore_settings, using_settings
from cerebro_spark.trainer.torch.tensors import TensorSource, read_tensor
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

UNIT, MEASURING = Unit("t", 1, "0"), Unit("t", 1, "0", "eval")

# How a setting is changed, and how it is read.
CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "dtype": (lambda: torch.set_default_dtype(torch.float64), torch.get_default_dtype),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "precision": (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "determinism": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        lambda: (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
    ),
    "anomalies": (lambda: torch.autograd.set_detect_anomaly(True, check_nan=False), torch.is_anomaly_enabled),
    "autocast": (lambda: torch.set_autocast_enabled("cpu", True), lambda: torch.is_autocast_enabled("cpu")),
    "denormals": (
        lambda: torch.set_flush_denormal(True),
        lambda: float(torch.tensor(1e-39) * 1) == 0.0,
    ),
    "benchmark": (
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        lambda: torch.backends.cudnn.benchmark,
    ),
}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    claim_settings()
    yield
    restore_settings({})


def make(params: Any, **options: Any) -> TorchModel:
    module = nn.Sequential(nn.Linear(8, 1), nn.Flatten(0)).float()
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=params.get("lr", 0.1)), nn.MSELoss(), **options)


def trainer_of(model_fn: Any, **hooks: Any) -> TorchTrainer:
    return TorchTrainer(Hooks(model_fn, **hooks), columns("tabular"), resources=Resources(device="cpu"))


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("kind", CHANGES)
def test_what_model_fn_sets_hops_with_its_trial_and_reaches_no_other(kind: str) -> None:
    change, read = CHANGES[kind]
    own, seen = read(), []

    def model_fn(params: Any) -> TorchModel:
        assert read() == own
        if params["sets"]:
            change()
        return make(params)

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        seen.append(read())
        return {"loss": 1.0, "rows": 1.0}

    trainer, other = trainer_of(model_fn, train_fn=train_fn), trainer_of(model_fn, train_fn=train_fn)
    files = {}
    for sets in (True, False):
        trainer.build("t", {"sets": sets})
        assert read() == own
        files[sets] = io.BytesIO()
        trainer.save(files[sets])
    for sets in (True, False, True):
        other.load("t", {"sets": sets}, files[sets].getvalue())
        other.train(UNIT, feed("tabular", 0))
        assert read() == own
    assert seen[0] == seen[2] != own
    assert seen[1] == own


def test_a_default_device_reaches_neither_other_trials_nor_checkpoints() -> None:
    seen = []

    def model_fn(params: Any) -> TorchModel:
        model = make(params)
        if params["sets"]:
            torch.set_default_device("meta")
        return model

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        seen.append(torch.zeros(1).device.type)
        with torch.no_grad():
            for parameter in model.module.parameters():
                parameter.add_(1)
        return {"loss": 1.0, "rows": 1.0}

    trainer, other = trainer_of(model_fn, train_fn=train_fn), trainer_of(model_fn, train_fn=train_fn)
    for sets in (True, False):
        trainer.build("t", {"sets": sets})
        trainer.train(UNIT, feed("tabular", 0))
        assert torch.zeros(1).device.type == "cpu"
        file = io.BytesIO()
        saved = trainer.save(file)
        other.load("t", {"sets": sets}, file.getvalue())
        assert other.save(io.BytesIO()).digest == saved.digest
        other.train(Unit("t", 2, "0"), feed("tabular", 0))
    assert seen == ["meta", "meta", "cpu", "cpu"]
    assert torch.get_default_device().type == "cpu"


def test_what_is_read_from_a_checkpoint_is_on_the_host_whatever_the_default() -> None:
    source = TensorSource({"weight": torch.arange(3.0)})
    plain = MemorySource(list(source._arrays.values()), source.meta)
    with torch.device("meta"):
        read = read_tensor(plain, "model/weight")
    assert read.tolist() == [0.0, 1.0, 2.0]


def test_what_train_fn_sets_goes_on_with_its_trial_and_what_eval_fn_sets_does_not() -> None:
    seen = []

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        seen.append(torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("high")
        return {"loss": 1.0, "rows": 1.0}

    def eval_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        torch.set_float32_matmul_precision("medium")
        return {"loss": 1.0, "rows": 1.0}

    trainer = trainer_of(make, train_fn=train_fn, eval_fn=eval_fn)
    trainer.build("t", {})
    for epoch in (1, 2):
        trainer.train(Unit("t", epoch, "0"), feed("tabular", 0))
        trainer.evaluate(MEASURING, feed("tabular", 0))
        assert torch.get_float32_matmul_precision() == "highest"
    assert seen == ["highest", "high"]


def test_trials_with_other_settings_share_no_model_and_no_bundle() -> None:
    def model_fn(params: Any) -> TorchModel:
        if params["lr"] > 0.2:
            torch.use_deterministic_algorithms(True, warn_only=True)
        return make(params)

    rates = [0.1, 0.2, 0.3, 0.4]
    trainer = trainer_of(model_fn)
    members = [Member(Unit(f"t{rate}", 1, "0"), {"lr": rate}, feed("tabular", 0)) for rate in rates]
    outcomes = trainer.train_together(members)
    alone = trainer_of(model_fn)
    for rate, outcome in zip(rates, outcomes, strict=True):
        assert isinstance(outcome, TrainedMember)
        assert outcome.width == (2 if rate < 0.25 else 1)
        alone.build(f"t{rate}", {"lr": rate})
        alone.train(Unit(f"t{rate}", 1, "0"), feed("tabular", 0))
        assert alone.save(io.BytesIO()).digest == outcome.saved.digest
    assert len({id(trainer.models.find_build({"lr": rate})[0]) for rate in rates}) == 2


def test_a_checkpoint_says_nothing_of_settings_that_are_the_process_s_own() -> None:
    trainer = trainer_of(make)
    trainer.build("t", {})
    file = io.BytesIO()
    trainer.save(file)
    assert b"settings" not in file.getvalue()
    assert b"default_dtype" not in file.getvalue()


def test_settings_are_put_back_after_a_block_that_fails() -> None:
    def fail() -> None:
        with using_settings({"settings": {"float32_matmul_precision": "medium"}}):
            assert capture_settings() == {"settings": {"float32_matmul_precision": "medium"}}
            raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    assert capture_settings() == {}
