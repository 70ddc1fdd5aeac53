"""Traced steps on a CPU leave what eager steps leave: every byte of every checkpoint, and all metrics."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from bundle_cases import REFUSED, STACKED, net, with_module
from bundle_runs import describe, make_feed, make_member, params_of, train_alone
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from trainer_cases_torch import Largest, Precision, accuracy
from trainer_data import columns

from cerebro_spark.codec import decode, encode
from cerebro_spark.errors import TrialFailed
from cerebro_spark.events import UnitFinished
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.pilot import Generators
from cerebro_spark.trainer.torch.steps import EagerSteps
from cerebro_spark.trainer.torch.traced import pace
from cerebro_spark.trainer.torch.traced.pace import Pace
from cerebro_spark.trainer.torch.traced.step import TracedStep
from cerebro_spark.trainer.torch.traced.steps import TracedSteps
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

UNITS = [(1, 0), (1, 1), (2, 0)]
QUICK = ("adam", "sgd_momentum", "dropout", "batch_norm", "clip_norm", "by_batch", "host_noise", "branch", "reading")
"""The cases that are tried by the fast tests too."""


def cases(names: Iterable[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture(autouse=True)
def own_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def make_trainer(model_fn: Any, kind: str, compiles: Any, threads: int = 1, **hooks: Any) -> TorchTrainer:
    resources = Resources(device="cpu", threads=threads, compile=compiles)
    return TorchTrainer(Hooks(model_fn, **hooks), columns(kind), seed=7, resources=resources)


def train_units(trainer: TorchTrainer, kind: str, trials: int = 2) -> tuple[list[Any], list[str]]:
    """Some units of trials that take turns, through checkpoints; and how the steps of each were taken."""
    parents: list[Any] = [None] * trials
    seen: list[Any] = []
    steps: list[str] = []
    for epoch, partition in UNITS:
        for number in range(trials):
            [parents[number]] = train_alone(trainer, [make_member(kind, number, epoch, partition, parents[number])])
            seen.append(describe(parents[number]))
            steps.append(trainer.steps)
    return seen, steps


def train_both(model_fn: Any, kind: str, threads: int = 1, **hooks: Any) -> list[str]:
    """Train with traced and with eager steps, and return how the steps of the former were taken."""
    seen, steps = train_units(make_trainer(model_fn, kind, True, threads, **hooks), kind)
    wanted, eager = train_units(make_trainer(model_fn, kind, False, threads, **hooks), kind)
    assert seen == wanted
    assert set(eager) == {"eager"}
    return steps


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", cases(STACKED))
def test_traced_steps_leave_the_bits_of_eager_ones(case: str, threads: int) -> None:
    steps = train_both(*STACKED[case], threads=threads)

    assert steps[-1] == "traced"


@pytest.mark.parametrize("case", cases(REFUSED))
def test_what_cannot_be_traced_trains_eagerly(case: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cerebro_spark.trainer.torch.traced")
    model_fn, kind, reason = REFUSED[case]
    steps = train_both(model_fn, kind)

    assert set(steps) == {"eager"}
    [said] = {record.getMessage() for record in caplog.records}  # once for each built model
    assert "trains by eager steps" in said
    assert reason in said


class Flipping(nn.Module):
    """Computes every second step otherwise, and is after an even number of them as it was before."""

    def __init__(self) -> None:
        super().__init__()
        self.flip = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.flip = self.flip != self.training
        return -x if self.flip else x


class Judged(nn.Module):
    """Has a parameter that only its loss uses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = net(), nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.body(x).squeeze(-1)
        return made

    def judge(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return self.scale * nn.functional.mse_loss(output, label.reshape(-1).float())


def with_criterion(params: Any) -> TorchModel:
    """A loss that reaches the module past the arguments; at a rate of 0 only the momentum shows that it learns."""
    module = Judged()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.0, momentum=0.9)
    return TorchModel(module, optimizer, lambda output, label: module.judge(output, label))


@pytest.mark.parametrize(
    ("model_fn", "reason"),
    [
        (with_module(lambda: net(Flipping())), "other bits"),
        (with_criterion, "parameters with a gradient"),
    ],
)
def test_what_a_trace_would_freeze_is_found(model_fn: Any, reason: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "cerebro_spark.trainer.torch.traced")
    made = [make_trainer(model_fn, "tabular", compiles) for compiles in (True, False)]
    seen, wanted = ([train_alone(each, [make_member("tabular", 0, 1, 0, None, rows=64)])] for each in made)

    assert list(map(describe, seen[0])) == list(map(describe, wanted[0]))
    assert made[0].steps == "eager"
    assert reason in caplog.text


class Anneal(nn.Module):
    """Changes in every step what no checkpoint saves."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        return x * 0.99**self.steps


def test_unsaved_changes_fail_the_unit() -> None:
    made = [make_trainer(with_module(lambda: net(Anneal())), "tabular", compiles) for compiles in (True, False)]
    traced, eager = (train_alone(each, [make_member("tabular", 0, 1, 0, None)])[0] for each in made)

    assert isinstance(traced, TrialFailed)
    assert str(traced) == str(eager)


def test_metrics_of_all_kinds_are_those_of_eager_steps() -> None:
    def model_fn(params: Any) -> TorchModel:
        kinds: Any = {"precision": Precision, "largest": Largest}
        metrics = {"accuracy": accuracy, **{name: kind() for name, kind in kinds.items()}}
        module = net(nn.BatchNorm1d(16))
        return TorchModel(module, torch.optim.Adam(module.parameters(), params["lr"]), nn.BCEWithLogitsLoss(), metrics)

    assert train_both(model_fn, "tabular")[-1] == "traced"


def test_batches_of_an_input_fn_are_traced() -> None:
    """It draws from all generators between two steps."""
    name = next(iter(columns("tabular").inputs))

    def input_fn(batch: Any, params: Any) -> Any:
        factor = np.float32(1 + 0.1 * random.random() + 0.1 * float(torch.rand(())))
        return {**batch, name: batch[name] * factor}

    steps = train_both(with_module(lambda: net(nn.Dropout(0.3))), "tabular", input_fn=input_fn)

    assert steps[-1] == "traced"


def test_a_trial_stays_current_between_units() -> None:
    """Units, evaluations and checkpoints of one trial that is never loaded again; batches of any size between."""
    left = []
    for compiles in (True, False):
        trainer = make_trainer(STACKED["batch_norm"][0], "tabular", compiles)
        trainer.build("t0", params_of(0))
        made: list[Any] = []
        for epoch, sizes in enumerate([[16] * 5, [16, 7, 7, 16], [7, 16, 7, 7, 16, 7, 3], [7, 16, 7]], 1):
            whole = make_feed("tabular", 0, epoch, 0, rows=sum(sizes))
            ends = list(accumulate(sizes, initial=0))
            rows = [whole.order[first:last] for first, last in pairwise(ends)]
            batches = [{name: array[part] for name, array in whole.arrays.items()} for part in rows]
            made.append(trainer.train(Unit("t0", epoch, "0"), batches))
            made.append(trainer.evaluate(Unit("t0", epoch, "v", "eval"), make_feed("tabular", 0, 9, 1)))
            saved = _save(trainer)
            made.append(saved)
            assert trainer.holds("t0", saved[1].digest)
        left.append(made)
        known = trainer._require_current().model.steps
        stages = [candidate.stage for candidate in known.candidates.values()] if compiles else []
        assert stages == (["traced", "traced", "waiting"] if compiles else [])

    assert left[0] == left[1]


def _save(trainer: TorchTrainer) -> Any:
    file = BytesIO()
    saved = trainer.save(file)
    return file.getvalue(), saved


# The choice


class Clock:
    """A clock that only steps move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def train_by_clock(monkeypatch: pytest.MonkeyPatch, seconds: float, switching: float = 0.0, units: int = 12) -> Any:
    """Train units of 3 full batches, with eager steps of 1 s and traced ones of `seconds`, after a wait of 9 steps."""
    clock = Clock()

    def taking(own: Any, method: str, passed: float) -> None:
        original = getattr(own, method)

        def slow(self: Any, *args: Any, **options: Any) -> Any:
            clock.now += passed
            return original(self, *args, **options)

        monkeypatch.setattr(own, method, slow)

    taking(EagerSteps, "take", 1.0)
    taking(TracedStep, "take", seconds)
    taking(TracedStep, "fill", switching)
    monkeypatch.setattr(pace, "PATIENCE", 9)
    trainer = make_trainer(*STACKED["sgd_momentum"], "auto")
    generators = Generators(trainer._capture_generators, trainer._restore_generators)
    monkeypatch.setattr(
        trainer,
        "_make_traced_steps",
        lambda model: TracedSteps(model, trainer._compute_loss, trainer._pick_label, generators, True, clock),
    )
    trainer.build("t0", params_of(0))
    steps = []
    for epoch in range(1, units + 1):
        feed = make_feed("tabular", 0, epoch, 0, rows=48)
        trainer.train(Unit("t0", epoch, "0"), feed)
        steps.append(trainer.steps)
    model = trainer._require_current().model
    return steps, next(iter(model.steps.candidates.values())), _save(trainer)


def test_traced_steps_are_used_where_they_are_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, candidate, left = train_by_clock(monkeypatch, 0.5, units=16)

    assert candidate.stage == "traced"
    assert steps[:4] == ["eager"] * 4
    assert steps[-1] == "traced"
    monkeypatch.undo()
    single = make_trainer(*STACKED["sgd_momentum"], False)
    single.build("t0", params_of(0))
    for epoch in range(1, 17):
        single.train(Unit("t0", epoch, "0"), make_feed("tabular", 0, epoch, 0, rows=48))
    assert left == _save(single)


@pytest.mark.parametrize(("seconds", "switching"), [(0.95, 0.0), (0.5, 1.5)])
def test_eager_steps_stay_where_little_is_gained(
    seconds: float, switching: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Either by a step, or because units are too short for filling the buffers."""
    caplog.set_level("INFO", "cerebro_spark.trainer.torch.traced")
    steps, candidate, _ = train_by_clock(monkeypatch, seconds, switching, units=16)

    assert (candidate.stage, candidate.step, steps[-1]) == ("eager", None, "eager")
    assert len(caplog.records) == 1
    assert "trains by eager steps: a traced step takes" in caplog.text


def test_short_runs_never_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("a step was traced")

    monkeypatch.setattr(TracedStep, "__init__", fail)
    steps, candidate, _ = train_by_clock(monkeypatch, 0.5, units=3)

    assert (candidate.stage, candidate.pace.waited, steps) == ("waiting", 9, ["eager"] * 3)


@given(st.lists(st.floats(0.1, 10.0), min_size=32, max_size=32), st.integers(1, 100))
def test_times_are_taken_in_turn(seconds: list[float], steps: int) -> None:
    own = Pace(switching=1.0)
    traced: list[float] = []
    eager: list[float] = []
    for each in seconds:
        assert not own.is_timed
        (traced if own.traces_next else eager).append(each)
        own.note_turn(each)

    assert own.is_timed
    assert len(traced) == len(eager)
    assert own.gains(steps) == ((min(traced) + 1 / steps) / min(eager) <= 0.9)


def test_a_log_may_say_traced() -> None:
    event = UnitFinished(1.0, "w0", Unit("t0", 1, "0"), 1, 2.0, steps="traced")
    assert decode(encode(event)) == event


# Any order of units


def exploding(params: Any) -> TorchModel:
    module = net(nn.Dropout(0.3), nn.BatchNorm1d(16))
    optimizer = torch.optim.SGD(module.parameters(), lr=params["lr"], momentum=params["momentum"])
    return TorchModel(module, optimizer, nn.MSELoss())


def trial_params(number: int) -> dict[str, float]:
    rates = {**params_of(number), "momentum": 0.9 if number % 3 else 0.0}
    return {**rates, "lr": 1e30} if number == 4 else rates


_traced: list[TorchTrainer] = []
_alone: dict[Any, Any] = {}


def train_history(trainer: TorchTrainer, number: int, units: list[tuple[int, int]]) -> Any:
    parent: Any = None
    for epoch, (rows, size) in enumerate(units, 1):
        more = {"rows": rows, "size": size, "params": trial_params(number)}
        [parent] = train_alone(trainer, [make_member("tabular", number, epoch, 0, parent, **more)])
    return describe(parent)


@settings(deadline=None, derandomize=True, max_examples=15)
@given(
    st.integers(0, 4),
    st.lists(st.tuples(st.sampled_from([16, 48, 50, 65]), st.sampled_from([16, 20])), min_size=1, max_size=3),
)
def test_what_a_process_trained_before_changes_nothing(number: int, units: list[tuple[int, int]]) -> None:
    """Trials with other modes of the optimizer and other batches, some of which diverge, share one built model."""
    if not _traced:
        _traced.extend(make_trainer(exploding, "tabular", compiles) for compiles in (True, False))
    traced, eager = _traced

    assert train_history(traced, number, units) == train_history(eager, number, units)
