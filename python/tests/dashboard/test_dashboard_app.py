"""The routes of the dashboard: what they answer, and that one broken run hides no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dashboard_clients import client_of, until
from dashboard_runs import HOSTILE, commanded, small_turns, write

from cerebro_spark.commands import Command
from cerebro_spark.dashboard.security import RateLimit
from cerebro_spark.dashboard.sending import mailbox_asker, mailbox_sender, parse_command
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.mailbox import MailboxPoller
from cerebro_spark.relay import Relay
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore

HERE = {"origin": "http://127.0.0.1:8787"}


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path)
    write(store, small_turns())
    return store


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("api/runs/r1", {"state", "counts", "settings", "metrics", "params"}),
        ("api/runs/r1/trials", {"from", "trials"}),
        ("api/runs/r1/curves?metric=loss", {"index", "epoch", "at", "value", "trial"}),
        ("api/runs/r1/gantt?from=0&to=9&bins=50", {"detail", "workers", "absences", "failures", "running"}),
        ("api/runs/r1/workers", {"workers", "partitions", "utilisation"}),
        ("api/runs/r1/events?limit=5", {"events", "more"}),
        ("api/runs/r1/trials/t2", {"trial", "error", "works", "curves", "units", "failures", "events", "commands"}),
        ("api/runs/r1/forecast", {"forecast"}),
        ("api/runs/r1/commands", {"commands"}),
    ],
)
def test_routes_of_a_run(store: LocalStore, path: str, fields: set[str]) -> None:
    with client_of(store) as client:
        answer = client.get(path)
        assert answer.status_code == 200, answer.text
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["content-type"] == "application/json"
        assert fields | {"generation", "version"} <= set(answer.json())
        assert client.get(path).content == answer.content


def test_all_runs_one_of_them_damaged(store: LocalStore) -> None:
    write(store, small_turns()[:7], "r2")
    write(store, small_turns(), "r3", each=True)
    store.delete("runs/r3/log/000000000005.jsonl")
    by = json.loads(store.read("runs/r3/log/000000000000.jsonl").splitlines()[0])["by"]
    line = {"by": by, "n": 5, "event": "Nonsense", "at": 1.0}
    store.write("runs/r3/log/000000000005.jsonl", json.dumps(line).encode() + b"\n")
    with client_of(store) as client:
        found = until(lambda: client.get("api/runs").json(), lambda answer: not answer["reading"])
        rows = {row["run"]: row for row in found["runs"]}
    assert {run: row["state"] for run, row in rows.items()} == {
        "r1": "finished",
        "r2": "interrupted",
        "r3": "unreadable",
    }
    assert "Nonsense" in rows["r3"]["problem"]
    assert rows["r3"]["version"] > 0, "what comes before is shown"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("api/runs/none", 404),
        ("api/runs/..%2f..%2fetc", 404),
        ("api/runs/r1/trials/none", 404),
        ("api/runs/r1/none", 404),
        ("api/runs/r1/trials?since=x", 400),
        ("api/runs/r1/trials?since=-1", 400),
        ("api/runs/r1/gantt?from=nan", 400),
        ("api/runs/r1/gantt?bins=7", 400),
        ("api/compare", 400),
        ("api/compare?run=none", 404),
        ("static/none.js", 404),
    ],
)
def test_mistakes_are_answered_with_a_sentence(store: LocalStore, path: str, status: int) -> None:
    with client_of(store) as client:
        answer = client.get(path)
        assert answer.status_code == status
        assert len(answer.json()["error"]) > 10


def test_only_what_is_new(store: LocalStore) -> None:
    turns = small_turns(run="r2")
    log = write(store, turns[:10], "r2")
    with client_of(store) as client:
        first = client.get("api/runs/r2/trials").json()
        log.append(*turns[10:])
        until(lambda: client.get("api/runs/r2").json(), lambda answer: answer["state"] == "finished")
        more = client.get(f"api/runs/r2/trials?since={first['version']}&generation={first['generation']}").json()
        assert more["from"] == first["version"]
        assert more["version"] > first["version"]
        stale = client.get(f"api/runs/r2/trials?since={first['version']}&generation=another").json()
        assert stale["from"] == 0
        beyond = client.get("api/runs/r2/trials?since=999999").json()
        assert (beyond["from"], len(beyond["trials"])) == (0, 3)


def test_a_run_that_is_deleted_is_gone_and_one_made_anew_is_another(store: LocalStore) -> None:
    with client_of(store) as client:
        before = client.get("api/runs/r1").json()
        store.delete("runs/r1")
        until(lambda: client.get("api/runs/r1"), lambda answer: answer.status_code == 404)
        write(store, small_turns()[:7])
        after = client.get("api/runs/r1").json()
        assert after["generation"] != before["generation"]
        assert after["version"] < before["version"]


def test_runs_beside_each_other(store: LocalStore) -> None:
    write(store, small_turns(trials=2), "r2")
    with client_of(store) as client:
        found = client.get("api/compare?run=r1&run=r2&run=r1").json()["runs"]
    assert [run["run"] for run in found] == ["r1", "r2"]
    assert found[0]["progress"]["best"] == sorted(found[0]["progress"]["best"], reverse=True)
    assert found[0]["best_curve"]["epoch"] == [1, 2, 3]


def test_the_forecast_is_the_newest_one_and_never_more_than_json(store: LocalStore) -> None:
    write(store, small_turns()[:7], "r2")
    folder = "runs/r2/forecasts"
    store.write(f"{folder}/000000000001.json", b'{"done_at": 1.0}')
    store.write(f"{folder}/000000000002.json", b'{"done_at": 2.0, "low": NaN}')
    with client_of(store) as client:
        assert client.get("api/runs/r2/forecast").json()["forecast"] == {"done_at": 2.0, "low": None}
    store.write(f"{folder}/000000000003.json", b"\x80\x04not json")
    with client_of(store) as client:
        assert client.get("api/runs/r2/forecast").json()["forecast"] is None


def test_what_an_earlier_driver_foresaw_is_not_shown_of_the_next_one(store: LocalStore) -> None:
    write(store, small_turns()[:7], "r2")
    first = "runs/r2/forecasts/000000000001.json"
    store.write(first, b'{"done_at": 1.0}')

    def shown(right: Callable[[Any], bool]) -> Any:
        return until(lambda: client.get("api/runs/r2/forecast").json()["forecast"], right)

    with client_of(store) as client:
        assert shown(bool) == {"done_at": 1.0}
        store.delete(first)
        assert shown(lambda forecast: forecast is None) is None
        store.write(first, b'{"done_at": 3.0}')
        assert shown(bool) == {"done_at": 3.0}


def test_nothing_but_a_pages_own_files_is_served(store: LocalStore, tmp_path: Path) -> None:
    with client_of(store) as client:
        for name in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "....//app.py", "app.py", "%00"):
            assert client.get(f"static/{name}").status_code == 404


# -- commands


def post(client: Any, body: object, run: str = "r2", kind: str = "application/json", route: str = "commands") -> Any:
    token = {"x-csrf-token": client.get("api/server").json()["csrf"], "content-type": kind}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(f"api/runs/{run}/{route}", content=data, headers={**HERE, **token})


def test_a_command_is_sent_and_then_answered_by_the_log(store: LocalStore) -> None:
    turns = small_turns()[:7]
    sent: list[tuple[str, Command]] = []
    log = write(store, turns, "r2")
    with client_of(store, sent) as client:
        answer = post(client, {"verb": "stop_trial", "trial": "t0"})
        assert answer.status_code == 202, answer.text
        row = answer.json()["command"]
        assert (row["state"], row["words"], row["by"]) == ("sent", "stop t0", "dashboard")
        ((run, command),) = sent
        assert (run, command.verb, command.trial, command.id) == ("r2", "stop_trial", "t0", row["id"])
        log.append(*commanded(turns[-1], command))
        row = until(
            lambda: client.get("api/runs/r2/commands").json()["commands"][0], lambda row: row["state"] == "done"
        )
        assert row["sent_clock"] is not None


def test_what_a_command_would_change_is_asked_and_the_command_not_given(store: LocalStore) -> None:
    write(store, small_turns()[:7], "r2")
    sent: list[tuple[str, Command]] = []
    asked: list[tuple[str, Command]] = []
    with client_of(store, sent, asked) as client:
        answer = post(client, {"verb": "stop_trial", "trial": "t0"}, route="questions")
        assert (answer.status_code, answer.json()) == (202, {"asked": True})
        assert client.get("api/runs/r2/commands").json()["commands"] == []
        assert post(client, {"verb": "nonsense"}, route="questions").status_code == 400
        headers = {"content-type": "application/json"}
        assert client.post("api/runs/r2/questions", content=b"{}", headers=headers).status_code == 403
    ((run, command),) = asked
    assert (run, command.verb, command.trial) == ("r2", "stop_trial", "t0")
    assert sent == []
    mailbox_asker(store)("r2", command)
    (name,) = store.list(paths.questions("r2"))
    assert json.loads(store.read(name))["trial"] == "t0"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        {"verb": "explode"},
        {"verb": "stop_trial"},
        {"verb": ["stop_trial"], "trial": "t0"},
        {"verb": "stop_trial", "trial": "t0", "id": ""},
        {"verb": "stop_trial", "trial": "t0", "id": None},
        {"verb": "stop_trial", "trial": "t0", "id": 7},
        {"verb": "stop_trial", "trial": "t0", "id": ["a"]},
        {"verb": "stop_trial", "trial": "t0", "id": "../../r1/log/1"},
        {"verb": "stop_trial", "trial": "t0", "id": "mine\n"},
        {"verb": "stop_trial", "trial": "t0", "id": "a" * 65},
        {"verb": "stop_trial", "trial": "t0", "by": "somebody else"},
        {"verb": "stop_trial", "trial": {"$tuple": []}},
        {"verb": "resume_trial", "trial": "t0", "epochs": 1.5},
        {"verb": "resume_trial", "trial": "t0", "epochs": True},
        {"verb": "add_workers", "workers": 0},
        {"verb": "clone", "trial": "t0", "params": []},
        {"verb": "clone", "trial": "t0", "params": {"$bad": 1}},
        b'{"verb": "clone", "trial": "t0", "params": {"lr": NaN}, "extra": 1}',
    ],
)
def test_what_is_no_command_is_refused(body: object) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(ConfigurationError):
        parse_command(data, "me")


def test_an_id_that_cannot_be_one_is_refused_in_a_short_sentence(store: LocalStore) -> None:
    write(store, small_turns()[:7], "r2")
    with client_of(store) as client:
        answer = post(client, {"verb": "pause", "id": "a/" * 20_000})
    assert answer.status_code == 400
    assert len(answer.text) < 500


def heard(store: LocalStore, run: str, sent: list[tuple[str, Command]]) -> list[Command]:
    """What the driver of a run hears of what was sent."""
    send, relay, found = mailbox_sender(store), Relay(), list[Command]()
    for name, command in sent:
        assert name == run
        send(run, command)
    with relay.connected(found.append):
        MailboxPoller(store, run, relay.post).look()
    return found


def test_a_command_that_is_sent_twice_is_one_command(store: LocalStore) -> None:
    """As by a page that got no answer the first time."""
    write(store, small_turns()[:7], "r2")
    sent: list[tuple[str, Command]] = []
    body = {"verb": "clone", "trial": "t0", "params": {"lr": 0.1}, "id": "0123456789abcdef"}
    with client_of(store, sent) as client:
        rows = [post(client, body).json()["command"] for _ in range(2)]
        listed = client.get("api/runs/r2/commands").json()["commands"]
    assert rows[0] == rows[1]
    assert listed == [rows[0]]
    assert rows[0]["id"] == "0123456789abcdef"
    (command,) = heard(store, "r2", sent)
    assert (command.id, command.params) == ("0123456789abcdef", {"lr": 0.1})


def test_another_command_under_the_same_id_changes_nothing(store: LocalStore) -> None:
    write(store, small_turns()[:7], "r2")
    sent: list[tuple[str, Command]] = []
    with client_of(store, sent) as client:
        first = post(client, {"verb": "stop_trial", "trial": "t0", "id": "c1"}).json()["command"]
        for other in ({"verb": "kill", "id": "c1"}, {"verb": "stop_trial", "trial": "t1", "id": "c1"}):
            refused = post(client, other)
            assert (refused.status_code, "is that of another command: stop_trial" in refused.text) == (409, True)
        listed = client.get("api/runs/r2/commands").json()["commands"]
        assert post(client, {"verb": "pause", "id": "c2"}).json()["command"]["id"] == "c2"
    assert listed == [first]
    assert first["verb"] == "stop_trial"
    assert [(command.id, command.verb) for command in heard(store, "r2", sent)] == [
        ("c1", "stop_trial"),
        ("c2", "pause"),
    ]


def test_a_run_that_is_over_takes_no_commands(store: LocalStore) -> None:
    sent: list[tuple[str, Command]] = []
    with client_of(store, sent) as client:
        assert post(client, {"verb": "pause"}, run="r1").status_code == 409
        assert post(client, {"verb": "pause"}, run="none").status_code == 404
    assert sent == []


def test_commands_have_limits(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.dashboard.app.RateLimit", partial(RateLimit, clock=lambda: 0.0))
    write(store, small_turns()[:7], "r2")
    sent: list[tuple[str, Command]] = []
    with client_of(store, sent) as client:
        assert post(client, b'{"verb": "' + b"x" * 70_000 + b'"}').status_code == 413
        assert post(client, {"verb": "pause"}, kind="text/plain").status_code == 415
        answers = [post(client, {"verb": "pause"}) for _ in range(11)]
    assert [answer.status_code for answer in answers] == [202] * 10 + [429]
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert len(sent) == 10


def test_read_only_has_no_way_to_command(store: LocalStore) -> None:
    write(store, small_turns()[:7], "r2")
    sent: list[tuple[str, Command]] = []
    with client_of(store, sent, read_only=True) as client:
        about = client.get("api/server").json()
        assert (about["read_only"], about["csrf"], about["verbs"]) == (True, None, [])
        headers = {"authorization": "Bearer a-token-of-the-tests-0123456789", "content-type": "application/json"}
        answer = client.post("api/runs/r2/commands", content=b'{"verb": "pause"}', headers=headers)
        assert answer.status_code == 405
        answer = client.post("api/runs/r2/questions", content=b'{"verb": "pause"}', headers=headers)
        assert answer.status_code == 404
    assert sent == []


def test_the_mailbox_holds_what_was_sent(store: LocalStore) -> None:
    send = mailbox_sender(store)
    send("r1", Command("clone", id="c1", by=HOSTILE, trial="t0", params={"name": HOSTILE}))
    (name,) = store.list("runs/r1/mailbox")
    assert name.rpartition("/")[2][20:] == "-c1.json"
    assert json.loads(store.read(name))["params"]["name"] == HOSTILE
