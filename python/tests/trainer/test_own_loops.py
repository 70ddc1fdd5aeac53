"""What a `train_fn` does twice is refused, what it leaves undone is said, and batches are what they seem."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from trainer_data import columns, feed

from cerebro_spark.errors import ConfigurationError, TrialFailed
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch import own_loops
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

UNIT = Unit("t", 1, "0")


@pytest.fixture(autouse=True)
def _said_again() -> None:
    for tell in (own_loops._warn_of_gradients, own_loops._warn_of_schedule, own_loops._warn_of_limit):
        tell.cache_clear()


def trainer_of(train_fn: Callable[..., Any] | None = None, input_fn: Any = None, **options: Any) -> TorchTrainer:
    schedule = options.pop("schedule", False)

    def model_fn(params: Any) -> TorchModel:
        module = nn.Sequential(nn.Linear(8, 1), nn.Flatten(0))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        if schedule:
            steps = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            chained = torch.optim.lr_scheduler.ChainedScheduler([steps]) if schedule == "chained" else steps
            options["lr_scheduler"] = chained
        return TorchModel(module, optimizer, nn.BCEWithLogitsLoss(), **options)

    hooks = Hooks(model_fn, train_fn=train_fn, input_fn=input_fn)
    made = TorchTrainer(hooks, columns("tabular"), resources=Resources(device="cpu"))
    made.build("t", {})
    return made


def loop(every: int = 1, clears: bool = True, schedules: bool = False, passes: int = 1) -> Callable[..., Any]:
    """A loop that steps after some batches."""

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        total, rows = 0.0, 0
        for _ in range(passes):
            for number, batch in enumerate(batches, 1):
                output = model.module(torch.from_numpy(batch["features"]))
                loss = model.loss(output, torch.from_numpy(batch["label"]).float())
                loss.backward()
                if number % every == 0:
                    model.optimizer.step()
                    if schedules:
                        model.lr_scheduler.step()
                    if clears:
                        model.optimizer.zero_grad()
                total, rows = total + loss.item() * len(output), rows + len(output)
        return {"loss": total, "rows": rows}

    return train_fn


def test_a_second_pass_over_the_batches_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"can be gone through once.*batches = list\(batches\)"):
        trainer_of(loop(passes=2)).train(UNIT, feed("tabular", 0))


def test_batches_have_a_length_and_a_next_one() -> None:
    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        assert len(next(batches)["label"]) > 0
        assert len(list(batches)) == len(batches) - 1
        return {"loss": 1.0, "rows": 1.0}

    trainer_of(train_fn).train(UNIT, feed("tabular", 0))


@pytest.mark.parametrize(("every", "clears", "said"), [(4, True, True), (1, True, False), (1, False, False)])
def test_gradients_that_no_step_has_used_are_said(
    every: int, clears: bool, said: bool, caplog: pytest.LogCaptureFixture
) -> None:
    rows = feed("tabular", 0)
    assert len(rows.sizes) % 4
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        trainer_of(loop(every, clears)).train(UNIT, rows)
    assert ("gradients that no step has used" in caplog.text) == said


@pytest.mark.parametrize(("kind", "name"), [("plain", "StepLR"), ("chained", "ChainedScheduler")])
def test_a_schedule_that_is_stepped_twice_is_refused(kind: str, name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"stepped lr_scheduler \(a {name}\).*scheduler_step='batch'"):
        trainer_of(loop(schedules=True), schedule=kind).train(UNIT, feed("tabular", 0))
    trainer_of(loop(schedules=True), schedule=kind, scheduler_step="batch").train(UNIT, feed("tabular", 0))
    trainer_of(loop(), schedule=kind).train(UNIT, feed("tabular", 0))


def test_a_schedule_that_nobody_steps_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        trainer_of(loop(), schedule=True, scheduler_step="batch").train(UNIT, feed("tabular", 0))
    assert "train_fn has not stepped it" in caplog.text


def test_a_limit_that_nobody_keeps_is_said(caplog: pytest.LogCaptureFixture) -> None:
    clipping = loop()

    def train_fn(model: Any, batches: Any, params: Any) -> Any:
        assert model.clip_norm
        return clipping(model, batches, params)

    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        trainer_of(train_fn, clip_norm=1.0).train(UNIT, feed("tabular", 0))
        assert not caplog.text
        trainer_of(loop(), clip_norm=1.0).train(UNIT, feed("tabular", 0))
    assert "TorchModel.clip_norm is for the built-in loop" in caplog.text


def test_another_number_of_rows_is_refused() -> None:
    def halve(batch: Any, params: Any) -> Any:
        return {name: values[::2] for name, values in batch.items()}

    for train_fn in (None, loop()):
        with pytest.raises((ConfigurationError, TrialFailed), match=r"input_fn returned \d+ rows of 'features' for"):
            trainer_of(train_fn, halve).train(UNIT, feed("tabular", 0))


def test_tensors_are_as_good_as_arrays() -> None:
    def to_tensors(batch: Any, params: Any) -> Any:
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    found = [trainer_of(None, each).train(UNIT, feed("tabular", 0)).values() for each in (None, to_tensors)]
    assert found[0] == found[1]
    assert np.isfinite(found[0]["loss"])
