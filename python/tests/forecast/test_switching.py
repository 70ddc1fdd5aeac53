"""Forecasts of runs whose units become shorter once a worker has traced the steps of their structure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest
from cut_runs import KnownRun, settings_of, simulated_run

from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker
from cerebro_spark.backend.simulated import _MemberEnd as MemberEnd
from cerebro_spark.backend.simulated import _WorkerState as WorkerState
from cerebro_spark.events import Event, RunUnit, UnitFinished
from cerebro_spark.forecast.measured import UnitSample
from cerebro_spark.forecast.remaining import forecast
from cerebro_spark.forecast.switching import Switching
from cerebro_spark.search import FixedSearch
from cerebro_spark.trainer.torch.traced.pace import PATIENCE
from cerebro_spark.types import Partition, Steps

ROWS, BATCH, UNITS = 64_000, 32, 20
STEPS = ROWS // BATCH
LAST_EAGER = -(-PATIENCE // STEPS)
"""After so many units their steps are traced."""


class TracingBackend(SimulatedBackend):
    """Trains as PyTorch does on a CPU: eager units, of which later ones take `share` of the time. 1.0: none does."""

    share = 1.0

    def _schedule(self, order: RunUnit, state: WorkerState) -> list[MemberEnd]:
        ((member, at, own, width),) = super()._schedule(order, state)
        factor = self.share if self._steps_of(order) == "traced" else 1.0
        return [(member, at * factor, own * factor, width)]

    def _finish(self, order: RunUnit, state: WorkerState) -> list[Event]:
        facts = super()._finish(order, state)
        return [replace(f, steps=self._steps_of(order)) if isinstance(f, UnitFinished) else f for f in facts]

    def _steps_of(self, order: RunUnit) -> Steps:
        if order.unit.kind == "eval":
            return ""
        return "eager" if self.share == 1.0 or order.step + 2 * (order.unit.epoch - 1) <= LAST_EAGER else "traced"


class Faster(TracingBackend):
    share = 0.7


def known_run(backend: type[SimulatedBackend], validation: int = 1) -> KnownRun:
    """One trial on one worker, of so many units of training, two an epoch."""
    made = settings_of(2, validation, 1)
    made = replace(made, partitions=tuple(replace(part, rows=ROWS) for part in made.partitions))
    search = lambda: FixedSearch([{"cost": 1.0, "batch_size": BATCH}], UNITS // 2)  # noqa: E731
    return simulated_run(search, made, [SimulatedWorker("w0")], backend)


def after_training(run: KnownRun, units: int) -> list[Event]:
    """The events until so many units of training were done."""
    done: Counter[str] = Counter()
    for number, turn in enumerate(run.turns, 1):
        done.update(event.unit.kind for event in turn if isinstance(event, UnitFinished))
        if done["train"] == units:
            return run.until(number)
    raise AssertionError(f"there are {done['train']} units of training only")


def test_before_steps_are_traced_it_is_foreseen_that_they_will_be() -> None:
    run, plain = known_run(Faster), known_run(TracingBackend)
    events = after_training(run, LAST_EAGER - 1)
    found = forecast(events, run.search)
    assert found.done_at is not None
    assert found.low is not None
    assert found.high is not None
    assert found.done_at < 0.95 * plain.end, "units that follow are expected to be shorter"
    assert found.low < run.end < found.high
    assert found.high >= 0.99 * plain.end, "it is not known that tracing gains anything"


def test_once_steps_are_traced_eager_units_count_as_what_they_would_take_now() -> None:
    run = known_run(Faster)
    found = forecast(after_training(run, LAST_EAGER + 3), run.search)
    assert found.done_at == pytest.approx(run.end)


def test_where_tracing_gained_nothing_no_gain_is_foreseen() -> None:
    run = known_run(TracingBackend)
    found = forecast(after_training(run, LAST_EAGER + 4), run.search)
    assert found.done_at == pytest.approx(run.end)
    assert found.low == found.high == found.done_at


def samples_of(*units: tuple[str, Steps, float]) -> list[UnitSample]:
    return [UnitSample("train", "t0", kin, "w0", "p0", 1, seconds, False, steps) for kin, steps, seconds in units]


def switching_of(samples: list[UnitSample]) -> Switching:
    return Switching(samples, [Partition("p0", rows=ROWS)], {"t0": {"batch_size": BATCH}})


def test_the_unit_in_which_steps_were_traced_says_nothing_of_others() -> None:
    samples = samples_of(("a", "eager", 2.0), ("a", "traced", 9.0), ("a", "traced", 1.0), ("a", "traced", 1.0))
    now = switching_of(samples).in_present_steps(samples)
    assert [sample.seconds for sample in now] == [1.0, 1.0, 1.0]


def test_a_structure_that_was_traced_within_its_first_unit_keeps_it() -> None:
    samples = samples_of(("a", "traced", 3.0), ("b", "eager", 2.0))
    found = switching_of(samples)
    assert found.in_present_steps(samples) == samples
    assert (found.is_ahead("a"), found.is_ahead("b")) == (False, True)


def test_others_are_expected_to_gain_what_one_structure_gained() -> None:
    found = switching_of(
        samples_of(("a", "eager", 2.0), ("a", "traced", 3.0), ("a", "traced", 0.5), ("b", "eager", 4.0))
    )
    mean, spread = found.expected_gain
    assert math.exp(mean) == pytest.approx(0.25)
    assert spread > 0
    assert (found.is_ahead("a"), found.is_ahead("b")) == (False, True)


def test_where_steps_stayed_eager_when_they_were_due_none_are_traced() -> None:
    """As with `compile=False`, which is not known here."""
    eager = samples_of(("a", "eager", 1.0)) * (LAST_EAGER + 3)
    assert not switching_of(eager).is_ahead("never begun")
    traced = samples_of(("b", "eager", 1.0), ("b", "traced", 1.0), ("b", "traced", 0.5))
    assert switching_of([*eager, *traced]).is_ahead("never begun"), "some are"
    assert math.exp(switching_of([*eager, *traced]).expected_gain[0]) == pytest.approx(math.sqrt(0.5))


def test_the_first_unit_of_a_process_says_nothing_of_what_tracing_gains() -> None:
    first, *later = samples_of(("a", "eager", 40.0), ("a", "traced", 9.0), ("a", "traced", 8.0))
    samples = [first._replace(first=True), *later]
    found = switching_of(samples)
    assert [sample.seconds for sample in found.in_present_steps(samples)] == [40.0, 8.0]
    assert found.expected_gain == switching_of(samples_of(("a", "eager", 1.0))).expected_gain


def test_a_slow_worker_says_nothing_of_what_tracing_gains() -> None:
    slow = [sample._replace(worker="w1") for sample in samples_of(("a", "eager", 30.0)) * 4]
    fast = samples_of(("a", "eager", 10.0), ("a", "traced", 12.0), ("a", "traced", 8.0))
    assert math.exp(switching_of([*slow, *fast]).expected_gain[0]) == pytest.approx(0.8)


def test_a_worker_that_came_again_begins_anew() -> None:
    life = samples_of(("a", "eager", 1.0), ("a", "eager", 1.0))
    lives = [*life, life[0]._replace(first=True), life[1]]
    found = switching_of(lives)
    assert found.taken == {("w0", "a"): 2 * STEPS}
    assert found.is_ahead("a")


def test_a_trial_that_cannot_train_takes_no_steps() -> None:
    assert switching_of([]).steps_of("p0", {"batch_size": "64"}) == 0


def test_it_is_not_called_certain_before_steps_were_due() -> None:
    run = known_run(Faster, validation=0)
    found = forecast(after_training(run, 1), run.search)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.high


@pytest.mark.parametrize("steps", ["graph", ""])
def test_elsewhere_nothing_is_ahead(steps: Steps) -> None:
    """On a GPU steps settle within their first unit, and other frameworks have no such steps."""
    eager = samples_of(("b", "eager", 2.0)) if steps else []
    assert not switching_of([*samples_of(("a", steps, 1.0)), *eager]).is_ahead("b")
