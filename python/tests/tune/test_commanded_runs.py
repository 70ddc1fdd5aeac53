"""Commands to real engines: from the handle, from the store's mailbox, and to runs that others lead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hyperopt
import numpy as np
import optuna
import pytest
from plain_loop import logged
from simulated_fmin import LossyBackend, torch_fn
from small_search import small_dataset, small_rows, torch_model_fn

import cerebro_spark as cs
from cerebro_spark import hp, mailbox
from cerebro_spark.commands import Command
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import CerebroError, CommandRefused, ConfigurationError
from cerebro_spark.events import CommandAnswered, CommandReceived, GatheringBegan, UnitFinished
from cerebro_spark.forecast.files import ForecastFolder
from cerebro_spark.forecast.values import Forecast
from cerebro_spark.live.run import Run
from cerebro_spark.mailbox import MailboxPoller
from cerebro_spark.relay import Relay
from cerebro_spark.store import paths
from cerebro_spark.store.opening import open_store
from cerebro_spark.tune.hyperopt import CerebroTrials
from cerebro_spark.tune.optuna import optimize
from cerebro_spark.types import Partition


@pytest.fixture(autouse=True)
def _nothing_at_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.live.run._wait_at_exit_for", lambda run: None)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return small_dataset(tmp_path_factory.mktemp("data"), rows=80)


def parabola(params: Mapping[str, Any], epoch: int) -> float:
    return float(params["x"] - 1) ** 2 + 1 / epoch


class Acting(LossyBackend):
    """Calls something when so many units have ended, in the driver's thread; the run waits meanwhile."""

    def __init__(self, acts: Mapping[int, Callable[[], None]], lives: int | None = None) -> None:
        super().__init__(parabola, lives=lives)
        self.at_unit = lambda number: acts.get(number, lambda: None)()


def wait_for(event: threading.Event) -> None:
    assert event.wait(60)


def grid(folder: Path, backend: Any, epochs: int = 6) -> cs.GridSearch:
    options: dict[str, Any] = {"metric": "val_loss", "epochs": epochs, "backend": backend, "progress": False}
    return cs.GridSearch(torch_fn, space={"x": hp.choice([0.0, 1.0, 2.0])}, store=str(folder), **options)


def answers(folder: Path, run: str = "mine") -> list[tuple[bool, str]]:
    events = logged(open_store(str(folder)), run)
    return [(event.done, event.reason) for event in events if isinstance(event, CommandAnswered)]


def last_epochs(folder: Path, run: str = "mine") -> dict[str, int]:
    units = (event.unit for event in logged(open_store(str(folder)), run) if isinstance(event, UnitFinished))
    found: dict[str, int] = {}
    for unit in units:
        found[unit.trial] = max(found.get(unit.trial, 0), unit.epoch)
    return found


class Told:
    """Sends a command from another thread, and lets the driver go on as soon as it is on its way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._posted = threading.Event()
        self.answers: list[Any] = []
        self._people: list[threading.Thread] = []
        post = Relay.post

        def posted(relay: Relay, command: Command) -> None:
            post(relay, command)
            self._posted.set()

        monkeypatch.setattr(Relay, "post", posted)

    def __call__(self, tell: Callable[[], Any]) -> None:
        """To be called in the driver's thread."""

        place = len(self.answers)
        self.answers.append(None)

        def say() -> None:
            try:
                self.answers[place] = tell()
            except CerebroError as error:
                self.answers[place] = error

        self._posted.clear()
        person = threading.Thread(target=say)
        person.start()
        self._people.append(person)
        assert self._posted.wait(60)

    def hear(self) -> list[Any]:
        for person in self._people:
            person.join(60)
        return self.answers


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    made = Told(monkeypatch)
    yield made
    made.hear()


def test_a_handle_stops_clones_and_ends(told: Told, dataset: Dataset, tmp_path: Path) -> None:
    runs: list[Run] = []
    acts = {
        6: lambda: told(lambda: runs[0].stop_trial("t0")),
        12: lambda: told(lambda: runs[0].clone("t1", {"x": 1.5}, warm_start=False, epochs=1)),
        18: lambda: told(lambda: runs[0].stop_trial("t0")),
        40: lambda: told(lambda: runs[0].end()),
    }
    ready = threading.Event()
    acts[1] = lambda: wait_for(ready)
    runs.append(grid(tmp_path, Acting(acts), epochs=9).start(dataset, run_id="mine"))
    ready.set()
    result = runs[0].wait(60)
    stop, clone, again, end = told.hear()
    assert (stop.done, clone.done, end.done) == (True, True, True)
    assert clone.trial in result.trials["trial"].tolist()
    assert isinstance(again, CommandRefused)
    assert runs[0].status == "done"
    assert last_epochs(tmp_path)["t0"] < 9
    assert last_epochs(tmp_path)[clone.trial] == 1
    assert len(answers(tmp_path)) == 4


def test_a_command_in_the_mailbox_is_heard_answered_and_deleted(
    told: Told, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cerebro_spark.mailbox.EVERY", 0.01)
    acts = {6: lambda: told(lambda: cs.attach(str(tmp_path), "mine").stop_trial("t0"))}
    grid(tmp_path, Acting(acts), epochs=40).fit(dataset, run_id="mine")
    [answer] = told.hear()
    assert answer.done
    assert last_epochs(tmp_path)["t0"] < 40
    assert last_epochs(tmp_path)["t1"] == 40


class Starting(LossyBackend):
    """Calls something when it is started, in the driver's thread."""

    def __init__(self, act: Callable[[], None], lives: int | None = None) -> None:
        super().__init__(parabola, lives=lives)
        self._act = act

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        self._act()
        super().start(partitions, at)


def broken_off(folder: Path, dataset: Dataset) -> None:
    with pytest.raises(CerebroError, match="all workers are gone"):
        grid(folder, LossyBackend(parabola, lives=7)).fit(dataset, run_id="mine")


def test_a_command_that_waits_for_a_driver_is_obeyed_first_when_the_run_is_resumed(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off(tmp_path, dataset)
    left = cs.attach(str(tmp_path), "mine", leave=True).stop_trial("t2")
    assert not left.done
    post, look, started = Relay.post, MailboxPoller.look, threading.Event()
    heard: list[str] = []
    before: list[str] = []

    def note(relay: Relay, command: Command) -> None:
        post(relay, command)
        heard.append(command.id)

    def look_late(mailbox: MailboxPoller) -> None:
        started.wait(0.5)  # the run has every chance to begin first
        look(mailbox)

    def start() -> None:
        before.extend(heard)
        started.set()

    monkeypatch.setattr(Relay, "post", note)
    monkeypatch.setattr(MailboxPoller, "look", look_late)
    monkeypatch.setattr("cerebro_spark.mailbox._MOST_SECONDS", 60.0)
    assert cs.resume(str(tmp_path), "mine", backend=Starting(start)).finished
    assert before == [left.command.id]
    events = logged(open_store(str(tmp_path)), "mine")
    again = next(number for number, event in enumerate(events) if isinstance(event, GatheringBegan))
    news = [event for event in events[again:] if isinstance(event, (CommandReceived, UnitFinished))]
    assert isinstance(news[0], CommandReceived)
    assert sum(isinstance(event, CommandReceived) for event in events) == 1
    assert last_epochs(tmp_path)["t2"] < 6


def test_the_file_of_a_command_that_an_earlier_driver_logged_is_deleted(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That driver was killed after it had logged the command, and before it deleted its file."""
    monkeypatch.setattr("cerebro_spark.mailbox._MOST_SECONDS", 60.0)
    broken_off(tmp_path, dataset)
    left = cs.attach(str(tmp_path), "mine", leave=True).stop_trial("t2")
    store = open_store(str(tmp_path))
    with pytest.raises(CerebroError, match="all workers are gone"):
        cs.resume(str(tmp_path), "mine", backend=LossyBackend(parabola, lives=3))
    assert len(answers(tmp_path)) == 1
    assert store.list(paths.mailbox("mine")) == []
    mailbox.send(store, "mine", left.command)
    assert cs.resume(str(tmp_path), "mine", backend=LossyBackend(parabola)).finished
    assert len(answers(tmp_path)) == 1
    assert store.list(paths.mailbox("mine")) == []


def test_what_an_earlier_driver_foresaw_is_gone_when_the_next_one_begins(dataset: Dataset, tmp_path: Path) -> None:
    broken_off(tmp_path, dataset)
    store = open_store(str(tmp_path))
    ForecastFolder(store, "mine").write(Forecast(1.0, 1, 300.0, 200.0, 400.0))
    seen: list[list[str]] = []
    cs.resume(str(tmp_path), "mine", backend=Starting(lambda: seen.append(store.list(paths.forecasts("mine")))))
    assert seen == [[]]


def test_nobody_waits_for_a_run_in_the_thread_that_drives_it_through_the_store_either(
    dataset: Dataset, tmp_path: Path
) -> None:
    said: list[str] = []

    def tell() -> None:
        afar = cs.attach(str(tmp_path), "mine")
        assert afar.status == "running"
        for call in (afar.pause, afar.wait):
            with pytest.raises(ConfigurationError) as caught:
                call()
            said.append(str(caught.value))

    grid(tmp_path, Acting({6: tell})).fit(dataset, run_id="mine")
    assert len(said) == 2
    assert all("would wait for itself: call it in another thread" in each for each in said)
    assert answers(tmp_path) == []
    with pytest.raises(CommandRefused, match="run mine is done"):
        cs.attach(str(tmp_path), "mine").pause()


def test_a_killed_run_goes_on_and_is_not_killed_again(told: Told, dataset: Dataset, tmp_path: Path) -> None:
    runs: list[Run] = []
    ready = threading.Event()
    acts = {1: lambda: wait_for(ready), 6: lambda: told(lambda: runs[0].kill())}
    runs.append(grid(tmp_path, Acting(acts)).start(dataset, run_id="mine"))
    ready.set()
    with pytest.raises(CerebroError, match="killed"):
        runs[0].wait(60)
    assert runs[0].status == "stopped"
    assert cs.resume(str(tmp_path), "mine", backend=LossyBackend(parabola)).finished


def test_ctrl_c_stops_a_run_that_can_be_resumed(dataset: Dataset, tmp_path: Path) -> None:
    runs: list[Run] = []
    ready = threading.Event()
    acts = {1: lambda: wait_for(ready), 6: lambda: runs[0]._interrupt()}
    runs.append(grid(tmp_path, Acting(acts)).start(dataset, run_id="mine"))
    ready.set()
    with pytest.raises(KeyboardInterrupt):
        runs[0].wait(60)
    assert runs[0].status == "stopped"
    assert 'run mine can be resumed: cs.resume("' in runs[0].error.__notes__[0]  # type: ignore[union-attr]
    assert cs.resume(str(tmp_path), "mine", backend=LossyBackend(parabola)).finished


# -- runs that others lead


def led_acts(told: Told, folder: Path) -> dict[int, Callable[[], None]]:
    store = open_store(str(folder))

    def send(command: Command) -> Callable[[], str]:
        return lambda: mailbox.send(store, "mine", command)

    return {
        20: lambda: told(send(Command("stop_trial", id="c1", trial="t0000"))),
        70: lambda: told(send(Command("end", id="c2"))),
    }


def test_fmin_hears_stop_and_end(told: Told, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.mailbox.EVERY", 0.01)
    trials = CerebroTrials(
        store=str(tmp_path),
        data=dataset,
        metric="val_loss",
        epochs=9,
        backend=Acting(led_acts(told, tmp_path)),
        run_id="mine",
    )
    options: dict[str, Any] = {"max_evals": 20, "max_queue_len": 2, "show_progressbar": False}
    space = {"x": hyperopt.hp.uniform("x", -3, 3)}
    hyperopt.fmin(torch_fn, space, hyperopt.rand.suggest, trials=trials, rstate=np.random.default_rng(1), **options)
    assert [done for done, _ in answers(tmp_path)] == [True, True]
    assert trials.result.finished
    assert 0 < len(trials) < 20
    first = next(doc for doc in trials.trials if doc["tid"] == 0)
    assert (first["state"], first["result"]["status"]) == (hyperopt.JOB_STATE_DONE, hyperopt.STATUS_OK)
    assert last_epochs(tmp_path)["t0000"] < 9
    assert not any(doc["state"] == hyperopt.JOB_STATE_RUNNING for doc in trials._dynamic_trials)


def test_what_a_person_told_a_led_run_holds_when_it_goes_on(
    told: Told, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cerebro_spark.mailbox.EVERY", 0.01)
    stop = led_acts(told, tmp_path)[20]

    def fmin(backend: LossyBackend) -> CerebroTrials:
        fixed: dict[str, Any] = {"store": str(tmp_path), "data": dataset, "metric": "val_loss", "epochs": 9}
        trials = CerebroTrials(backend=backend, run_id="mine", **fixed)
        options: dict[str, Any] = {"max_evals": 4, "max_queue_len": 2, "show_progressbar": False}
        space = {"x": hyperopt.hp.uniform("x", -3, 3)}
        hyperopt.fmin(torch_fn, space, hyperopt.rand.suggest, trials=trials, rstate=np.random.default_rng(1), **options)
        return trials

    with pytest.raises(CerebroError, match="all workers are gone"):
        fmin(Acting({20: stop}, lives=50))
    reached = last_epochs(tmp_path)["t0000"]
    trials = fmin(LossyBackend(parabola))
    assert [done for done, _ in answers(tmp_path)] == [True]
    assert last_epochs(tmp_path) == {"t0000": reached, "t0001": 9, "t0002": 9, "t0003": 9}
    assert [doc["state"] for doc in trials.trials] == [hyperopt.JOB_STATE_DONE] * 4
    assert trials.result.trials.set_index("trial").status["t0000"] == "stopped"


def test_optimize_hears_stop_and_end(
    told: Told, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cerebro_spark.mailbox.EVERY", 0.01)
    study = optuna.create_study(pruner=optuna.pruners.NopPruner())
    result = optimize(
        study,
        torch_fn,
        {"x": optuna.distributions.FloatDistribution(-3, 3)},
        data=dataset,
        store=str(tmp_path),
        metric="val_loss",
        epochs=9,
        n_trials=20,
        max_concurrent=2,
        backend=Acting(led_acts(told, tmp_path)),
        run_id="mine",
    )
    assert result.finished
    assert [done for done, _ in answers(tmp_path)] == [True, True]
    assert study.trials[0].state == optuna.trial.TrialState.PRUNED
    assert all(trial.state.is_finished() for trial in study.trials)


# -- real workers


@pytest.mark.slow
def test_a_run_on_real_workers_is_commanded_from_afar(tmp_path: Path) -> None:
    search = cs.GridSearch(
        torch_model_fn,
        space={"lr": hp.choice([0.01, 0.03]), "batch_size": 16},
        store=str(tmp_path),
        features="x",
        label="y",
        validation=0.25,
        metric="val_loss",
        epochs=5000,
        backend=cs.LocalBackend(2, threads=1),
        progress=False,
    )
    run = search.start(small_rows(), run_id="mine")
    while run.status == "starting":
        threading.Event().wait(0.05)
    afar = cs.attach(str(tmp_path), "mine")
    assert afar.stop_trial("t0").done
    assert afar.pause().done
    # The store has the answer before the driver's own views have it.
    run._live.wait_for_answer(Command("pause"), lambda: run.status == "paused", 300)
    assert run.status == "paused"
    assert afar.unpause().done
    assert afar.end().done
    result = run.wait(300)
    assert result.finished
    assert afar.status == "done"
    assert open_store(str(tmp_path)).list(paths.mailbox("mine")) == []
