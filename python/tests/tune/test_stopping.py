"""Early stopping: exactly when, and no epoch more than needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sound_search import search as sound_search
from tune_searches import ALGORITHMS, LOSS, Player, wrapped

from cerebro_spark.search import Done
from cerebro_spark.tune import hp
from cerebro_spark.tune.algorithms.fixed import GridAlgorithm
from cerebro_spark.tune.algorithms.halving import HyperbandAlgorithm
from cerebro_spark.tune.algorithms.pbt import PBTAlgorithm
from cerebro_spark.tune.algorithms.stopping import Stopping
from cerebro_spark.tune.algorithms.tpe import TPEAlgorithm
from cerebro_spark.types import Checkpoint, Report, Work

CURVES = {0: [5, 4, 3, 2, 1, 0], 1: [5, 4, 4, 4, 0, 0], 2: [5, 6, 7, 4, 4, 4], 3: [5, 4, 5, 3, 4, 5]}


def by_curve(trial: str, params: Mapping[str, Any], epoch: int) -> float:
    return CURVES[params["curve"]][epoch - 1]


def grid(**options: Any) -> Stopping:
    return Stopping(GridAlgorithm({"curve": hp.choice([0, 1, 2, 3])}, LOSS, epochs=6), LOSS, **options)


def test_patience_ends_a_trial_after_so_many_epochs_without_a_better_one() -> None:
    journal = Player(grid(patience=2), value=by_curve).play()
    assert journal.epochs() == {"t0": 6, "t1": 4, "t2": 3, "t3": 6}
    assert Player(grid(patience=3), value=by_curve).play().epochs() == {"t0": 6, "t1": 6, "t2": 6, "t3": 6}


def test_after_the_budget_nothing_is_asked_for_and_epochs_under_way_end() -> None:
    search = grid(time_budget=10)
    journal = Player(search, value=by_curve, seconds=1.0).play()
    late = [report for report in journal.reports if report.at >= 10]
    assert 1 <= len(late) <= 4, "at most the epochs that were under way"
    assert search.reason == "10 s have passed, and the budget is 10 s"


def test_a_failure_can_be_what_shows_that_the_time_is_up() -> None:
    search = grid(time_budget=10)
    search.ask()
    search.tell(Report("t0", 1, at=11.0, error="out of memory"))
    assert search.ask() == Done()


@pytest.mark.parametrize("target", [3, 3.5])
def test_the_target_ends_it_all_at_once(target: float) -> None:
    search = grid(target=target)
    journal = Player(search, value=by_curve, seed=1).play()
    reached = [i for i, report in enumerate(journal.reports) if report.metrics["val_loss"] <= target]
    assert len(journal.reports) - 1 - reached[0] <= 3
    assert "reached 3" in str(search.reason)


def test_without_a_reason_to_stop_work_passes_whole(tmp_path: Path) -> None:
    search = sound_search(tmp_path, space={"curve": hp.choice([0, 1, 2, 3])}, epochs=6)._stopping_algorithm(workers=1)
    assert [search.ask().until_epoch for _ in range(4)] == [6, 6, 6, 6]
    assert search.ask() == Done()


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_search_stops_early(name: str) -> None:
    whole = Player(wrapped(name, LOSS, 4)).play()
    rising = {"value": lambda trial, params, epoch: float(epoch)}
    assert len(Player(wrapped(name, LOSS, 4, time_budget=5.0)).play().reports) <= 5 + 4 < len(whole.reports)
    assert len(Player(wrapped(name, LOSS, 4, target=99.0)).play().reports) <= 1 + 4
    patient = Player(wrapped(name, LOSS, 4, patience=1), **rising).play()  # type: ignore[arg-type]
    assert max(patient.epochs().values()) <= 2 or name == "pbt"


def test_a_trial_that_lost_patience_still_teaches_tpe() -> None:
    inner = TPEAlgorithm({"x": hp.uniform(0, 1)}, LOSS, epochs=5, num_trials=5, max_concurrent=1)
    search = Stopping(inner, LOSS, patience=1)
    search.ask()
    search.tell(Report("t0", 1, {"val_loss": 0.3}))
    assert search.ask() == Work("t0", inner.space.params(inner._points[0]), 2)
    search.tell(Report("t0", 2, {"val_loss": 0.4}))
    assert inner._losses == {0: 0.3}
    answer = search.ask()
    assert isinstance(answer, Work)
    assert answer.trial == "t1"


def test_a_promoted_trial_that_lost_patience_gives_its_place_to_the_next_best() -> None:
    search = Stopping(HyperbandAlgorithm({"x": hp.uniform(0, 1)}, LOSS, max_epochs=9), LOSS, patience=1)
    curves = {"t09": [0.9, 0.8, 0.7], "t10": [0.6, 0.5, 0.4], "t11": [0.2, 0.1, 0.3]}
    asked: dict[str, int] = {}

    def ask_all() -> None:
        while isinstance(answer := search.ask(), Work):
            asked[answer.trial] = answer.until_epoch

    for trial, losses in curves.items():
        for epoch, loss in enumerate(losses, 1):
            ask_all()
            search.tell(Report(trial, epoch, {"val_loss": loss}))
    ask_all()
    assert {trial: asked[trial] for trial in curves} == {"t09": 3, "t10": 4, "t11": 3}


def test_a_member_with_new_weights_gets_new_patience() -> None:
    inner = PBTAlgorithm({"lr": hp.uniform(0.1, 1)}, LOSS, population=2, epochs=4, perturb_every=2)
    search = Stopping(inner, LOSS, patience=2)

    def tell(trial: str, epoch: int, loss: float) -> None:
        search.tell(Report(trial, epoch, {"val_loss": loss}, checkpoint=Checkpoint(trial, epoch, 1, epoch)))

    search.ask(), search.ask()
    for epoch in (1, 2):
        tell("t0", epoch, 0.1 / epoch)
        search.ask()
    tell("t1", 1, 0.5)
    search.ask()
    tell("t1", 2, 0.6)
    exploit = search.ask()
    assert isinstance(exploit, Work)
    assert exploit.warm_start == Checkpoint("t0", 2, 1, 2)
    tell("t1", 3, 0.7)
    on = search.ask()
    assert isinstance(on, Work)
    assert (on.trial, on.until_epoch, on.warm_start) == ("t1", 4, None)
