"""The trainer with which the engine is measured keeps the contract of all trainers."""

from __future__ import annotations

import io

import numpy as np

from benchmarks.engine import CopyingTrainer
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.feed import Columns, ColumnSpec, Feed
from cerebro_spark.types import Unit


def test_it_builds_trains_saves_and_loads() -> None:
    made = CopyingTrainer(Hooks(lambda params: None), Columns({"x": ColumnSpec("float32")}, {}))
    made.build("t0", {})
    made.train(Unit("t0", 1, "p0"), Feed({"x": np.zeros(4, "float32")}))
    file = io.BytesIO()
    saved = made.save(file)
    assert saved.bytes > 10_000
    made.load("t1", {}, file.getvalue(), digest=saved.digest)
    assert made.holds("t1", saved.digest)
