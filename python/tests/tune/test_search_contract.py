"""What every search must keep to, whatever it is."""

from __future__ import annotations

import copy
from typing import Any

import cloudpickle
import pytest
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from tune_searches import ACCURACY, ALGORITHMS, LOSS, Player, wrapped

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.search import Done, Wait
from cerebro_spark.types import Report, Work

NAMES = sorted(ALGORITHMS)
STOPS: list[dict[str, Any]] = [
    {},
    {"patience": 1},
    {"patience": 2},
    {"time_budget": 20.0},
    {"target": 0.2},
    {"patience": 2, "time_budget": 30.0, "target": 0.15},
]
stops = st.sampled_from(STOPS)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=drawn(25), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    failures=st.sampled_from([0.0, 0.1, 0.4]),
    limit=st.none() | st.integers(1, 5),
    stop=stops,
)
def test_it_ends_and_repeats_itself(
    name: str, seed: int, failures: float, limit: int | None, stop: dict[str, Any]
) -> None:
    journals = [Player(wrapped(name, LOSS, limit, **stop), LOSS, seed, failures).play() for _ in range(2)]
    assert journals[0].works == journals[1].works
    assert limit is None or journals[0].most <= limit
    first = list(dict.fromkeys(work.trial for work in journals[0].works))
    assert first == sorted(first)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=drawn(25), deadline=None)
@given(seed=st.integers(0, 10**6), cut=st.integers(0, 60), failures=st.sampled_from([0.0, 0.15]), stop=stops)
def test_told_the_same_reports_a_new_one_leads_on(
    name: str, seed: int, cut: int, failures: float, stop: dict[str, Any]
) -> None:
    """That is how a run whose driver died is resumed."""
    player = Player(wrapped(name, LOSS, 4, **stop), LOSS, seed, failures)
    player.play(steps=cut)
    twin = copy.deepcopy(player)
    twin.search = wrapped(name, LOSS, 4, **stop)
    repeated = Player(twin.search, LOSS, seed, failures)
    repeated.play(steps=cut)
    assert repeated.journal == player.journal
    player.play()
    twin.play()
    assert twin.journal.works == player.journal.works


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stop", STOPS, ids=str)
def test_more_of_accuracy_is_what_less_of_a_loss_is(name: str, stop: dict[str, Any]) -> None:
    turned = dict(stop, target=-stop["target"]) if "target" in stop else stop
    loss = Player(wrapped(name, LOSS, 3, **stop), LOSS, 3).play()
    accuracy = Player(wrapped(name, ACCURACY, 3, **turned), ACCURACY, 3, sign=-1.0).play()
    assert [(w.trial, w.until_epoch, w.params) for w in accuracy.works] == [
        (w.trial, w.until_epoch, w.params) for w in loss.works
    ]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stop", [{}, {"patience": 1}], ids=str)
def test_when_every_trial_fails_it_ends(name: str, stop: dict[str, Any]) -> None:
    journal = Player(wrapped(name, LOSS, **stop), failure_rate=1.0).play()
    trials = [work.trial for work in journal.works]
    assert len(trials) == len(set(trials)) == len(journal.reports)


@pytest.mark.parametrize("name", NAMES)
def test_numbers_that_are_none_are_worse_than_any(name: str) -> None:
    journal = Player(wrapped(name, LOSS, 3), value=lambda *_: float("nan")).play()
    assert journal.works
    Player(wrapped(name, LOSS, 3), value=lambda *_: float("inf")).play()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("stop", [{}, {"patience": 1}], ids=str)
def test_a_metric_that_was_not_measured_is_an_error_that_names_those_that_were(name: str, stop: dict[str, Any]) -> None:
    search = wrapped(name, LOSS, **stop)
    work = search.ask()
    assert isinstance(work, Work)
    with pytest.raises(ConfigurationError, match=r"'val_loss', but trial t.* measured only accuracy, loss: choose"):
        search.tell(Report(work.trial, 1, {"loss": 1.0, "accuracy": 0.5}))


@pytest.mark.parametrize("name", NAMES)
def test_reports_of_trials_it_never_asked_for_change_nothing(name: str) -> None:
    search = wrapped(name, LOSS)
    search.ask()
    twin = copy.deepcopy(search)
    search.tell(Report("a-clone", 1, {"profit": 1.0}))
    search.tell(Report("a-clone", 2, error="no such thing"))
    assert cloudpickle.dumps(search) == cloudpickle.dumps(twin)
    assert search.ask() == twin.ask()


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_made_before_the_run_gives_the_same_run(name: str) -> None:
    search = wrapped(name, LOSS, 3, patience=2)
    sent: Any = cloudpickle.loads(cloudpickle.dumps(search))
    assert Player(sent).play().works == Player(search).play().works


@pytest.mark.parametrize("name", NAMES)
def test_one_at_a_time_it_waits_for_each_report(name: str) -> None:
    search = wrapped(name, LOSS, 1)
    assert isinstance(search.ask(), Work)
    assert search.ask() == search.ask() == Wait()
    ended: object = Done()
    assert ended != Wait()


@pytest.mark.parametrize("name", NAMES)
def test_wrong_arguments_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="`max_concurrent` is 0, but must be at least 1"):
        ALGORITHMS[name](LOSS, 0)
    with pytest.raises(ConfigurationError, match="`patience` is 0"):
        wrapped(name, LOSS, patience=0)
    with pytest.raises(ConfigurationError, match="`time_budget` is 0, but must be above 0 seconds"):
        wrapped(name, LOSS, time_budget=0)
    with pytest.raises(ConfigurationError, match="`target` is nan"):
        wrapped(name, LOSS, target=float("nan"))
