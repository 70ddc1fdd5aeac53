"""Trials that are evaluated side by side on a GPU get what evaluations alone find. Skipped without a GPU."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

if not Path("/dev/nvidia0").exists():
    pytest.skip("needs an NVIDIA GPU, and this machine has none", allow_module_level=True)

import torch
from test_graph_bundles import ARRAYS, SCHEDULERS, Search, deterministic, feed_of, make_trainer, params_of
from test_graphed_steps import BATCH, Branch, Kept, Middle, cnn, transformer
from torch import nn

from cerebro_spark.trainer import Feed
from cerebro_spark.trainer.base import EvaluatedMember, Member
from cerebro_spark.trainer.torch.places import Place
from cerebro_spark.types import Unit

__all__ = ["deterministic"]

POISON = b"no checkpoint"


class Measured(Search):
    """Trials that are evaluated after they were trained."""

    def __init__(self, made: Any, remembers: bool = True) -> None:
        super().__init__(made)
        self.remembers = remembers
        self.found: list[Any] = []
        self.evaluated: list[int] = []

    def train(self, trials: list[str]) -> None:
        self.forget()
        super().train(trials)

    def member(self, trial: str, poison: bool = False) -> Member:
        source, digest, epoch = self.saved[trial]
        unit = Unit(trial, epoch, "v0", "eval")
        feed = Feed(ARRAYS, batch_size=BATCH, key="v0")
        return Member(unit, params_of(trial), feed, POISON if poison else source, digest, final=True)

    def evaluate(self, trials: Sequence[str], poison: bool = False) -> None:
        """Evaluate each trial, all in one bundle."""
        self.forget()
        for outcome in self.made.evaluate_together([self.member(trial, poison) for trial in trials]):
            if isinstance(outcome, EvaluatedMember):
                self.evaluated.append(outcome.width)
                self.found.append(repr((outcome.metrics, outcome.values)))
            else:
                self.found.append(type(outcome))

    def places(self) -> list[Place]:
        return [place for structure in self.made._bundled.values() for place in structure.places]

    def forget(self) -> None:
        if not self.remembers:
            for place in self.places():
                place.held = None


def compare(bundles: list[list[str]], **options: Any) -> Measured:
    """Train and evaluate bundles, and the same trials one by one; everything must be equal."""
    together, alone = Measured(make_trainer(**options)), Measured(make_trainer(**options))
    for bundle in bundles:
        together.train(bundle)
        together.evaluate(bundle)
        for trial in bundle:
            alone.train([trial])
        for trial in bundle:
            alone.evaluate([trial])
    assert together.found == alone.found
    assert together.seen == alone.seen
    assert set(alone.evaluated) == {1}
    return together


class Jittered(Middle):
    """Draws on the GPU while it is evaluated, too."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, 0.3, training=True) + 0.1 * torch.randn_like(x)


class Tallied(Middle):
    """Counts its batches in a buffer, which an evaluation puts back."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def between(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x / self.seen.sqrt()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"module": cnn},
        {"module": transformer},
        {"module": Jittered},
        {"module": Tallied},
        {"optimizer": torch.optim.SGD},
        {"precision": "bfloat16"},
        {"schedule": lambda own: SCHEDULERS.StepLR(own, 1, 0.5)},
        {"metrics": lambda: {"off": lambda output, label: (output - label).abs(), "kept": Kept()}},
    ],
    ids=str,
)
def test_what_is_found_is_what_evaluations_alone_find(options: dict[str, Any]) -> None:
    found = compare([list("abcd"), list("abcd"), list("dcab"), list("abcdef")], **options)
    assert found.evaluated == [4] * 12 + [6] * 6


def test_metrics_of_torchmetrics_are_those_of_evaluations_alone() -> None:
    regression = pytest.importorskip("torchmetrics.regression")
    compare(
        [list("abc"), list("bca")], metrics=lambda: {"r2": regression.R2Score(), "mae": regression.MeanAbsoluteError()}
    )


def test_random_bundles_find_what_evaluations_alone_find() -> None:
    rng = random.Random(1)
    compare([rng.sample("abcdefghij", rng.randint(2, 8)) for _ in range(8)])


def test_what_places_hold_is_not_read_again_and_changes_nothing() -> None:
    remembered, forgetful = Measured(make_trainer()), Measured(make_trainer(), remembers=False)
    for search in (remembered, forgetful):
        for bundle in (list("abcd"), list("dabc"), list("ab"), list("abcd")):
            search.train(bundle)
            search.evaluate(bundle[::-1], poison=search.remembers)
    assert remembered.found == forgetful.found
    assert remembered.seen == forgetful.seen
    assert len([place for place in remembered.places() if place.held is not None]) == 4


def test_a_bundle_goes_on_without_reading() -> None:
    search, plain = Measured(make_trainer()), Measured(make_trainer())
    for each in (search, plain):
        each.train(list("abc"))
        each.evaluate(list("abc"))
    for trial, saved in search.saved.items():
        search.saved[trial] = POISON, *saved[1:]
    for each in (search, plain):
        each.train(list("cab"))
    assert search.seen == plain.seen
    assert search.widths == plain.widths == [3] * 6


def test_a_trial_that_diverges_leaves_nothing_in_its_place() -> None:
    search = Measured(make_trainer())
    search.train(list("ab"))
    search.train(["a", "nan", "b", "c"])
    held = sorted(place.held.trial for place in search.places() if place.held is not None)
    assert held == ["a", "b", "c"]


def test_what_cannot_be_recorded_is_evaluated_one_by_one() -> None:
    assert set(compare([list("abc"), list("abc")], module=Branch).evaluated) == {1}


class EvalBranch(Middle):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5 if not self.training and x.mean() > 0.3 else x


class EvalNoise(Middle):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training else x * random.choice([0.5, 1.0])


class EvalInPlace(Middle):
    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x if self.training else x.mul_(2))


@pytest.mark.parametrize("module", [EvalBranch, EvalNoise, EvalInPlace])
def test_what_only_evaluations_would_freeze_is_evaluated_one_by_one(
    module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        found = compare([list("abc"), list("abc")], module=module)
    assert set(found.evaluated) == {1}
    assert set(found.widths) == {3}
    assert len([line for line in caplog.messages if "evaluated side by side from now on" in line]) == 1


def test_a_bad_checkpoint_fails_its_member_alone() -> None:
    search = Measured(make_trainer())
    search.train(list("abcd"))
    content, digest, epoch = search.saved["b"]
    search.saved["b"] = content, "0" * len(digest), epoch
    search.evaluate(list("abcd"))
    assert search.evaluated == [3] * 3
    assert isinstance(search.found[1], type)
    assert issubclass(search.found[1], Exception)


def test_trials_of_another_trainer_are_read(tmp_path: Path) -> None:
    first, second = Measured(make_trainer()), Measured(make_trainer())
    for search in (first, second):
        search.train(list("abc"))
    first.train(list("abc"))
    second.saved = first.saved
    for search in (first, second):
        search.evaluate(list("abc"))
    assert first.found == second.found
    assert second.evaluated == [3] * 3
    assert feed_of("a", 1).sizes[-1] != BATCH  # the last batch is short
