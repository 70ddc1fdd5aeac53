"""PBT: who learns from whom, with which params, from which checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
from tune_searches import ACCURACY, LOSS, Player

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.search import Done, Wait
from cerebro_spark.tune import hp
from cerebro_spark.tune.algorithms.pbt import PBTAlgorithm
from cerebro_spark.types import Checkpoint, Report, Work

SPACE = {"lr": hp.loguniform(1e-4, 1e-1), "hidden": hp.choice([64, 128]), "drop": hp.uniform(0, 0.5)}


def told(trial: str, epoch: int, value: float, metric: str = "val_accuracy") -> Report:
    return Report(trial, epoch, {metric: value}, checkpoint=Checkpoint(trial, epoch, 3, attempt=10 * epoch))


def started(search: PBTAlgorithm) -> list[Work]:
    works = []
    while isinstance(answer := search.ask(), Work):
        works.append(answer)
    return works


def test_the_worst_goes_on_from_the_best_with_params_near_its_own() -> None:
    search = PBTAlgorithm(SPACE, ACCURACY, population=4, epochs=6, perturb_every=2, seed=3)
    first = {work.trial: work for work in started(search)}
    assert {work.until_epoch for work in first.values()} == {2}
    for number, trial in enumerate(first):
        search.tell(told(trial, 1, 0.1))
        assert started(search) == [], "between perturbations nothing is decided"
        search.tell(told(trial, 2, 0.5 + number / 10))
        (on,) = started(search)
        if trial != "t3":
            assert on == Work(trial, first[trial].params, 4), "it goes on with its own"
    # By now: t0 0.5, t1 0.6, t2 0.7, t3 0.8. The next to report is the worst of all, then the best of all.
    search.tell(told("t0", 3, 0.1))
    search.tell(told("t0", 4, 0.55))
    (exploit,) = started(search)
    assert exploit.trial == "t0"
    assert exploit.until_epoch == 6
    assert exploit.warm_start == Checkpoint("t3", 2, 3, attempt=20)
    parent = first["t3"].params
    assert exploit.params["hidden"] == parent["hidden"], "a whole number may shape the model"
    for name in ("lr", "drop"):
        ratio = exploit.params[name] / parent[name]
        at_a_bound = exploit.params[name] in (1e-4, 1e-1, 0.5)
        assert at_a_bound or any(ratio == pytest.approx(factor) for factor in (0.8, 1.2))


def test_a_parent_that_moved_on_gives_its_last_reported_checkpoint() -> None:
    search = PBTAlgorithm(SPACE, LOSS, population=2, epochs=4, perturb_every=2)
    started(search)
    for epoch in (1, 2, 3):
        search.tell(told("t0", epoch, 0.1, "val_loss"))
        started(search)
    for epoch in (1, 2):
        search.tell(told("t1", epoch, 0.9, "val_loss"))
    (work,) = started(search)
    assert (work.trial, work.warm_start) == ("t1", Checkpoint("t0", 3, 3, 30))
    search.tell(told("t0", 4, 0.1, "val_loss"))
    assert search.ask() == Wait()
    for epoch in (3, 4):
        search.tell(told("t1", epoch, 0.5, "val_loss"))
    assert search.ask() == Done(), "nobody is perturbed after the last epoch"


@pytest.mark.parametrize("ended", [True, False])
def test_nobody_learns_from_a_member_that_failed_but_from_one_that_was_ended(ended: bool) -> None:
    search = PBTAlgorithm(SPACE, LOSS, population=3, epochs=4, perturb_every=1)
    started(search)
    search.tell(told("t0", 1, 0.1, "val_loss"))
    if ended:
        search.end("t0")
    else:
        search.tell(Report("t0", 2, error="out of memory"))
    search.tell(told("t1", 1, 0.5, "val_loss"))
    search.tell(told("t2", 1, 0.9, "val_loss"))
    works = {work.trial: work for work in started(search)}
    assert set(works) == {"t1", "t2"}
    start = works["t2"].warm_start
    assert start is not None
    assert start.trial == ("t0" if ended else "t1")


def test_equals_do_not_copy_each_other() -> None:
    search = PBTAlgorithm(SPACE, LOSS, population=4, epochs=5)
    journal = Player(search, value=lambda *_: 0.5).play()
    assert not any(work.warm_start for work in journal.works)


def test_what_explores_can_be_named() -> None:
    options: dict[str, Any] = {"population": 4, "epochs": 9}
    space = {"batch_size": hp.choice([32, 64, 128]), "net": hp.choice(["a", {"k": hp.uniform(0, 1)}])}
    search = PBTAlgorithm(space, LOSS, perturb=["batch_size", "net"], **options)
    journal = Player(search, value=lambda trial, params, epoch: float(trial[1:]) + params["batch_size"]).play()
    assert any(work.warm_start for work in journal.works)
    assert {work.params["batch_size"] for work in journal.works} <= {32, 64, 128}
    with pytest.raises(ConfigurationError, match=r"nothing can explore: add one.*\['n'\] as `perturb`"):
        PBTAlgorithm({"n": hp.randint(1, 5)}, LOSS, **options)
    with pytest.raises(ConfigurationError, match=r"`perturb` is \['rate'\], but must name"):
        PBTAlgorithm(SPACE, LOSS, perturb=["rate"], **options)
    with pytest.raises(ConfigurationError, match=r"`quantile` is 0\.6"):
        PBTAlgorithm(SPACE, LOSS, quantile=0.6, **options)
    with pytest.raises(ConfigurationError, match="`population` is 1, but must be at least 2"):
        PBTAlgorithm(SPACE, LOSS, population=1, epochs=3)
