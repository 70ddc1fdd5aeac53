"""Trials that train side by side on a GPU leave the bits of single units. Skipped without a GPU."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not Path("/dev/nvidia0").exists():
    pytest.skip("needs an NVIDIA GPU, and this machine has none", allow_module_level=True)

import torch
from test_graphed_steps import BATCH, COLUMNS, ROWS, Branch, Kept, cnn, feed, mlp, transformer
from torch import nn

from cerebro_spark.errors import TrialFailed
from cerebro_spark.trainer import Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.base import Member
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Metrics, Unit

ARRAYS = feed().arrays
SCHEDULERS = torch.optim.lr_scheduler


@pytest.fixture(autouse=True)
def deterministic() -> Any:
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


def make_trainer(module: Any = mlp, **options: Any) -> TorchTrainer:
    optimizer = options.pop("optimizer", torch.optim.Adam)
    schedule = options.pop("schedule", lambda own: None)
    precision = options.pop("precision", None)
    make_metrics = options.pop("metrics", dict)
    input_fn = options.pop("input_fn", None)

    def model_fn(params: Mapping[str, Any]) -> TorchModel:
        made = module()
        own = optimizer(made.parameters(), lr=params["lr"])
        return TorchModel(made, own, nn.MSELoss(), make_metrics(), lr_scheduler=schedule(own), **options)

    return TorchTrainer(
        Hooks(model_fn, input_fn), COLUMNS, seed=3, resources=Resources(precision=precision, compile=True)
    )


def params_of(trial: str) -> dict[str, Any]:
    return {"lr": math.inf if trial == "nan" else 0.001 * (1 + ord(trial[0]) % 7), "batch_size": BATCH}


def feed_of(trial: str, epoch: int) -> Feed:
    order = np.random.default_rng([ord(trial[0]), epoch]).permutation(ROWS)
    return Feed(ARRAYS, order, batch_size=BATCH, key="p0")


class Search:
    """Trials that train by turns, and what they have left."""

    def __init__(self, made: TorchTrainer) -> None:
        self.made = made
        self.saved: dict[str, tuple[bytes, str, int]] = {}
        self.seen: dict[tuple[str, int], Any] = {}
        self.widths: list[int] = []

    def train(self, trials: list[str]) -> None:
        """Train one epoch of each trial, all in one bundle."""
        members = []
        for trial in trials:
            source, digest, epoch = self.saved.get(trial, (None, "", 0))
            unit = Unit(trial, epoch + 1, "p0")
            members.append(Member(unit, params_of(trial), feed_of(trial, epoch + 1), source, digest, final=True))
        for member, outcome in zip(members, self.made.train_together(members), strict=True):
            trial, epoch = member.unit.trial, member.unit.epoch
            if isinstance(outcome, Exception):
                self.seen[trial, epoch] = type(outcome), str(outcome)
                continue
            self.saved[trial] = outcome.checkpoint.getvalue(), outcome.saved.digest, epoch
            self.seen[trial, epoch] = outcome.saved.digest, outcome.values, outcome.metrics
            self.widths.append(outcome.width)


def compare(bundles: list[list[str]], **options: Any) -> Search:
    """Train bundles, and the same trials one by one; everything must be equal."""
    together, alone = Search(make_trainer(**options)), Search(make_trainer(**options))
    for bundle in bundles:
        together.train(bundle)
        for trial in bundle:
            alone.train([trial])
    assert together.seen == alone.seen
    assert set(alone.widths) == {1}
    return together


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"module": cnn},
        {"module": transformer},
        {"optimizer": torch.optim.AdamW, "clip_norm": 0.1},
        {"optimizer": torch.optim.SGD},
        {"optimizer": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)},
        {"optimizer": torch.optim.RMSprop, "clip_value": 0.01},
        {"precision": "bfloat16"},
        {"schedule": lambda own: SCHEDULERS.ExponentialLR(own, 0.99), "scheduler_step": "batch"},
        {"schedule": lambda own: SCHEDULERS.StepLR(own, 1, 0.5)},
        {"metrics": lambda: {"off": lambda output, label: (output - label).abs(), "kept": Kept()}},
    ],
    ids=str,
)
def test_a_bundle_leaves_the_bits_of_single_units(options: dict[str, Any]) -> None:
    found = compare([list("abcd"), list("abcd"), list("dcab"), list("abcdef")], **options)
    assert found.widths == [4] * 12 + [6] * 6


def test_what_a_rehearsal_has_built_is_bundled_from_the_first_unit_on() -> None:
    search = Search(make_trainer())
    search.made.build("z", params_of("z"))
    search.made.train(Unit("z", 1, "p0"), Feed(ARRAYS, np.arange(BATCH), batch_size=BATCH))
    search.train(list("abc"))
    assert search.widths == [3, 3, 3]


def test_random_bundles_leave_the_bits_of_single_units() -> None:
    rng = random.Random(0)
    compare([rng.sample("abcdefghij", rng.randint(1, 8)) for _ in range(12)])


def test_a_trial_that_diverges_fails_alone() -> None:
    found = compare([list("ab"), ["a", "nan", "b", "c"], list("abc")])
    assert found.seen["nan", 1][0] is TrialFailed


def test_what_cannot_be_recorded_trains_one_by_one() -> None:
    assert set(compare([list("abc"), list("abc")], module=Branch).widths) == {1}


def test_batches_of_input_fn_are_made_one_by_one() -> None:
    def add_noise(batch: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
        return {**batch, "x": batch["x"] + np.random.normal(size=batch["x"].shape).astype("float32")}

    assert set(compare([list("abc"), list("abc")], input_fn=add_noise).widths) == {1}


def test_a_schedule_of_other_numbers_trains_one_by_one() -> None:
    cycle = {"schedule": lambda own: SCHEDULERS.OneCycleLR(own, 0.01, total_steps=200), "scheduler_step": "batch"}
    assert set(compare([list("abc"), list("abc")], **cycle).widths) == {1}


def test_too_little_memory_halves_a_bundle(monkeypatch: pytest.MonkeyPatch) -> None:
    from cerebro_spark.trainer.torch import graph_bundle

    record = graph_bundle.GraphBundle._record

    def too_large(bundle: Any, *arguments: Any) -> None:
        if len(bundle.generators) > 2:
            raise torch.cuda.OutOfMemoryError("no memory")
        record(bundle, *arguments)

    monkeypatch.setattr(graph_bundle.GraphBundle, "_record", too_large)
    assert compare([list("abcd"), list("abcd")]).widths == [2] * 8


def test_a_bad_checkpoint_fails_its_member_alone() -> None:
    search = Search(make_trainer())
    search.train(list("abc"))
    content, digest, epoch = search.saved["b"]
    search.saved["b"] = content[: len(content) // 2], digest, epoch
    search.made = make_trainer()  # the one that wrote it would not read it again
    search.train(list("abc"))
    assert issubclass(search.seen["b", 2][0], Exception)
    assert isinstance(search.seen["a", 2][2], Metrics)
    assert isinstance(search.seen["c", 2][2], Metrics)
