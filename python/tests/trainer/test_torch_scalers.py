"""A gradient scaler of one's own keeps a scale that no checkpoint has: it is refused once it changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from trainer_data import columns, feed

from cerebro_spark.errors import TrialFailed
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

OFFERED = r"Resources\(precision='float16'\) has one that hops"


def model_fn(params: Any) -> TorchModel:
    module = nn.Linear(8, 1)
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())


def step(model: TorchModel, batch: Any, scaler: GradScaler) -> float:
    features, label = torch.from_numpy(batch["features"]), torch.from_numpy(batch["label"]).float()
    loss = model.loss(model.module(features).flatten(), label)
    model.optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(model.optimizer)
    scaler.update()
    return float(loss.detach()) * len(label)


def scaled_by(scaler: GradScaler | None) -> Any:
    """A train_fn that uses a scaler from outside, or makes one."""

    def train_fn(model: TorchModel, batches: Any, params: Any) -> dict[str, float]:
        own = GradScaler("cpu") if scaler is None else scaler
        rows = [(step(model, batch, own), len(batch["label"])) for batch in batches]
        return {"loss": sum(loss for loss, _ in rows), "rows": sum(count for _, count in rows)}

    return train_fn


def train(train_fn: Any, model_fn: Any = model_fn) -> None:
    hooks = Hooks(model_fn, train_fn=train_fn)
    trainer = TorchTrainer(hooks, columns("tabular"), resources=Resources(device="cpu", threads=1))
    trainer.build("t", {})
    for partition in ("0", "1"):
        trainer.train(Unit("t", 1, partition), feed("tabular", int(partition)))


def test_a_scaler_in_a_closure_is_refused() -> None:
    with pytest.raises(
        TrialFailed, match=rf"(?s)`GradScaler._growth_tracker` changed from 0 to 6.*{OFFERED}.*train_fn.scaler"
    ):
        train(scaled_by(GradScaler("cpu")))


def test_a_scale_that_changes_is_refused() -> None:
    with pytest.raises(TrialFailed, match=rf"(?s)`GradScaler.scale` changed from 8.0 to.*{OFFERED}"):
        train(scaled_by(GradScaler("cpu", init_scale=8.0, growth_interval=1)))


def test_a_scaler_on_a_module_is_refused() -> None:
    def attached(params: Any) -> TorchModel:
        model = model_fn(params)
        model.module.scaler = GradScaler("cpu")
        return model

    def train_fn(model: TorchModel, batches: Any, params: Any) -> dict[str, float]:
        scaler: Any = model.module.scaler
        return {"loss": sum(step(model, batch, scaler) for batch in batches), "rows": 90.0}

    with pytest.raises(TrialFailed, match=OFFERED):
        train(train_fn, attached)


@pytest.mark.parametrize("scaler", [GradScaler("cpu", enabled=False), None], ids=["disabled", "made inside"])
def test_a_scaler_without_a_state_of_its_own_is_allowed(scaler: Any) -> None:
    train(scaled_by(scaler))


def test_a_scaler_that_is_not_used_is_allowed() -> None:
    unused = GradScaler("cpu")

    def train_fn(model: TorchModel, batches: Any, params: Any) -> dict[str, float]:
        return {"loss": float(len(list(batches))), "rows": 90.0 if unused.is_enabled() else 1.0}

    train(train_fn)
