"""What the dashboard knows of a run: the same as the run's view, and the same whether it came at once or bit by bit."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from dashboard_runs import HOSTILE, commanded, commanded_turns, indexed, small_turns, wild_turns
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from run_views import TROUBLES, bare
from wild_runs import Trouble

from cerebro_spark.commands import Command
from cerebro_spark.dashboard.json_values import dump, first_line, plain
from cerebro_spark.dashboard.judging import OutcomesMissing
from cerebro_spark.dashboard.records import AskedWork
from cerebro_spark.dashboard.run_index import RunIndex
from cerebro_spark.dashboard.views.compare import compared
from cerebro_spark.dashboard.views.curves import curves
from cerebro_spark.dashboard.views.gantt import busy_share, gantt, unit_columns
from cerebro_spark.dashboard.views.notes import commands, events
from cerebro_spark.dashboard.views.runs import Condition, run_page, state_of
from cerebro_spark.dashboard.views.trials import trial_page, trials
from cerebro_spark.dashboard.views.updates import update
from cerebro_spark.dashboard.views.workers import workers
from cerebro_spark.errors import EventLogError
from cerebro_spark.events import WorkerLost
from cerebro_spark.outcomes import view_of
from cerebro_spark.turns import Turn
from cerebro_spark.types import Checkpoint

ALIVE = Condition("alive")


class Page:
    """A page that keeps what it was sent, as browsers do."""

    def __init__(self) -> None:
        self.version = 0
        self.trials: dict[str, Any] = {}
        self.points: dict[tuple[str, int], Any] = {}
        self.units: dict[int, Any] = {}
        self.events: dict[int, Any] = {}

    def take(self, news: dict[str, Any]) -> None:
        assert news["from"] <= self.version
        self.version = news["version"]
        self.trials.update({row["id"]: row for row in news["trials"]})
        points = news["points"]
        for place, key in enumerate(zip(points["trial"], points["epoch"], strict=True)):
            self.points[key] = {name: values[place] for name, values in points["metrics"].items() if values[place]}
        for row in zip(*(news["units"][name] for name in ("number", "worker", "trial", "start", "end")), strict=True):
            self.units[row[0]] = row
        self.events.update({event["n"]: event for event in news["events"]})

    @property
    def content(self) -> Any:
        return self.trials, self.points, self.units


def whole_page(index: RunIndex) -> Page:
    page = Page()
    page.take(update(index, ALIVE, 0))
    return page


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6),
    trouble=TROUBLES,
    together=st.sampled_from([(1, 1), (4, 1), (1, 2)]),
    looks=st.lists(st.integers(0, 500), max_size=8),
)
def test_bit_by_bit_a_page_comes_to_the_same_as_at_once(
    seed: int, trouble: Trouble, together: tuple[int, int], looks: list[int]
) -> None:
    turns = wild_turns(seed, trouble, *together)
    index, page = RunIndex("r1"), Page()
    for number, turn in enumerate(turns):
        index.apply(turn)
        if number in looks:
            page.take(json.loads(dump(update(index, ALIVE, page.version))))
    page.take(json.loads(dump(update(index, ALIVE, page.version))))
    assert page.content == whole_page(index).content
    check_against_the_view(index, turns)


def check_against_the_view(index: RunIndex, turns: list[Turn]) -> None:
    view = view_of(turns)
    assert repr(index.view.trials) == repr(view.trials)
    assert index.view.counts() == view.counts()
    assert len(index.units) == len(view.units)
    rows, table = index.units.rows, index.units
    assert [table.trials.names[n] for n in rows["trial"]] == [unit.trial for unit in view.units]
    assert rows["attempt"].tolist() == [unit.attempt for unit in view.units]
    assert rows["group"].tolist() == [unit.group for unit in view.units]
    assert [table.partitions.names[n] for n in rows["partition"]] == [unit.partition for unit in view.units]
    for worker in range(len(table.workers.names)):
        mine = np.sort(rows[(rows["worker"] == worker) & (rows["width"] == 1)], order="start")
        assert (mine["start"][1:] >= mine["end"][:-1] - 1e-6).all(), "a worker does one unit after another"
    shown = {(row["id"], row["status"], row["units"]) for row in trials(index)["trials"]}
    assert shown == {(name, view.status(name), trial.units) for name, trial in view.trials.items()}


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), trouble=TROUBLES)
def test_an_old_log_without_outcomes_shows_the_same(seed: int, trouble: Trouble) -> None:
    turns = wild_turns(seed, trouble)
    old = [Turn(turn.events) for turn in turns]
    assert whole_page(indexed(old)).content == whole_page(indexed(turns)).content
    assert whole_page(indexed(bare(turns))).content == whole_page(indexed(turns)).content


def test_a_log_that_an_older_version_went_on_with_must_be_read_anew() -> None:
    turns = small_turns()
    index = indexed(turns[:5])
    with pytest.raises(OutcomesMissing):
        index.apply(Turn(turns[5].events))
    again = RunIndex("r1", hears_all=True)
    for turn in [*turns[:5], *(Turn(turn.events) for turn in turns[5:])]:
        again.apply(turn)
    assert whole_page(again).content == whole_page(indexed(turns)).content


def test_a_log_that_makes_no_sense_is_refused_by_name() -> None:
    with pytest.raises(EventLogError, match="must begin with the start of a run"):
        indexed([Turn([WorkerLost(1.0, "w0")])])


def test_every_answer_is_json_and_keeps_hostile_texts_as_texts() -> None:
    turns = small_turns()
    clone = Command("clone", id="c1", by=HOSTILE, trial="t0", params={"name": HOSTILE})
    index = indexed([*turns, *commanded(turns[-1], clone, refused=HOSTILE)])
    answers = [
        run_page(index, Condition(problem=HOSTILE)),
        trials(index),
        curves(index),
        gantt(index),
        workers(index),
        events(index),
        {"commands": commands(index.commands.values())},
        trial_page(index, "t2"),
        compared(index, ALIVE),
        update(index, ALIVE, 0),
    ]
    for answer in answers:
        assert json.loads(dump(answer)) == answer
    assert trials(index)["trials"][0]["params"]["name"] == HOSTILE
    assert trials(index)["trials"][0]["params"]["size"] == [0, None]
    assert HOSTILE in trial_page(index, "t2")["error"]
    assert b"</script>" in dump(trial_page(index, "t2")), "it is a string, and no page ever takes it for more"


def test_numbers_that_are_none_are_null() -> None:
    index = indexed(small_turns())
    found = curves(index, "loss")
    values = dict(zip(zip(found["index"], found["epoch"], strict=True), found["value"], strict=True))
    number = found["trial"].index("t0")
    assert values[number, 2] is None
    assert values[number, 1] == 0.5
    assert plain({"a": float("nan"), "b": {1, 2}, "c": object}) == {"a": None, "b": [1, 2], "c": "<class 'object'>"}


def test_a_run_in_a_few_lines() -> None:
    index = indexed(small_turns())
    page = run_page(index, Condition("gone"))
    assert (page["state"], page["trials"], page["counts"]["failed"]) == ("finished", 3, 1)
    assert page["best"]["trial"] == "t0"
    assert page["best"]["value"] == pytest.approx(0.25)
    assert page["metrics"] == ["loss"]
    assert page["params"] == ["fails", "lr", "name", "size"]
    assert page["hosts"] == ["node0", "node1"]
    assert page["settings"]["partitions"] == 2
    assert page["ended_at"] is not None


@pytest.mark.parametrize(
    ("condition", "state"),
    [
        (Condition("alive"), "running"),
        (Condition("silent"), "silent"),
        (Condition("gone"), "interrupted"),
        (Condition("alive", reading=True), "reading"),
        (Condition("alive", problem="damaged"), "unreadable"),
    ],
)
def test_the_state_of_a_run_that_is_not_over(condition: Condition, state: str) -> None:
    assert state_of(indexed(small_turns()[:6]), condition) == state


def test_pauses_are_seen_by_their_answers() -> None:
    turns = small_turns()[:6]
    paused = [*turns, *commanded(turns[-1], Command("pause", id="c1"))]
    assert state_of(indexed(paused), ALIVE) == "paused"
    refused = [*turns, *commanded(turns[-1], Command("pause", id="c1"), refused="it is over")]
    assert state_of(indexed(refused), ALIVE) == "running"
    assert state_of(indexed([*paused, *commanded(turns[-1], Command("unpause", id="c2"))]), ALIVE) == "running"


def test_commands_and_what_became_of_them() -> None:
    turns = small_turns()[:6]
    index = indexed(turns)
    index.note_sent(Command("stop_trial", id="c1", trial="t0"), 1.0)
    assert [row["state"] for row in commands(index.commands.values())] == ["sent"]
    for turn in commanded(turns[-1], Command("stop_trial", id="c1", trial="t0"), refused="it has ended"):
        index.apply(turn)
    (row,) = commands(index.commands.values())
    assert (row["state"], row["reason"], row["sent_clock"], row["words"]) == ("refused", "it has ended", 1.0, "stop t0")
    assert "stop t0: refused (it has ended)" in [event["text"] for event in events(index)["events"]]


def test_events_come_in_pages_and_about_somebody() -> None:
    index = indexed(small_turns())
    whole = events(index, limit=2000)["events"]
    assert [event["n"] for event in whole] == list(range(len(whole))), "each has a number of its own"
    newest = events(index, limit=3)
    assert newest["events"] == whole[-3:]
    assert newest["more"]
    before = events(index, limit=2000, before=newest["events"][0]["n"])
    assert [*before["events"], *newest["events"]] == whole
    assert not before["more"]
    assert {event["trial"] for event in events(index, trial="t2")["events"]} == {"t2"}
    assert {event["worker"] for event in events(index, worker="w1")["events"]} == {"w1"}
    assert any(event["level"] == "error" and "ValueError" in event["text"] for event in whole)


def test_lineage_goes_both_ways() -> None:
    found = False
    for seed in range(5):
        index = indexed(wild_turns(seed, Trouble()))
        for trial in index.view.trials:
            for ancestor in trial_page(index, trial)["ancestors"][:1]:
                found = True
                assert trial in [child["trial"] for child in trial_page(index, ancestor["trial"])["children"]]
    assert found


def test_what_a_trial_took_over_later_is_not_in_what_others_have_from_it() -> None:
    """As PBT does it: t2 takes the weights of t1, and t1 those of t0 after that."""
    index = indexed(small_turns())
    index.works = {
        trial: [AskedWork(0.0, 3, {}, None, True, ""), *taken]
        for trial, taken in {
            "t0": [],
            "t1": [AskedWork(9.0, 9, {}, Checkpoint("t0", 6, 1, 1), True, "")],
            "t2": [AskedWork(5.0, 6, {}, Checkpoint("t1", 2, 1, 1), True, "")],
        }.items()
    }

    def ancestors(trial: str) -> list[tuple[str, int]]:
        return [(one["trial"], one["epoch"]) for one in trial_page(index, trial)["ancestors"]]

    assert [ancestors(trial) for trial in ("t0", "t1", "t2")] == [[], [("t0", 6)], [("t1", 2)]]
    index.works["t1"][1] = index.works["t1"][1]._replace(at=4.0)
    assert ancestors("t2") == [("t1", 2), ("t0", 6)]


def test_a_clone_that_began_anew_has_its_origin() -> None:
    command = Command("clone", trial="t0", params={"lr": 1.0}, warm_start=False, epochs=1)
    index = indexed(commanded_turns((3.0, command)))
    (clone,) = [trial for trial, works in index.works.items() if works[0].command]
    assert [(one["trial"], one["epoch"]) for one in trial_page(index, clone)["ancestors"]] == [("t0", None)]
    assert clone in [child["trial"] for child in trial_page(index, "t0")["children"]]


def test_a_window_of_the_chart_has_the_units_that_run_in_it() -> None:
    index = indexed(small_turns(trials=4))
    rows = index.units.rows
    for start, end in ((0.0, 3.0), (2.5, 2.6), (4.0, 100.0), (50.0, 60.0)):
        chart = gantt(index, start, end)
        assert chart["detail"] == "units"
        wanted = np.flatnonzero((rows["start"] < end) & (rows["end"] > start))
        assert chart["units"]["number"] == wanted.tolist()
    assert [one["worker"] for one in gantt(index)["absences"]] == [1]
    assert {one["kind"] for one in gantt(index)["failures"]} == {"unit", "worker"}


def test_a_chart_of_too_many_units_says_how_busy_workers_were(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.dashboard.views.gantt.MOST_UNITS", 0)
    index = indexed(small_turns(trials=4))
    chart = gantt(index, bins=60)
    assert (chart["detail"], len(chart["busy"]), len(chart["busy"][0])) == ("bins", 2, 60)
    busy = np.array(chart["busy"]).sum(axis=1) * chart["step"]
    assert busy == pytest.approx([tally.busy for tally in index.tallies.values()], rel=1e-3)
    assert sum(map(sum, chart["ended"])) == len(index.units)
    for busy_row, main_row in zip(chart["busy"], chart["main"], strict=True):
        assert all(share > 0 for share, trial in zip(busy_row, main_row, strict=True) if trial >= 0)


@given(
    units=st.lists(st.tuples(st.floats(0, 90), st.floats(0.01, 10)), max_size=30),
    edges=st.lists(st.floats(0, 100), min_size=2, max_size=10, unique=True),
)
def test_busy_shares_are_those_of_a_plain_sum(units: list[tuple[float, float]], edges: list[float]) -> None:
    steps = np.array(sorted(edges))
    if np.diff(steps).min() < 1e-6:
        return
    begins = np.array([start for start, _ in units])
    ends = begins + np.array([length for _, length in units])
    shares = busy_share(begins, ends, np.ones(len(units), "i4"), steps)
    for share, low, high in zip(shares, steps[:-1], steps[1:], strict=True):
        plain_sum = sum(max(0.0, min(end, high) - max(begin, low)) for begin, end in zip(begins, ends, strict=True))
        assert share == pytest.approx(min(1.0, plain_sum / (high - low)), abs=1e-4)


def test_the_page_asks_again_for_what_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.dashboard.views.updates.MOST_UNITS", 1)
    monkeypatch.setattr("cerebro_spark.dashboard.views.updates.MOST_TRIALS", 1)
    monkeypatch.setattr("cerebro_spark.dashboard.views.updates.MOST_POINTS", 1)
    news = update(indexed(small_turns()), ALIVE, 0)
    assert (news["units"], news["trials"], news["points"]) == (None, None, None)


def test_the_cluster_says_who_is_there_and_holds_what() -> None:
    index = indexed(small_turns())
    found = workers(index)
    first, second = found["workers"]
    assert (first["id"], first["host"], first["deaths"], second["deaths"]) == ("w0", "node0", 0, 1)
    assert sum(worker["units"] for worker in found["workers"]) == len(index.units)
    assert 0 < first["utilisation"] <= 1
    assert all(partition["holders"] for partition in found["partitions"])


def test_a_worker_that_was_let_go_is_no_longer_there() -> None:
    index, left = RunIndex("r1"), []
    for turn in commanded_turns((3.0, Command("remove_worker", worker="w1"))):
        index.apply(turn)
        left += [row["utilisation"] for row in workers(index)["workers"] if row["id"] == "w1" and not row["up"]]
    assert len(left) > 3
    assert len(set(left)) == 1, "it is not idle: it is not there"
    assert [absence.worker for absence in index.view.timeline.absences] == ["w1"]


def test_what_a_failed_trial_had_reached_is_not_the_best() -> None:
    index = RunIndex("r1")
    for turn in small_turns():
        index.apply(turn)
    index.points.append(index.points[0]._replace(trial="t2", metrics={"loss": -9.0}))
    index._compare(index.points[-1], len(index.points))
    assert compared(index, ALIVE)["progress"]["best"][-1] == -9.0
    index._compare_again()
    best = index.view.best()
    assert best is not None
    assert compared(index, ALIVE)["progress"]["best"][-1] == best.metrics["loss"]


def test_a_trial_says_how_many_of_its_units_failed() -> None:
    index = indexed(small_turns())
    page = trial_page(index, "t2")
    assert page["failed"] == len(page["failures"]) > 0
    index.failed_units["t2"] = 99
    assert trial_page(index, "t2")["failed"] == 99


def test_first_lines() -> None:
    assert first_line("") == ""
    assert first_line("Traceback (most recent call last):\n  x\nE: y\n") == "E: y"
    assert len(first_line("x" * 1000)) == 200


def test_units_have_their_names_in_columns() -> None:
    index = indexed(small_turns())
    columns = unit_columns(index, np.arange(2))
    assert columns["number"] == [0, 1]
    assert set(columns["worker"]) <= {"w0", "w1"}


def test_what_people_told_a_run_is_shown_with_what_came_of_it() -> None:
    turns = commanded_turns(
        (1.5, Command("stop_trial", id="c1", by="ann", trial="t0")),
        (2.5, Command("clone", id="c2", trial="t1", params={"lr": 7.0}, warm_start=False)),
        (3.5, Command("stop_trial", id="c3", trial="t99")),
        (4.5, Command("resume_trial", id="c4", trial="t0")),
    )
    index = indexed(turns)
    rows = {row["id"]: row for row in commands(index.commands.values())}
    assert [rows[name]["state"] for name in ("c1", "c2", "c3", "c4")] == ["done", "done", "refused", "done"]
    clone = rows["c2"]["made"]
    assert rows["c4"]["made"] == "t0"
    shown = {row["id"]: row for row in trials(index)["trials"]}
    assert (shown[clone]["parent"], shown[clone]["by_command"], shown[clone]["params"]["lr"]) == ("t1", True, 7.0)
    assert not shown["t0"]["by_command"], "the search asked for it, although a person let it go on"
    assert [one["trial"] for one in trial_page(index, clone)["ancestors"]] == ["t1"]
    assert [one["trial"] for one in trial_page(index, "t1")["children"]] == [clone]
    assert {row["status"] for row in shown.values()} == {"finished"}
    texts = [event["text"] for event in events(index)["events"]]
    assert any(text.startswith("ann: stop t0") for text in texts)
    assert any("as a person wants it" in text for text in texts)
    assert not any(row["error"] for row in shown.values()), "a trial that a person ended has not failed"


@pytest.mark.parametrize("last", ["unpause", "end"])
def test_pages_follow_pauses_and_the_end_bit_by_bit(last: str) -> None:
    turns = commanded_turns((1.5, Command("pause", id="c1")), (9.5, Command(last, id="c2")))  # type: ignore[arg-type]
    index, page, states = RunIndex("r1"), Page(), []
    for turn in turns:
        index.apply(turn)
        news = json.loads(dump(update(index, ALIVE, page.version)))
        page.take(news)
        states.append(news["run"]["state"])
    assert list(dict.fromkeys(states)) == ["running", "paused", "finished"]
    assert ("running" in states[states.index("paused") :]) == (last == "unpause")
    assert page.content == whole_page(index).content
    assert {row["status"] for row in page.trials.values()} <= {"finished", "stopped"}
