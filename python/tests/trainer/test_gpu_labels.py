"""Labels that would end a process on a GPU are refused before they get there. Skipped without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not Path("/dev/nvidia0").exists():
    pytest.skip("needs an NVIDIA GPU, and this machine has none", allow_module_level=True)

import torch
from torch import nn

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.base import Member, TrainedMember
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

ROWS, BATCH = 4096, 128
COLUMNS = Columns({"x": ColumnSpec("float32", (8,))}, {"y": ColumnSpec("int64")})


def make_trainer(loss: Any, outputs: int) -> TorchTrainer:
    def model_fn(params: Any) -> TorchModel:
        module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, outputs))
        return TorchModel(module, torch.optim.Adam(module.parameters(), lr=params["lr"]), loss)

    return TorchTrainer(Hooks(model_fn), COLUMNS, resources=Resources(compile=True))


def feed_of(key: str, classes: int, wrong: int | None = None, place: int = -1) -> Feed:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, classes, ROWS)
    if wrong is not None:
        labels[place] = wrong
    return Feed({"x": draw.normal(size=(ROWS, 8)).astype("float32"), "y": labels}, batch_size=BATCH, key=key)


def members_of(feed: Feed, epoch: int = 1) -> list[Member]:
    return [Member(Unit(name, epoch, feed.key), {"lr": rate}, feed) for name, rate in (("a", 0.1), ("b", 0.2))]


@pytest.mark.parametrize("place", [0, -1])
def test_a_class_number_that_is_too_high_does_not_end_the_process(place: int) -> None:
    trainer = make_trainer(nn.CrossEntropyLoss(), 3)
    if place:
        trainer.build("good", {"lr": 0.1})
        trainer.train(Unit("good", 1, "p0"), feed_of("p0", 3))  # as the rehearsal does
    trainer.build("t", {"lr": 0.1})
    with pytest.raises(ConfigurationError, match=r"label.* is 3 in some rows .* class numbers from 0 to 2"):
        trainer.train(Unit("t", 1, "p1"), feed_of("p1", 3, wrong=3, place=place))
    trainer.build("good", {"lr": 0.1})
    trainer.train(Unit("good", 1, "p0"), feed_of("p0", 3))
    torch.cuda.synchronize()


@pytest.mark.parametrize(("loss", "outputs", "wrong"), [(nn.CrossEntropyLoss(), 3, 3), (nn.BCEWithLogitsLoss(), 1, 2)])
def test_bundles_are_refused_by_name_and_others_go_on(loss: Any, outputs: int, wrong: int) -> None:
    classes = max(outputs, 2)
    trainer = make_trainer(loss, outputs)
    first = trainer.train_together(members_of(feed_of("p0", classes)))
    assert [type(each) for each in first] == [TrainedMember] * 2, first
    for outcome in trainer.train_together(members_of(feed_of("p1", classes, wrong))):
        assert isinstance(outcome, ConfigurationError)
        assert f"label 'y' is {wrong} in some rows (1 of {ROWS:,} values)" in str(outcome)
    again = trainer.train_together(members_of(feed_of("p0", classes)))
    assert [each.saved.digest for each in again] == [each.saved.digest for each in first]  # type: ignore[union-attr]


def test_places_are_given_up_with_the_models_whose_functions_have_changed() -> None:
    trainer = make_trainer(nn.CrossEntropyLoss(), 3)
    first = trainer.train_together(members_of(feed_of("p0", 3)))
    assert any(structure.places for structure in trainer._bundled.values())
    trainer._drop_models()
    assert not any(structure.places for structure in trainer._bundled.values())
    again = trainer.train_together(members_of(feed_of("p0", 3)))
    assert [each.saved.digest for each in again] == [each.saved.digest for each in first]  # type: ignore[union-attr]
