"""Hyperband and ASHA against known answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from tune_searches import ACCURACY, LOSS, Player

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.search import Done, Wait
from cerebro_spark.tune import hp
from cerebro_spark.tune.algorithms.halving import ASHAAlgorithm, HyperbandAlgorithm, brackets, rungs
from cerebro_spark.types import Report, Work

SPACE = {"lr": hp.uniform(0, 1)}


def by_lr(trial: str, params: Mapping[str, Any], epoch: int) -> float:
    return float(params["lr"])


def test_the_table_of_the_paper() -> None:
    assert brackets(81, 3) == [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(27, 3), (9, 9), (3, 27), (1, 81)],
        [(9, 9), (3, 27), (1, 81)],
        [(6, 27), (2, 81)],
        [(5, 81)],
    ]


@pytest.mark.parametrize("order", range(3))
def test_hyperband_trains_exactly_what_its_table_says(order: int) -> None:
    search = HyperbandAlgorithm(SPACE, LOSS, max_epochs=81, eta=3)
    journal = Player(search, seed=order, value=by_lr).play(steps=4999)
    started = Counter(work.until_epoch for work in journal.works)
    assert started == {1: 81, 3: 27 + 27, 9: 9 + 9 + 9, 27: 3 + 3 + 3 + 6, 81: 1 + 1 + 1 + 2 + 5}
    steps = [zip(plan, [0, *(r for _, r in plan)], strict=False) for plan in search.table]
    budget = sum(n * (r - before) for step in steps for (n, r), before in step)
    assert len(journal.reports) == budget


def test_accuracy_promotes_the_most_accurate_and_a_loss_the_least() -> None:
    for objective, pick in ((ACCURACY, max), (LOSS, min)):
        journal = Player(HyperbandAlgorithm(SPACE, objective, 9), objective, value=by_lr).play()
        params = {work.trial: work.params["lr"] for work in journal.works}
        boldest = {trial: params[trial] for trial in sorted(params)[:9]}
        assert journal.epochs()[pick(boldest, key=lambda trial: boldest[trial])] == 9
        others = [trial for trial, epoch in journal.epochs().items() if trial in boldest and epoch == 9]
        assert len(others) == 1


def test_brackets_run_together() -> None:
    search = HyperbandAlgorithm(SPACE, LOSS, 9)
    asked = []
    while isinstance(work := search.ask(), Work):
        asked.append(work)
    assert Counter(work.until_epoch for work in asked) == {1: 9, 3: 3, 9: 3}
    for work in asked[:8]:
        search.tell(Report(work.trial, 1, {"val_loss": work.params["lr"]}))
    assert search.ask() == Wait(), "the last trial of the rung is not in"
    search.tell(Report(asked[8].trial, 1, error="out of memory"))
    promoted = [search.ask() for _ in range(3)]
    best = sorted(asked[:8], key=lambda work: work.params["lr"])[:3]
    assert promoted == [Work(work.trial, work.params, 3) for work in best]


def test_budgets_that_are_no_power_are_rounded_down_but_the_last() -> None:
    assert rungs(100, 3) == [1, 3, 11, 33, 100]
    assert rungs(10, 2) == [1, 2, 5, 10]
    assert rungs(1, 3) == [1]
    assert rungs(16, 4, min_epochs=4) == [4, 16]


def test_asha_promotes_on_a_fixed_sequence() -> None:
    """Three in flight, eta 3: a promotion as soon as a third of a rung is better, else a new trial."""
    search = ASHAAlgorithm(SPACE, LOSS, num_trials=9, max_epochs=9, eta=3, max_concurrent=3)
    said: list[tuple[str, int]] = []

    def ask() -> None:
        while isinstance(answer := search.ask(), Work):
            said.append((answer.trial, answer.until_epoch))

    def tell(trial: str, epoch: int, loss: float) -> list[tuple[str, int]]:
        said.clear()
        search.tell(Report(trial, epoch, {"val_loss": loss}))
        ask()
        return list(said)

    ask()
    assert said == [("t0", 1), ("t1", 1), ("t2", 1)]
    assert tell("t0", 1, 0.5) == [("t3", 1)]
    assert tell("t1", 1, 0.4) == [("t4", 1)]
    assert tell("t2", 1, 0.6) == [("t1", 3)], "three are in, and the best third of them is t1"
    assert tell("t3", 1, 0.3) == [("t3", 3)], "of four the best third is t3"
    assert tell("t4", 1, 0.7) == [("t5", 1)], "of five it is t3, which has gone up already"
    assert tell("t1", 2, 0.1) == [], "an epoch between rungs decides nothing"
    assert tell("t1", 3, 0.35) == [("t6", 1)]
    assert tell("t3", 2, 0.4) == []
    assert tell("t3", 3, 0.45) == [("t7", 1)], "two on the second rung: nobody goes up"
    assert tell("t5", 1, 0.2) == [("t5", 3)], "of six the best third is t5 and t3"
    said.clear()
    search.tell(Report("t6", 1, error="out of memory"))
    ask()
    assert said == [("t8", 1)], "a trial that failed frees its place"
    assert tell("t7", 1, 0.9) == []
    assert tell("t5", 2, 0.01) == []
    assert tell("t5", 3, 0.5) == [("t1", 9)], "by its value at the rung, t5 is the last of the three"
    assert tell("t8", 1, 0.95) == []
    for epoch in range(4, 9):
        assert tell("t1", epoch, 0.3) == []
    assert search.ask() == Wait()
    search.tell(Report("t1", 9, {"val_loss": 0.2}))
    assert search.ask() == Done()


@pytest.mark.parametrize("seed", range(5))
def test_no_trial_of_asha_gets_more_than_max_epochs(seed: int) -> None:
    journal = Player(ASHAAlgorithm(SPACE, LOSS, 60, max_epochs=20, eta=2), seed=seed, value=by_lr).play()
    assert max(journal.epochs().values()) == 20
    assert set(journal.epochs().values()) <= {1, 2, 5, 10, 20}
    best = min(journal.works, key=lambda work: float(work.params["lr"])).trial
    assert journal.epochs()[best] == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": 1}, "`eta` is 1, but must be at least 2: with 1 no trial is ever dropped"),
        ({"max_epochs": 0}, "`max_epochs` is 0, but must be at least 1"),
        ({"eta": 2.5}, "`eta` is 2.5, but must be a whole number"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        HyperbandAlgorithm(SPACE, LOSS, **{"max_epochs": 9, **options})
    with pytest.raises(ConfigurationError, match=message):
        ASHAAlgorithm(SPACE, LOSS, **{"num_trials": 9, "max_epochs": 9, **options})
