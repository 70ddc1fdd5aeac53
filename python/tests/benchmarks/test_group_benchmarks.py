"""The benchmarks of groups: what they draw is what was published, and small ones come to what they must."""

from __future__ import annotations

import doctest
import sys

import numpy as np
import pytest

from benchmarks.groups import __main__ as command
from benchmarks.groups import fleet, hyperband, rule, runs, thesis
from cerebro_spark.search import Wait
from cerebro_spark.types import Report, Work


@pytest.mark.parametrize("module", [fleet, hyperband, rule, runs], ids=lambda module: module.__name__)
def test_examples(module: object) -> None:
    tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert tried.attempted
    assert tried.failed == 0


def test_the_settings_of_the_rule_are_many_and_differ() -> None:
    drawn = [rule.draw(number) for number in range(rule.SETTINGS)]
    assert rule.SETTINGS >= 200
    assert {setting.scenario.workers for setting in drawn} == {4, 8, 16}
    assert min(setting.scenario.trials for setting in drawn) == 1
    assert max(setting.scenario.trials for setting in drawn) > 24
    assert len({setting.overhead for setting in drawn}) == 4


def test_a_setting_of_many_alike_trials_needs_no_groups() -> None:
    found = rule.measure(rule.draw(1))
    assert (found["trials"], found["workers"], found["best_size"]) == (7, 4, 1)
    assert found["own"] <= rule.GOAL_EACH


@pytest.mark.parametrize("seed", range(fleet.DRAWS))
def test_trials_are_as_long_as_those_of_fleet(seed: int) -> None:
    lengths = fleet.lengths(seed)
    assert lengths.mean() == pytest.approx(fleet.MEAN, rel=0.05)
    assert lengths.std() == pytest.approx(fleet.DEVIATION, rel=0.05)
    assert fleet.scenario_of(160, seed).efficiency[1::2] == (0.6, 0.55)


def test_with_a_linear_speed_up_one_trial_after_another_leaves_no_worker_idle() -> None:
    grouped, _, ideal = thesis.ratios(thesis.WORKLOADS[0], seed=0)
    assert grouped == pytest.approx(ideal)
    assert grouped <= thesis.WORKLOADS[0].goal


def test_efficiencies_of_hyperband_come_to_a_half_for_all_workers() -> None:
    for efficiency in hyperband.EFFICIENCIES.values():
        assert efficiency[-1] == pytest.approx(0.5)
        assert (np.diff(efficiency) < 0).all()


def test_brackets_one_after_another_wait_for_the_one_before() -> None:
    search = hyperband.hyperband(hyperband.OneAfterAnother)
    first = search.table[0][0][0]
    asked = [search.ask() for _ in range(first)]
    assert all(isinstance(work, Work) for work in asked)
    assert isinstance(search.ask(), Wait)
    for number, work in enumerate(asked):
        assert isinstance(work, Work)
        search.tell(Report(work.trial, 1, {"loss": float(number)}))
    promoted = search.ask()
    assert isinstance(promoted, Work)
    assert promoted.until_epoch == 3


def test_a_section_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.groups", "rules"])
    with pytest.raises(SystemExit):
        command.main()
    assert "there is no section 'rules': use some of rule, fleet" in capsys.readouterr().err
