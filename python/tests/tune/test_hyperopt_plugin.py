"""CerebroTrials under hyperopt.fmin: in virtual time what fmin promises, on real workers that models come out of it."""

from __future__ import annotations

import contextlib
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import hyperopt
import numpy as np
import pytest
from hyperopt import anneal, hp, rand, tpe
from hyperopt.early_stop import no_progress_loss
from hyperopt.exceptions import AllTrialsFailed
from simulated_fmin import LossyBackend, torch_fn
from small_search import small_dataset

from cerebro_spark import runs
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import BackendError, CerebroError, ConfigurationError, EventLogError
from cerebro_spark.store import open_store
from cerebro_spark.tune.hyperopt import CerebroTrials
from cerebro_spark.tune.trackers import CSVTracker

NEW, RUNNING, DONE, ERROR, CANCEL = range(5)
SPACE = {"x": hp.uniform("x", -3, 3), "batch_size": 16}
TREE = {
    "lr": hp.loguniform("lr", -5, -1),
    "net": hp.choice("net", [{"kind": "wide", "units": hp.quniform("units", 8, 64, 8)}, {"kind": "flat"}]),
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def parabola(params: Mapping[str, Any], epoch: int) -> float:
    return float(params["x"] - 1) ** 2 + 1 / epoch


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture
def make(dataset: Dataset, tmp_path: Path) -> Callable[..., CerebroTrials]:
    def made(backend: LossyBackend | None = None, **options: Any) -> CerebroTrials:
        given = {"metric": "val_loss", "epochs": 2, "data": dataset, "store": str(tmp_path / "runs"), **options}
        return CerebroTrials(backend=backend or LossyBackend(parabola), **given)

    return made


def minimize(trials: CerebroTrials, space: Any = SPACE, **options: Any) -> Any:
    given = {"algo": tpe.suggest, "max_evals": 6, "max_queue_len": 2, "rstate": np.random.default_rng(3), **options}
    return hyperopt.fmin(torch_fn, space, trials=trials, verbose=False, **given)


def states(trials: CerebroTrials) -> list[int]:
    return [doc["state"] for doc in trials._dynamic_trials]


# -- what fmin promises


@pytest.mark.parametrize("algo", [tpe.suggest, rand.suggest, anneal.suggest])
def test_the_best_is_the_best_and_the_books_are_hyperopts(algo: Any, make: Callable[..., CerebroTrials]) -> None:
    trials = make()
    best = minimize(trials, algo=algo, max_evals=25)
    assert states(trials) == [DONE] * 25
    losses = trials.losses()
    assert best == trials.argmin == {"x": trials.vals["x"][int(np.argmin(losses))]}
    assert losses == pytest.approx([(x - 1) ** 2 + 1 / 2 for x in trials.vals["x"]])
    assert trials.best_trial["result"]["loss"] == min(losses)
    assert trials.tids == list(range(25))
    found = trials.best_trial["result"]
    assert (found["trial"], found["epoch"]) == (trials.result.best_trial.id, 2)
    assert found["params"] == trials.result.best_trial.params == {"x": best["x"], "batch_size": 16}
    assert found["run_id"] == trials.run_ids[0] == trials.result.run_id
    assert trials.result.finished


def at_once(trials: CerebroTrials) -> int:
    """How many trials were under way at a time, at most; in virtual time, with every trial counted by its units."""
    units: Any = trials.result.units
    spans = units.groupby("trial").agg(start=("start", "min"), end=("end", "max"))
    return max(int(((spans.start <= at) & (spans.end > at)).sum()) for at in spans.start)


@pytest.mark.parametrize(("given", "expected"), [({"max_queue_len": 3}, 3), ({"max_queue_len": 1}, 5), ({}, 5)])
def test_with_fuse_enough_trials_are_under_way_to_train_together(
    given: dict[str, int], expected: int, make: Callable[..., CerebroTrials], caplog: pytest.LogCaptureFixture
) -> None:
    """1 is the default of fmin, which cannot be told from one that was given."""
    trials = make(fuse=4)
    hyperopt.fmin(torch_fn, SPACE, trials=trials, algo=rand.suggest, max_evals=20, verbose=False, **given)
    assert at_once(trials) == expected
    assert ("`max_queue_len` is 1" in caplog.text) == (expected == 5)
    assert expected == 3 or trials.result.units["width"].max() > 1


def test_trials_may_train_together(make: Callable[..., CerebroTrials]) -> None:
    trials = make(fuse=4)
    minimize(trials, max_evals=16, max_queue_len=8)
    assert states(trials) == [DONE] * 16
    assert trials.losses() == pytest.approx([(x - 1) ** 2 + 1 / 2 for x in trials.vals["x"]])
    assert trials.result.units["width"].max() == 4
    assert not trials.result.units.duplicated(["trial", "epoch", "partition", "kind"]).any()


def test_one_at_a_time_it_asks_as_plain_trials_would(make: Callable[..., CerebroTrials]) -> None:
    """The same seeds and losses give the same points, so the algorithm saw the same history each time."""

    def objective(params: Mapping[str, Any]) -> float:
        return parabola(params, 2)

    plainly = hyperopt.Trials()
    options: dict[str, Any] = {"algo": tpe.suggest, "max_evals": 26, "verbose": False}
    hyperopt.fmin(objective, SPACE, trials=plainly, rstate=np.random.default_rng(3), **options)
    trials = make(LossyBackend(parabola, workers=1))
    minimize(trials, max_evals=26, max_queue_len=1)
    assert trials.vals == plainly.vals
    assert trials.losses() == pytest.approx(plainly.losses())


def test_no_more_than_max_queue_len_are_under_way(make: Callable[..., CerebroTrials]) -> None:
    backend = LossyBackend(parabola, workers=4)
    trials = make(backend)
    seen = []
    backend.at_unit = lambda number: seen.append(states(trials).count(RUNNING) + states(trials).count(NEW))
    minimize(trials, max_evals=12, max_queue_len=3)
    assert max(seen) == 3
    assert seen[0] == 3


def test_a_metric_of_which_more_is_better_is_negated(make: Callable[..., CerebroTrials]) -> None:
    trials = make(metric="val_score", mode="max")
    best = minimize(trials, max_evals=10)
    assert trials.losses() == pytest.approx([(x - 1) ** 2 + 1 / 2 for x in trials.vals["x"]])
    assert trials.result.best_trial.params["x"] == best["x"]


def test_conditional_spaces_are_trained_as_they_are(make: Callable[..., CerebroTrials]) -> None:
    trials = make(LossyBackend(lambda params, epoch: params["lr"] + len(params["net"])))
    best = minimize(trials, TREE, max_evals=24, return_argmin=False)
    assert best["net"] == {"kind": "flat"}
    for result in trials.results:
        net = result["params"]["net"]
        assert ("units" in net) == (net["kind"] == "wide")
        assert all(type(value) in (float, str) for value in (result["params"]["lr"], *net.values()))


def test_points_to_evaluate_come_first_and_teach(make: Callable[..., CerebroTrials]) -> None:
    points = [{"lr": 0.01, "net": 1}, {"lr": 0.1, "net": 0, "units": 16.0}]
    trials = make(LossyBackend(lambda params, epoch: params["lr"]), points_to_evaluate=points)
    minimize(trials, TREE, max_evals=24, max_queue_len=1)
    assert [result["params"] for result in trials.results[:2]] == [
        {"lr": 0.01, "net": {"kind": "flat"}},
        {"lr": 0.1, "net": {"kind": "wide", "units": 16.0}},
    ]
    assert len(trials) == 24
    assert points == [{"lr": 0.01, "net": 1}, {"lr": 0.1, "net": 0, "units": 16.0}]


def test_points_of_which_nothing_came_are_tried_again(make: Callable[..., CerebroTrials]) -> None:
    def interrupt(number: int) -> None:
        raise KeyboardInterrupt

    backend = LossyBackend(parabola)
    backend.at_unit = interrupt
    trials = make(backend, points_to_evaluate=[{"x": 0.5}, {"x": 0.25}])
    with pytest.raises(KeyboardInterrupt):
        minimize(trials)
    trials.backend = LossyBackend(parabola)  # one of virtual time runs once
    minimize(trials)
    assert [result["params"]["x"] for result in trials.results[:2]] == [0.5, 0.25]


@pytest.mark.parametrize(
    ("point", "message"),
    [({"speed": 1}, "the space has no speed: it has lr, net, units"), ({"lr": 0.1}, "missing for one of net, units")],
)
def test_a_point_that_the_space_does_not_have_is_said_before_anything_runs(
    point: dict[str, Any], message: str, make: Callable[..., CerebroTrials]
) -> None:
    trials = make(points_to_evaluate=[point])
    with pytest.raises(ConfigurationError, match=message):
        minimize(trials, TREE)
    assert trials.run_ids == []


def test_a_second_fmin_goes_on(make: Callable[..., CerebroTrials]) -> None:
    trials = make()
    minimize(trials, max_evals=4)
    first = [dict(doc["result"]) for doc in trials.trials]
    minimize(trials, max_evals=4)
    assert len(trials) == 4, "max_evals counts all there are, as with plain trials"
    minimize(trials, max_evals=9)
    assert [doc["result"] for doc in trials.trials[:4]] == first
    assert trials.tids == list(range(9))
    assert len(set(trials.run_ids)) == 2, "one with nothing to do is no run"
    assert {result["run_id"] for result in trials.results[4:]} == {trials.run_ids[1]}
    assert sorted(trials.result.trials["trial"]) == [f"t{tid:04d}" for tid in range(4, 9)]


def test_data_is_prepared_once(make: Callable[..., CerebroTrials], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=80), "y": rng.normal(size=80)}
    trials = make(data=data, features=["x"], label="y", validation=0.25)
    minimize(trials, max_evals=2)
    before = sorted((tmp_path / "runs").glob("**/*.parquet"))
    minimize(trials, max_evals=4)
    assert before == sorted((tmp_path / "runs").glob("**/*.parquet")) != []


def test_spaces_may_be_annotations(make: Callable[..., CerebroTrials]) -> None:
    def build(x: Any) -> Any:
        return torch_fn({"x": x})

    build.__annotations__ = {"x": hp.uniform("x", -3, 3)}
    trials = make()
    best = hyperopt.fmin(build, "annotated", algo=rand.suggest, max_evals=3, trials=trials, verbose=False)
    assert trials.best_trial["result"]["params"] == best


def test_a_space_need_be_no_dict(make: Callable[..., CerebroTrials]) -> None:
    trials = make(LossyBackend(lambda params, epoch: (params["value"] - 1) ** 2))
    best = minimize(trials, hp.uniform("x", -3, 3), max_evals=8)
    assert [result["params"] for result in trials.results] == trials.vals["x"]
    assert trials.result.best_trial.params == {"value": best["x"]}
    assert minimize(trials, hp.uniform("x", -3, 3), max_evals=8, return_argmin=False) == best["x"]
    pair = make(LossyBackend(lambda params, epoch: params["value"][0] ** 2))
    minimize(pair, [hp.uniform("x", -3, 3), hp.choice("kind", ["wide", "flat"])], max_evals=4)
    first = pair.results[0]["params"]
    assert (first[0], first[1] in ("wide", "flat")) == (pair.vals["x"][0], True)
    either = make(LossyBackend(lambda params, epoch: 1.0))
    minimize(either, hp.choice("either", [{"lr": hp.uniform("lr", 0, 1)}, hp.uniform("x", 0, 1)]), max_evals=8)
    assert {type(result["params"]) for result in either.results} == {dict, float}


def test_trials_are_pickled_without_their_backend(make: Callable[..., CerebroTrials], tmp_path: Path) -> None:
    trials = make(input_fn=lambda batch, params: batch, trackers=[CSVTracker(tmp_path / "runs.csv")])
    minimize(trials, max_evals=3)
    again = pickle.loads(pickle.dumps(trials))
    assert (again.losses(), again.run_ids, again.backend) == (trials.losses(), trials.run_ids, None)
    assert again.argmin == trials.argmin
    assert again.result.best_trial == trials.result.best_trial
    with pytest.raises(ConfigurationError, match=r"unpickled, and backends are not pickled: say trials.backend ="):
        minimize(again, max_evals=5)
    with pytest.raises(ConfigurationError, match="`backend` is a str"):
        again.backend = "spark"
    again.backend = LossyBackend(parabola)
    minimize(again, max_evals=5)
    assert (len(again), len(trials), len(set(again.run_ids))) == (5, 3, 2)


def test_what_opens_a_store_is_not_pickled(make: Callable[..., CerebroTrials]) -> None:
    store = open_store("memory://trials", storage_options={"password": "not-for-the-pickle"})
    rows = {"x": np.arange(40.0), "y": np.arange(40.0)}
    options = {"data": rows, "features": ["x"], "label": "y", "validation": 0.25, "store": store}
    trials = make(**options)
    unprepared = pickle.dumps(trials)
    minimize(trials, max_evals=2)
    prepared = pickle.dumps(trials)
    assert b"not-for-the-pickle" not in unprepared + prepared
    again = pickle.loads(prepared)
    again.backend = LossyBackend(parabola)
    minimize(again, max_evals=3)
    assert len(again) == 3


def test_workers_that_will_stand_idle_are_told_of(
    make: Callable[..., CerebroTrials], caplog: pytest.LogCaptureFixture
) -> None:
    minimize(make(), max_queue_len=1)
    assert [record.message for record in caplog.records if "`max_queue_len` is 1, so of 2 workers" in record.message]
    caplog.clear()
    minimize(make(), max_queue_len=2)
    assert not caplog.records


def test_a_bar_of_the_users_own_is_told(make: Callable[..., CerebroTrials]) -> None:
    class Bar:
        done, postfix = 0, ""

        def update(self, count: int) -> None:
            self.done += count

    bar = Bar()

    @contextlib.contextmanager
    def shown(initial: int, total: int) -> Iterator[Bar]:
        assert (initial, total) == (0, 6)
        yield bar

    trials = make()
    minimize(trials, show_progressbar=shown)
    assert (bar.done, bar.postfix) == (6, f"best loss: {min(trials.losses())}")


# -- when it stops


def test_it_stops_at_a_loss_threshold_and_cancels_what_is_under_way(make: Callable[..., CerebroTrials]) -> None:
    trials = make(epochs=3)
    minimize(trials, max_evals=500, loss_threshold=0.9, max_queue_len=3)
    assert min(trials.losses()) < 0.9
    assert sum(loss < 0.9 for loss in trials.losses()) <= 3
    assert len(trials) < 100
    assert set(states(trials)) <= {DONE, CANCEL}


def test_it_stops_after_a_timeout(make: Callable[..., CerebroTrials]) -> None:
    backend = LossyBackend(parabola)
    trials = make(backend, epochs=5)
    minimize(trials, max_evals=100_000, timeout=32)
    assert len(trials) == 2
    assert 32 <= backend.now() <= 38, "what is under way ends with its epoch"
    assert states(trials) == [DONE] * len(trials) + [CANCEL] * 2


def test_it_stops_when_early_stop_fn_says_so_with_several_under_way(make: Callable[..., CerebroTrials]) -> None:
    trials = make(LossyBackend(lambda params, epoch: 1.0), epochs=1)
    minimize(trials, max_evals=500, early_stop_fn=no_progress_loss(5), max_queue_len=4)
    assert 6 <= len(trials) <= 10


def test_a_timeout_before_any_trial_ended_is_said(make: Callable[..., CerebroTrials]) -> None:
    trials = make(LossyBackend(parabola))
    with pytest.raises(CerebroError, match="no trial was finished"):
        minimize(trials, timeout=0.01)
    assert set(states(trials)) == {CANCEL}
    assert minimize(trials, timeout=0.01, return_argmin=False) is None
    assert set(states(trials)) == {CANCEL}


# -- when something goes wrong


def failing_below_zero(params: Mapping[str, Any], epoch: int) -> float:
    return math.sqrt(params["x"]) if params["x"] > 0 else 1 / 0


def test_failed_trials_are_done_and_the_others_go_on(make: Callable[..., CerebroTrials]) -> None:
    trials = make(LossyBackend(failing_below_zero))
    minimize(trials, max_evals=24)
    statuses = [("ok" if x > 0 else "fail") for x in trials.vals["x"]]
    assert trials.statuses() == statuses
    assert {"ok", "fail"} == set(statuses)
    assert [loss is None for loss in trials.losses()] == [status == "fail" for status in statuses]
    failed = next(result for result in trials.results if result["status"] == "fail")
    assert "it broke" in failed["error"]
    assert trials.best_trial["result"]["status"] == "ok"


def test_losses_that_are_no_numbers_are_failures(make: Callable[..., CerebroTrials]) -> None:
    trials = make(LossyBackend(lambda params, epoch: params["x"] if params["x"] > 0 else float("nan")))
    minimize(trials, max_evals=12)
    assert [loss is None for loss in trials.losses()] == [x < 0 for x in trials.vals["x"]]


def test_when_all_fail_it_says_why(make: Callable[..., CerebroTrials]) -> None:
    def broken(params: Mapping[str, Any], epoch: int) -> float:
        return 1 / 0

    with pytest.raises(AllTrialsFailed, match=r"all 6 trials failed; the first with params \{.*'x'.*(.|\n)*it broke"):
        minimize(make(LossyBackend(broken)))


@pytest.mark.parametrize(("error", "left"), [(KeyboardInterrupt(), CANCEL), (RuntimeError("boom"), ERROR)])
def test_an_interrupt_ends_it_and_another_fmin_goes_on(
    error: BaseException, left: int, make: Callable[..., CerebroTrials]
) -> None:
    backend = LossyBackend(parabola)

    def interrupt(number: int) -> None:
        if number == 20:
            raise error

    backend.at_unit = interrupt
    trials = make(backend)
    with pytest.raises(type(error)):
        minimize(trials, max_evals=50)
    ended = len(trials)
    assert states(trials) == [DONE] * ended + [left] * 2
    assert [trials.run_ids[0] in note for note in error.__notes__] == [True], "fmin goes on with the run, if it is told"
    assert not trials.result.finished
    trials.backend = LossyBackend(parabola)
    minimize(trials, max_evals=ended + 3)
    assert trials.tids == [*range(ended), *range(ended + 2, ended + 5)]


def test_a_dead_backend_ends_it(make: Callable[..., CerebroTrials]) -> None:
    trials = make(LossyBackend(parabola, lives=30))
    with pytest.raises(BackendError, match="all workers are gone"):
        minimize(trials, max_evals=50)
    assert set(states(trials)) == {DONE, ERROR}
    assert all(
        "all workers are gone" in doc["misc"]["error"][1] for doc in trials._dynamic_trials if doc["state"] == ERROR
    )


def test_its_run_is_not_resumed_without_it_and_says_so(make: Callable[..., CerebroTrials], tmp_path: Path) -> None:
    trials = make()
    minimize(trials)
    with pytest.raises(EventLogError, match=r"led by hyperopt\.fmin(.|\n)*call fmin again"):
        runs.resume(str(tmp_path / "runs"), trials.run_ids[0], LossyBackend(parabola))


# -- what cannot work is said before anything runs


def test_a_function_that_names_no_framework_is_told_what_to_return(make: Callable[..., CerebroTrials]) -> None:
    def objective(params: Mapping[str, Any]) -> float:
        return float(params["x"] ** 2)

    with pytest.raises(
        ConfigurationError, match=r"builds a model from its params and returns it.*does not return a loss"
    ):
        hyperopt.fmin(objective, SPACE, algo=rand.suggest, max_evals=2, trials=make(), verbose=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_concurrent": 3}, r"has no argument 'max_concurrent': give it as hyperopt.fmin\(..., max_queue_len"),
        ({"time_budget": 3.0}, r"has no argument 'time_budget': give it as hyperopt.fmin\(..., timeout"),
        ({"metric": "profit"}, "mode='max'"),
        ({"epochs": 0}, "`epochs` is 0"),
        ({"feature": ["x"]}, "did you mean 'features'"),
        ({"data": None}, "`data` is None, but must be a DataFrame"),
        ({"wings": 1}, "^CerebroTrials has no argument 'wings': it has .*epochs"),
        ({"space": SPACE}, r"^CerebroTrials has no argument 'space': give it as hyperopt.fmin\(..., space=...\)"),
        (
            {"model_fn": torch_fn},
            r"^CerebroTrials has no argument 'model_fn': give it as hyperopt.fmin\(model_fn, ...\)",
        ),
        ({"max_evals": 3}, r"^CerebroTrials has no argument 'max_evals': give it as hyperopt.fmin\(..., max_evals"),
        ({"absent": 3}, "^CerebroTrials has no argument 'absent'"),
        ({"instead": {}}, "^CerebroTrials has no argument 'instead'"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str, make: Callable[..., CerebroTrials]) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("space", "options", "message"),
    [
        (
            hp.choice("x", [0.5, {"value": 0.5}]),
            {"max_evals": 99},
            "'value' as the only name is what stands for a value",
        ),
        (SPACE, {"pass_expr_memo_ctrl": True}, "far from hyperopt"),
        (SPACE, {"trials_save_file": "trials.pkl"}, "keeps its own log"),
        (SPACE, {"max_queue_len": 0}, "`max_queue_len` is 0"),
    ],
)
def test_wrong_calls(space: Any, options: dict[str, Any], message: str, make: Callable[..., CerebroTrials]) -> None:
    trials = make()
    with pytest.raises(ConfigurationError, match=message):
        minimize(trials, space, **options)
    assert set(states(trials)) <= {ERROR}
    with pytest.raises(CerebroError, match="there is no result yet"):
        _ = trials.result
