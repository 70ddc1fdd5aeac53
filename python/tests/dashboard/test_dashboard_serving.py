"""A real server on a real port: its stream, behind proxies, what it logs, and how it starts and ends."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dashboard_clients import SECONDS, TOKEN, Browser, proxied, serving, until
from dashboard_runs import commanded, small_turns, write

from cerebro_spark.cli import main
from cerebro_spark.commands import Command
from cerebro_spark.dashboard import notebook
from cerebro_spark.dashboard.security import Access
from cerebro_spark.dashboard.serving import listen
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store.local import LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "store")
    write(store, small_turns()[:7])
    return store


def entered(port: int, base: str = "", host: str = "") -> Browser:
    browser = Browser(port, host)
    status, _, _ = browser.ask(f"{base}/?token={TOKEN}")
    assert status == 200
    return browser


def test_what_changes_is_streamed_to_everybody(store: LocalStore) -> None:
    turns = small_turns()
    store.delete("runs")
    log = write(store, turns[:7])
    with serving(store) as served:
        browsers = [entered(served.port) for _ in range(3)]
        found: list[list[tuple[str, bytes]]] = []
        for browser in browsers:
            (kind, data), *_ = browser.events("/api/runs/r1/stream", 1)
            assert (kind, json.loads(data)["version"] > 0) == ("hello", True)
        watching = [
            threading.Thread(target=lambda b=b: found.append(b.events("/api/runs/r1/stream", 2))) for b in browsers
        ]
        for thread in watching:
            thread.start()
        until(lambda: len(served_clients(served)), lambda count: count == 3)
        log.append(*turns[7:])
        for thread in watching:
            thread.join(SECONDS)
    assert len(found) == 3
    assert len({events[1][1] for events in found}) == 1, "everybody gets the same"
    name, data = found[0][1]
    news = json.loads(data)
    assert name == "update"
    assert (news["from"], news["run"]["state"]) == (json.loads(found[0][0][1])["version"], "finished")
    assert news["units"]["number"]
    assert news["trials"]


def served_clients(served: object) -> set[object]:
    hub = served.server.config.app._app.state.hub  # type: ignore[attr-defined]
    return set(hub._clients.get("r1", ()))


def test_the_list_of_runs_is_streamed(store: LocalStore) -> None:
    with serving(store) as served:
        ((name, data),) = entered(served.port).events("/api/stream", 1)
        assert name == "runs"
        assert [row["run"] for row in json.loads(data)["runs"]] == ["r1"]


PREFIX = "/user/ann/proxy/8787"


@pytest.mark.parametrize("strips", [PREFIX, ""])
@pytest.mark.parametrize("keeps_host", [True, False])
def test_behind_a_proxy_with_a_prefix(store: LocalStore, strips: str, keeps_host: bool) -> None:
    allowed = ("hub.example.org",)
    with (
        serving(store, base_path=PREFIX, allowed_hosts=allowed) as served,
        proxied(served.port, strips, keeps_host) as port,
    ):
        browser = entered(port, PREFIX, "hub.example.org")
        assert [under for _, under in browser.cookies.values()] == [f"{PREFIX}/"], "it is sent nowhere else"
        status, _, body = browser.ask(f"{PREFIX}/api/runs/r1")
        assert (status, json.loads(body)["run"]) == (200, "r1")
        ((kind, _),) = browser.events(f"{PREFIX}/api/runs/r1/stream", 1)
        assert kind == "hello"
        csrf = json.loads(browser.ask(f"{PREFIX}/api/server")[2])["csrf"]
        headers = {"Origin": "https://hub.example.org", "Content-Type": "application/json", "X-CSRF-Token": csrf}
        asked = (f"{PREFIX}/api/runs/r1/commands", "POST", b'{"verb": "pause"}')
        assert browser.ask(*asked, headers)[0] == 202
        assert browser.ask(*asked, {**headers, "Origin": "https://evil.example"})[0] == 403
        assert store.list("runs/r1/mailbox")
        if not strips:
            status, answer, _ = browser.ask(PREFIX)
            assert (status, answer["location"]) == (307, f"{PREFIX}/")


def test_a_proxy_that_is_not_named_is_refused(store: LocalStore) -> None:
    with serving(store) as served, proxied(served.port) as port:
        assert Browser(port, "hub.example.org").ask(f"/?token={TOKEN}")[0] == 403


def test_a_stop_reaches_the_mailbox_and_its_answer_the_page(store: LocalStore) -> None:
    turns = small_turns()[:7]
    store.delete("runs")
    log = write(store, turns)
    with serving(store) as served:
        browser = entered(served.port)
        csrf = json.loads(browser.ask("/api/server")[2])["csrf"]
        headers = {"Origin": f"http://127.0.0.1:{served.port}", "Content-Type": "application/json"}
        body = b'{"verb": "stop_trial", "trial": "t0"}'
        status, _, data = browser.ask("/api/runs/r1/commands", "POST", body, {**headers, "X-CSRF-Token": csrf})
        assert status == 202
        (name,) = store.list("runs/r1/mailbox")
        kept = json.loads(store.read(name))
        assert (kept["verb"], kept["trial"], kept["id"]) == ("stop_trial", "t0", json.loads(data)["command"]["id"])
        log.append(*commanded(turns[-1], Command("stop_trial", id=kept["id"], trial="t0")))
        until(
            lambda: json.loads(browser.ask("/api/runs/r1/commands")[2])["commands"][0]["state"],
            lambda state: state == "done",
        )


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2f..%2fapp.py",
        "/static/%2e%2e/%2e%2e/setup.cfg",
        "//etc/passwd",
        "/%00",
        "/\\..",
    ],
)
def test_no_path_leads_out(store: LocalStore, path: str) -> None:
    with serving(store) as served:
        status, _, body = entered(served.port).ask(path)
        assert status == 404
        assert b"import" not in body


@pytest.fixture
def all_logs(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """All that anybody logs, uvicorn too, which does not hand its records on."""
    loggers = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio")]
    with caplog.at_level(logging.DEBUG):
        for logger in loggers:
            logger.addHandler(caplog.handler)
        yield caplog
        for logger in loggers:
            logger.removeHandler(caplog.handler)


def test_the_token_is_never_logged(
    store: LocalStore, all_logs: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with serving(store) as served:
        browser = entered(served.port)
        browser.ask(f"/api/runs?token={TOKEN}", headers={"Authorization": f"Bearer {TOKEN}"})
        browser.ask(f"/nothing?token={TOKEN}")
        browser.ask(f"/?token={TOKEN}", headers={"Host": "evil.example"})
        browser.ask(f"/api/runs/r1/gantt?from=x&token={TOKEN}")
        with socket.create_connection(("127.0.0.1", served.port), SECONDS) as raw:
            raw.sendall(f"GET /?token={TOKEN} nonsense\r\n\r\n".encode())
            raw.recv(1000)
    printed = "".join(capfd.readouterr())
    assert TOKEN not in printed
    assert TOKEN not in all_logs.text


def test_a_port_that_is_taken_is_said(store: LocalStore) -> None:
    first = listen(store, Access(), 0)
    try:
        with pytest.raises(ConfigurationError, match="--port"):
            listen(store, Access(), first.port)
    finally:
        for listening in first.listening:
            listening.close()
    with pytest.raises(ConfigurationError, match=r"256\.256"):
        listen(store, Access(host="256.256.256.256"), 0)


def test_nobody_else_can_listen_as_localhost(store: LocalStore) -> None:
    """A link may say `localhost`, which may mean either address: who else listens there would be sent the token."""
    first = listen(store, Access(), 0)
    try:
        taken = {listening.getsockname()[0] for listening in first.listening}
        assert taken == ({"127.0.0.1", "::1"} if _has_ipv6() else {"127.0.0.1"})
        for listening in first.listening:
            with pytest.raises(OSError, match="in use"):
                socket.create_server(listening.getsockname()[:2], family=listening.family)
    finally:
        for listening in first.listening:
            listening.close()


def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_the_command_line_serves_until_it_is_stopped(store: LocalStore) -> None:
    command = [sys.executable, "-m", "cerebro_spark.cli", "dashboard", store.url, "--port", "0", "--read-only"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().strip() for _ in range(3)]
        address, _, token = lines[2].partition("/?token=")
        assert address.startswith("http://127.0.0.1:")
        browser = Browser(int(address.rpartition(":")[2]))
        assert browser.ask(f"/?token={token}")[0] == 200
        assert json.loads(browser.ask("/api/server")[2])["read_only"] is True
        process.send_signal(2)
        _, errors = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert token not in errors


def test_mistakes_on_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["dashboard", str(tmp_path), "--base-path", "no-slash"]) == 2
    assert "must begin with '/'" in capsys.readouterr().err


def test_a_dashboard_beside_a_notebook(store: LocalStore, capsys: pytest.CaptureFixture[str]) -> None:
    shown = notebook.open_dashboard(store, "r1")
    try:
        assert shown.link in capsys.readouterr().out
        assert "&run=r1" in shown.link
        again = notebook.open_dashboard(store, show=False)
        assert again.process is shown.process, "one for a store"
        address, _, query = shown.link.partition("/?")
        browser = Browser(int(address.rpartition(":")[2]), "localhost")
        assert browser.ask(f"/?{query}")[0] == 200
        assert json.loads(browser.ask("/api/runs/r1")[2])["run"] == "r1"
        listed = Path(f"/proc/{shown.process.pid}/cmdline").read_bytes()
        assert query.partition("&")[0].removeprefix("token=").encode() not in listed
    finally:
        shown.close()
    assert not shown.alive


def test_a_dashboard_ends_with_its_parent(store: LocalStore) -> None:
    shown = notebook.open_dashboard(store, show=False)
    assert shown.process.stdin is not None
    shown.process.stdin.close()  # as the end of this process would
    assert shown.process.wait(SECONDS) == 0
    shown.close()


def test_a_notebook_shows_the_page_below_the_link(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    display = pytest.importorskip("IPython.display")
    shown: list[object] = []
    monkeypatch.setattr(display, "display", shown.append)
    about = notebook.Dashboard("http://localhost:1/?token=x", subprocess.Popen(["true"]))
    try:
        notebook._show(about)
        assert shown == [], "there is no notebook here"
        monkeypatch.setattr(notebook, "_notebook_shell", object)
        notebook._show(about)
        assert [frame.src for frame in shown] == [about.link]  # type: ignore[attr-defined]
    finally:
        about.close()
    assert capsys.readouterr().out.count(about.link) == 2
