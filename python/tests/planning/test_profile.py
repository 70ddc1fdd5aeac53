"""What units take, from units of two lengths that a pilot trained."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_pilots import made_profile, made_record

from cerebro_spark.backend.machines import Cluster
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.planning.contention import Contention
from cerebro_spark.planning.dry_runs import dry_run
from cerebro_spark.planning.memory import fitting, memory_of
from cerebro_spark.planning.options import bound_of
from cerebro_spark.planning.profile import Profile
from cerebro_spark.planning.values import Demand, Option, Setting, Workload
from cerebro_spark.search import FixedSearch
from cerebro_spark.types import Objective, Steps

NARROW: dict[str, Any] = {"units": 8, "lr": 0.1, "batch_size": 10}
WIDE: dict[str, Any] = {"units": 64, "lr": 0.1, "batch_size": 10}
ONE_HOST = Cluster(hosts=1, cores=4)


@given(st.floats(0.0, 2.0), st.floats(0.0001, 0.5))
def test_what_a_unit_and_what_a_batch_takes_are_told_apart(unit: float, batch: float) -> None:
    profile = made_profile([NARROW], lambda params, batches: unit + batch * batches)
    cost = profile.cost("train", NARROW)
    assert cost.unit == pytest.approx(unit, abs=1e-6)
    assert cost.batch == pytest.approx(batch, rel=1e-6)
    assert profile.cost("eval", NARROW).of(1000) == pytest.approx(0.5 * (unit + 1000 * batch))


def test_units_are_as_long_as_their_partitions() -> None:
    profile = made_profile([NARROW], lambda params, batches: 1.0 + 0.01 * batches)
    option, rows = Option(2, 1, 1, 2), Workload(train=20_000, validation=4_000, bytes=0)
    pace = profile.times(option, rows, ONE_HOST).pace
    assert pace.expected.seconds("train", "t0", NARROW).seconds == pytest.approx(1.0 + 0.01 * 1000)
    assert pace.expected.seconds("eval", "t0", NARROW).seconds == pytest.approx(0.5 * (1.0 + 0.01 * 200))


def test_structures_have_times_of_their_own_and_others_are_guessed() -> None:
    profile = made_profile([NARROW, WIDE], lambda params, batches: 0.001 * params["units"] * batches)
    kin = {**WIDE, "lr": 0.7}
    assert profile.cost("train", kin) == profile.cost("train", WIDE)
    assert profile.cost("train", kin).spread == 0.0
    guessed = profile.cost("train", {**NARROW, "units": 32})
    assert profile.cost("train", NARROW).batch <= guessed.batch <= profile.cost("train", WIDE).batch
    assert guessed.spread > 0.0


def test_what_is_built_once_is_no_part_of_later_units() -> None:
    profile = made_profile([NARROW], lambda params, batches: 0.01 * batches, build=3.0)
    assert profile.cost("train", NARROW).of(100) == pytest.approx(1.0)
    assert builds(profile) == pytest.approx([3.0, 0.0])


def builds(profile: Profile) -> list[float]:
    """By structure, what the first trial on a worker takes to begin with training, then what each other one does."""
    found = profile.builds
    return [taken[key] for key in found.structure if key[0] == "train" for taken in (found.structure, found.trial)]


def test_what_each_trial_takes_to_begin_is_told_from_what_its_structure_does() -> None:
    kin = {**NARROW, "lr": 0.7}
    profile = made_profile([NARROW, kin, WIDE], lambda params, batches: 0.01 * batches, build=3.0, again=1.5)
    # Of the wide structure there was one trial only: half of it is done again, as of the other.
    assert builds(profile) == pytest.approx([3.0, 1.5] * 2)
    assert profile.cost("train", kin).of(100) == pytest.approx(1.0)


def test_rare_long_units_make_all_of_them_longer_on_average() -> None:
    record = made_record([NARROW], lambda params, batches: 0.01 * batches, batches=(10, 40) * 10)
    slow = [
        replace(done, seconds=3 * done.seconds) if done.unit.epoch == 12 and done.unit.kind == "train" else done
        for done in record.finished
    ]
    taken = sum(done.seconds for done in slow if done.unit.kind == "train" and done.unit.epoch > 1)
    record.finished = slow
    profile = Profile(Setting(1, 2), record)
    units = [done for done in slow if done.unit.kind == "train" and done.unit.epoch > 1]
    lengths = [record.batches[done.unit.epoch - 1] for done in units]
    assert sum(map(profile.cost("train", NARROW).of, lengths)) == pytest.approx(taken)
    assert profile.cost("eval", NARROW).of(100) == pytest.approx(0.5)


def test_the_load_of_a_partition_is_not_counted_twice() -> None:
    profile = made_profile([NARROW], lambda params, batches: 0.01 * batches, lead=4.0)
    times = profile.times(Option(2, 1, 1, 2), Workload(train=20_000, validation=0, bytes=0), ONE_HOST)
    assert times.pace.load == 0.5
    assert times.lead + times.pace.load == 4.0


@pytest.mark.parametrize(("steps", "share"), [("eager", 0.8), ("", 1.0), ("graph", 1.0)])
def test_steps_that_a_longer_run_may_trace_are_planned_to_become_faster(steps: Steps, share: float) -> None:
    profile = made_profile([NARROW], lambda params, batches: 0.001 * batches, Setting(1, 1), steps=steps)
    option, rows = Option(1, 1, 1, 1), Workload(train=100_000, validation=0, bytes=0)
    times = profile.times(option, rows, ONE_HOST)
    found = dry_run(FixedSearch([NARROW], 10), Objective("loss", "min"), option, rows, times, noisy=False)
    # A unit takes 10,000 steps of a millisecond: from the second on they may be traced.
    assert found.seconds == pytest.approx(times.once + 10.0 + 9 * 10.0 * share, rel=0.01)


def test_a_unit_that_has_fewer_batches_than_asked_for_says_what_it_had() -> None:
    few = {**NARROW, "batch_size": 50_000}
    profile = made_profile([few], lambda params, batches: 0.2 * min(batches, 2))
    assert profile.cost("train", few).of(2) == pytest.approx(0.4)


def test_hops_take_as_long_as_the_network_says() -> None:
    profile = made_profile([NARROW], lambda params, batches: 0.01 * batches, checkpoint=5_000_000)
    rows = Workload(train=1000, validation=0, bytes=0)
    assert profile.times(Option(4, 1, 2, 4), rows, Cluster(2, 4, bandwidth=1e6)).hop == {
        next(iter(profile.builds.structure))[1]: 5.0
    }
    assert profile.times(Option(4, 1, 1, 4), rows, Cluster(1, 4, bandwidth=1e6)).hop is None


def test_who_shares_a_host_with_more_is_slower() -> None:
    alone = made_profile([NARROW], lambda params, batches: 0.01 * batches, Setting(1, 1))
    full = made_profile([NARROW], lambda params, batches: 0.016 * batches, Setting(1, 4))
    contention = Contention({alone.setting: alone, full.setting: full})
    assert contention.slowdown == pytest.approx(1.6)
    assert contention.factor(Option(4, 1, 1, 4), full.setting) == pytest.approx(1.0)
    assert contention.factor(Option(1, 1, 1, 1), full.setting) == pytest.approx(1 / 1.6)
    assert contention.factor(Option(2, 1, 1, 2), alone.setting) == pytest.approx(1.2)
    assert Contention({full.setting: full}).factor(Option(1, 1, 1, 1), full.setting) == 1.0


def test_nothing_is_done_before_all_work_is_shared_and_the_longest_trial_is_through() -> None:
    profile = made_profile([NARROW], lambda params, batches: 0.01 * batches, lead=2.0)
    rows = Workload(train=10_000, validation=0, bytes=0)
    # A trial takes 10 seconds an epoch, wherever its partitions are.
    even = Demand((NARROW,) * 4, (1,) * 4)
    assert bound_of(Option(2, 1, 1, 2), profile, rows, even) == pytest.approx(2.0 + 20.0)
    assert bound_of(Option(8, 1, 1, 8), profile, rows, even) == pytest.approx(2.0 + 10.0)
    one_longer = Demand((NARROW,) * 4, (1, 1, 1, 9))
    assert bound_of(Option(4, 1, 1, 4), profile, rows, one_longer) == pytest.approx(2.0 + 90.0)


def test_a_worker_needs_what_it_had_and_the_rows_that_it_never_touched() -> None:
    rows = Workload(train=1_000_000, validation=0, bytes=8 << 30)
    small = made_profile([NARROW], lambda params, batches: 0.01 * batches, memory=1 << 30)
    needs = [memory_of(Option(workers, 1, 1, workers), small, rows) for workers in (1, 2, 8)]
    assert all(need is not None for need in needs)
    assert sorted(needs, reverse=True) == needs  # type: ignore[type-var]
    assert needs[0] is not None
    assert math.isclose(needs[0], 1.15 * (1 + 8 * 0.8) * (1 << 30), rel_tol=0.05)
    unknown = made_profile([NARROW], lambda params, batches: 0.01 * batches)
    assert memory_of(Option(1, 1, 1, 1), unknown, rows) is None


def test_options_that_do_not_fit_memory_are_left_out_and_none_at_all_is_said() -> None:
    options = [Option(workers, 1, 1, workers, memory=3 << 30) for workers in (1, 2, 4)]
    assert [option.workers for option in fitting(options, Cluster(1, 4, memory=8 << 30))] == [1, 2]
    assert fitting(options, Cluster(1, 4)) == options
    with pytest.raises(ConfigurationError, match=r"a worker needs 3\.0 GiB of memory.*but a host has 2\.0 GiB"):
        fitting(options, Cluster(1, 4, memory=2 << 30))
    groups = [replace(option, group=2) for option in options if option.workers > 1]
    with pytest.raises(ConfigurationError, match=r"that a host can have, 2, need .* or fewer `workers_per_trial`"):
        fitting(groups, Cluster(1, 4, memory=4 << 30))
