"""The process beside the driver: when it makes forecasts, what it writes, and that it ends with the driver."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cut_runs import settings_of, simulated_run

from cerebro_spark import codec
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.commands import Command
from cerebro_spark.engine import Engine
from cerebro_spark.errors import EventLogError, StoreError
from cerebro_spark.eventlog import EventLog
from cerebro_spark.forecast.continuation import Continuation, Simulation
from cerebro_spark.forecast.copies import in_copies
from cerebro_spark.forecast.files import ForecastFolder, read_latest
from cerebro_spark.forecast.observer import LiveForecasts
from cerebro_spark.forecast.process import DriverGone, DriverLine, ForecastingProcess, ForecastSpec, pack_spec
from cerebro_spark.forecast.refresh import Refresh
from cerebro_spark.forecast.values import Forecast
from cerebro_spark.mailbox import ask
from cerebro_spark.search import FixedSearch
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore
from cerebro_spark.turns import Turn

COSTS = [1.0, 1.5, 2.0]
START = 1_800_000_000.0


def search() -> FixedSearch:
    return FixedSearch([{"cost": cost, "name": str(cost)} for cost in COSTS], 3)


class Stop(Exception):
    pass


class LoggedRun:
    """A run with a log in a store, driven in virtual time up to some unit, by a wall clock that goes with it."""

    def __init__(self, folder: Path, turns: int = 10**9) -> None:
        self.store = LocalStore(folder)
        self.turns: list[Turn] = []
        self._most = turns
        self.backend = SimulatedBackend([SimulatedWorker("w0")], World(lambda params: params["cost"]))
        clock = lambda: START + self.backend.now()  # noqa: E731
        log = EventLog(self.store, "r1")
        engine = Engine(search(), settings_of(workers=1), self.backend, log, "r1", [self], clock=clock)
        with contextlib.suppress(Stop):
            engine.run()

    def __call__(self, turn: Turn) -> None:
        self.turns.append(turn)
        if len(self.turns) == self._most:
            raise Stop


class Pipe:
    """The driver's end and the process's end of what is between them."""

    def __init__(self) -> None:
        reading, self.writing = os.pipe()
        self.line = DriverLine(reading)

    def say(self, news: bytes) -> None:
        os.write(self.writing, news)

    def hang_up(self) -> None:
        os.close(self.writing)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    os.close(made.line.descriptor)


def process(run: LoggedRun, pipe: Pipe, wall: Callable[[], float], **more: Any) -> ForecastingProcess:
    spec = ForecastSpec(run.store, "r1", pickle.dumps(search()), **more)
    return ForecastingProcess(spec, pipe.line, clock=lambda: 0.0, wall_clock=wall)


def true_end() -> float:
    return simulated_run(search, settings_of(workers=1), [SimulatedWorker("w0")]).end


def test_it_writes_when_the_run_will_be_done_by_the_wall_clock(tmp_path: Path, pipe: Pipe) -> None:
    run = LoggedRun(tmp_path, turns=20)
    pipe.say(b"u")
    wall = START + run.backend.now() + 0.25
    made = process(run, pipe, lambda: wall)
    write = made._folder.write

    def write_and_hang_up(forecast: Forecast) -> None:
        write(forecast)
        pipe.hang_up()

    made._folder.write = write_and_hang_up  # type: ignore[method-assign]
    with pytest.raises(DriverGone):
        made.run()
    (name,) = run.store.list(paths.forecasts("r1"))
    assert name == "runs/r1/forecasts/000000000001.json"
    written = json.loads(run.store.read(name))
    assert written["made_at"] == wall
    assert written["done_at"] == pytest.approx(START + true_end())
    assert written["exact"] is True
    assert written["events"] == sum(len(turn.events) for turn in run.turns)


def test_the_first_forecast_is_written_early_if_it_takes_long(tmp_path: Path, pipe: Pipe) -> None:
    run = LoggedRun(tmp_path, turns=20)
    wall = START + run.backend.now()
    clock = itertools.count(0.0, 3.0)
    spec = ForecastSpec(run.store, "r1", pickle.dumps(search()))
    made = ForecastingProcess(spec, pipe.line, clock=lambda: next(clock), wall_clock=lambda: wall)
    written: list[Forecast] = []
    made._folder.write = written.append  # type: ignore[assignment,method-assign]
    made._make()
    early, whole = written
    end = START + true_end()
    assert early.done_at == whole.done_at == pytest.approx(end)
    assert early.low is not None
    assert early.high is not None
    assert early.low < end < early.high
    assert (early.exact, whole.exact) == (False, True)
    made._make()
    assert len(written) == 3, "later ones are written once"


def test_questions_are_answered_in_the_same_pass(tmp_path: Path, pipe: Pipe) -> None:
    run = LoggedRun(tmp_path, turns=20)
    wall = START + run.backend.now()
    clock = lambda: int(wall * 1e9)  # noqa: E731
    made = process(run, pipe, lambda: wall)
    made._folder = ForecastFolder(run.store, "r1", clock)
    ask(run.store, "r1", Command("stop_trial", trial="t2"), clock)
    made._make()
    found = read_latest(run.store, "r1")
    assert found is not None
    assert (found.what_if["stop_trial t2"].done_at or 0.0) < (found.done_at or 0.0)
    assert {"stop_trial t0", "stop_trial t1", "end"} <= set(found.what_if), "these are answered without a question"
    assert (found.what_if["end"].done_at or 0.0) < wall + 3.0


def test_a_run_whose_search_is_not_known_has_a_reason(tmp_path: Path, pipe: Pipe) -> None:
    run = LoggedRun(tmp_path, turns=20)
    spec = ForecastSpec(run.store, "r1", pickle.dumps(FixedSearch([{"cost": 7.0}], 1)))
    ForecastingProcess(spec, pipe.line)._make()
    found = read_latest(run.store, "r1")
    assert found is not None
    assert found.done_at is None
    assert found.reason == "what the search of this run will ask for is known to its driver alone"
    ForecastingProcess(ForecastSpec(run.store, "r1"), pipe.line)._make()
    found = read_latest(run.store, "r1")
    assert found is not None
    assert "no recipe" in found.reason


def test_it_ends_when_the_driver_goes_in_the_middle_of_a_forecast(tmp_path: Path, pipe: Pipe) -> None:
    run = LoggedRun(tmp_path, turns=20)
    pipe.hang_up()
    with pytest.raises(DriverGone):
        process(run, pipe, lambda: START)._make()
    assert read_latest(run.store, "r1") is None


def test_copies_leave_the_run_as_it_was(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path, turns=20)
    events = [event for turn in run.turns for event in turn.events]
    standing = Continuation(events, search())
    simulate = in_copies(standing)
    first = simulate([Simulation(), Simulation(command=Command("stop_trial", trial="t2"))])
    assert simulate([Simulation()]) == first[:1] == [standing.finish(Simulation())]
    assert (first[1].at or 0.0) < (first[0].at or 0.0)


def test_a_copy_that_dies_is_no_forecast(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path, turns=20)
    standing = Continuation([event for turn in run.turns for event in turn.events], search())
    standing.finish = lambda plan: os._exit(9)  # type: ignore[method-assign]
    (end,) = in_copies(standing)([Simulation()])
    assert end.at is None
    assert end.reason


def test_the_spec_comes_whole_however_it_is_cut(tmp_path: Path, pipe: Pipe) -> None:
    spec = ForecastSpec(LocalStore(tmp_path), "r1", b"x" * 200_000)
    writer = threading.Thread(target=lambda: [os.write(pipe.writing, part) for part in _parts(pack_spec(spec))])
    writer.start()
    assert pipe.line.receive_spec().search == spec.search
    writer.join()


def _parts(data: bytes) -> list[bytes]:
    return [data[at : at + 777] for at in range(0, len(data), 777)]


def test_no_spec_comes_from_a_driver_that_is_gone(pipe: Pipe) -> None:
    pipe.say(b"\0\0")
    pipe.hang_up()
    with pytest.raises(DriverGone):
        pipe.line.receive_spec()


# -- in the store


def test_the_newest_forecast_wins_and_older_ones_go(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert read_latest(store, "r1") is None
    ForecastFolder(store, "r1").write(Forecast(1.0, 1, reason="one"))
    again = ForecastFolder(store, "r1")
    again.write(Forecast(2.0, 2, reason="two"))
    again.write(Forecast(3.0, 3, reason="three"))
    assert store.list(paths.forecasts("r1")) == ["runs/r1/forecasts/000000000003.json"]
    assert read_latest(store, "r1") == Forecast(3.0, 3, reason="three")


def test_old_questions_and_what_is_none_are_dropped(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    now = [10**18]
    stop, end = Command("stop_trial", trial="t1"), Command("end")
    ask(store, "r1", stop, lambda: now[0])
    store.write("runs/r1/questions/00000000000000000001-bad.json", b"no JSON")
    store.write(f"runs/r1/questions/{now[0]:020d}-bad.json", codec.to_json(end, "what").encode())
    store.write("runs/r1/questions/strange", b"")
    now[0] += 500 * 10**9
    ask(store, "r1", end, lambda: now[0])
    folder = ForecastFolder(store, "r1", lambda: now[0])
    assert folder.questions() == [stop, end]
    now[0] += 200 * 10**9
    assert folder.questions() == [end]
    assert len(store.list(paths.questions("r1"))) == 1


def test_the_next_driver_begins_without_forecasts_and_old_questions(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    ForecastFolder(store, "r1").write(Forecast(1.0, 1, 300.0, 200.0, 400.0))
    ask(store, "r1", Command("end"), lambda: 1)
    young = ask(store, "r1", Command("end"))
    forecasts = LiveForecasts(store, search(), "r1")
    forecasts.forget_earlier()
    assert read_latest(store, "r1") is None
    assert store.list(paths.questions("r1")) == [young], "somebody may wait for its answer"


def test_a_store_that_fails_does_not_keep_the_next_driver_from_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(LocalStore):
        def delete(self, name: str) -> None:
            raise StoreError("connection refused")

    LiveForecasts(Failing(tmp_path), search(), "r1").forget_earlier()
    assert "stay until there is a new one: connection refused" in caplog.text


# -- when


def test_nothing_is_made_before_the_first_unit() -> None:
    refresh = Refresh()
    refresh.note(b"c", 0.0)
    assert not refresh.due(0.0)
    assert refresh.wait(0.0) is None
    refresh.note(b"u", 1.0)
    assert refresh.due(1.0)
    assert refresh.wait(1.0) == 0.0


def test_a_command_or_enough_units_are_news_but_not_at_once() -> None:
    refresh = Refresh(units=3, seconds=5.0, oldest=60.0)
    refresh.note(b"u", 0.0)
    refresh.made(0.0, 0.1)
    refresh.note(b"uu", 1.0)
    assert not refresh.due(10.0)
    assert refresh.wait(10.0) == 50.0
    refresh.note(b"c", 10.0)
    assert refresh.due(10.0)
    refresh.made(10.0, 0.1)
    refresh.note(b"uuu", 11.0)
    assert not refresh.due(14.0)
    assert refresh.wait(11.0) == 4.0
    assert refresh.due(15.0)


def test_a_forecast_gets_old_and_one_that_takes_long_is_rare() -> None:
    refresh = Refresh(units=3, seconds=5.0, oldest=60.0, share=0.1)
    refresh.note(b"u", 0.0)
    refresh.made(0.0, 30.0)
    refresh.ask()
    assert not refresh.due(299.0)
    assert refresh.due(300.0)
    refresh.made(300.0, 0.1)
    assert not refresh.due(359.0)
    assert refresh.due(360.0)


# -- the driver's side


def test_a_real_process_writes_forecasts_and_goes_with_its_driver(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path, turns=20)
    with LiveForecasts(run.store, search(), nice=0, after=0.0) as forecasts:
        for turn in run.turns:
            forecasts(turn)
        _wait_for_one(run.store)
        started = forecasts._process
        assert started is not None
        assert started.poll() is None
    assert started.poll() is not None
    found = read_latest(run.store, "r1")
    assert found is not None
    assert found.known
    assert found.exact


def _wait_for_one(store: LocalStore) -> None:
    """Wait for a forecast that is no first guess: where simulations take long there is one of these before."""
    nothing = threading.Event()
    for _ in range(2400):
        if (found := read_latest(store, "r1")) is not None and found.exact:
            return
        nothing.wait(0.05)
    raise AssertionError("there was no forecast after two minutes")


def test_a_process_that_cannot_start_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = LoggedRun(tmp_path, turns=20)
    monkeypatch.setattr("sys.executable", str(tmp_path / "nothing"))
    with LiveForecasts(run.store, search(), after=0.0) as forecasts:
        forecasts(run.turns[0])
        assert forecasts._starting is not None
        forecasts._starting.join()
        forecasts(run.turns[-1])
    assert "there will be no forecasts" in caplog.text


def test_a_short_run_has_no_process(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path)
    now = [100.0]
    with LiveForecasts(run.store, search(), clock=lambda: now[0]) as forecasts:
        for turn in run.turns:
            forecasts(turn)
            now[0] += 19.9 / len(run.turns)
        assert forecasts._starting is None


def test_a_search_that_cannot_be_foreseen_has_a_reason_and_no_process(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path, turns=20)
    led = search()
    led.unforeseeable = "somebody else decides"
    led.nothing_to_pickle = threading.Lock()  # type: ignore[attr-defined]
    with LiveForecasts(run.store, led, after=0.0) as forecasts:
        for turn in run.turns:
            forecasts(turn)
        assert forecasts._starting is not None
        forecasts._starting.join()
        assert forecasts._process is None
    found = read_latest(run.store, "r1")
    assert found is not None
    assert found.reason == "somebody else decides"


def test_forecasts_can_be_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRO_SPARK_FORECASTS", "off")
    run = LoggedRun(tmp_path, turns=20)
    with LiveForecasts(run.store, search(), after=0.0) as forecasts:
        for turn in run.turns:
            forecasts(turn)
        assert forecasts._starting is None


def test_a_process_that_died_is_noticed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = LoggedRun(tmp_path, turns=20)
    with LiveForecasts(run.store, search(), after=0.0) as forecasts:
        forecasts(run.turns[0])
        assert forecasts._starting is not None
        forecasts._starting.join()
        assert forecasts._process is not None
        forecasts._process.kill()
        forecasts._process.wait()
        forecasts(run.turns[-1])
        forecasts(run.turns[-1])
    assert caplog.text.count("has ended") == 1


def test_a_search_that_is_not_that_of_the_log_is_refused(tmp_path: Path) -> None:
    run = LoggedRun(tmp_path, turns=20)
    with pytest.raises(EventLogError):
        Continuation(run.turns[3].events, search())
