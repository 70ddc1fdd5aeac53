"""Commands through a store: each is posted once, in the order of sending, and nothing in the folder stops a run."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.codec import to_json
from cerebro_spark.commands import Command
from cerebro_spark.errors import AlreadyInStore, ConfigurationError, StoreError
from cerebro_spark.events import CommandReceived
from cerebro_spark.mailbox import MOST_BYTES, MailboxPoller, send
from cerebro_spark.relay import Relay
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.local import LocalStore
from cerebro_spark.store.opening import open_store
from cerebro_spark.turns import Outcome, Turn


def pause(name: str) -> Command:
    return Command("pause", id=name)


def poller(store: Store) -> tuple[MailboxPoller, list[str]]:
    """A poller whose looks are taken by hand, and the ids that it posted."""
    heard: list[str] = []
    return MailboxPoller(store, "r1", lambda command: heard.append(command.id)), heard


def received(*ids: str) -> Turn:
    return Turn([CommandReceived(1.0, pause(name)) for name in ids], [Outcome()] * len(ids))


def test_what_is_sent_is_posted_as_it_was_said(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    said = Command(
        "clone", by="ann@laptop", trial="t3", epochs=2, params={"lr": 0.1, "net": (64, 32)}, warm_start=False
    )
    heard: list[Command] = []
    send(store, "r1", said)
    MailboxPoller(store, "r1", heard.append).look()
    assert heard == [said]


def test_commands_are_posted_in_the_order_of_sending_and_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    looking, heard = poller(store)
    for name, when in (("late", 30), ("early", 10), ("between", 20)):
        send(store, "r1", pause(name), clock=lambda when=when: when)  # type: ignore[misc]
    looking.look()
    looking.look()
    assert heard == ["early", "between", "late"]


def test_one_look_is_one_listing(tmp_path: Path) -> None:
    class Counting(LocalStore):
        listings = 0

        def list(self, folder: str = "") -> list[str]:
            Counting.listings += 1
            return super().list(folder)

    looking, heard = poller(Counting(tmp_path))
    send(LocalStore(tmp_path), "r1", pause("c1"))
    looking.look()
    assert (Counting.listings, heard) == (1, ["c1"])


def test_what_the_log_has_is_deleted_and_not_before(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    looking, heard = poller(store)
    names = [send(store, "r1", pause(name)) for name in ("c1", "c2")]
    looking.look()
    assert store.list(paths.mailbox("r1")) == sorted(names)
    looking.note(received("c1"))
    looking.look()
    assert store.list(paths.mailbox("r1")) == names[1:]
    assert heard == ["c1", "c2"]


def test_a_command_that_is_sent_again_by_a_slow_sender_is_heard_once(tmp_path: Path) -> None:
    """A write whose answer was lost is repeated, perhaps after the file was taken and deleted."""
    store = LocalStore(tmp_path)
    heard: list[Command] = []
    relay = Relay()
    looking = MailboxPoller(store, "r1", relay.post)
    with relay.connected(heard.append, known=["old"]):
        for _ in range(2):
            send(store, "r1", pause("c1"), clock=lambda: 1)
            send(store, "r1", pause("old"), clock=lambda: 2)
            looking.look()
            looking.note(received("c1"))
            looking.look()
    assert [command.id for command in heard] == ["c1"]


STRANGE = {
    "notes.txt": b"mine",
    "00000000000000000001-c1.json": b"{",
    "00000000000000000002-c2.json": b"\xff\xfe",
    "00000000000000000003-c3.json": b'{"command": "Command", "verb": "explode", "id": "c3"}',
    "00000000000000000004-c4.json": to_json(pause("other"), "command").encode(),
    "00000000000000000005-c5.json": b'{"command": "os.system", "verb": "pause", "id": "c5"}',
    "00000000000000000006-c6.json": b'{"command": "Command", "verb": "stop_trial", "id": "c6"}',
    "00000000000000000007-c7.json": b'{"command": "Command", "verb": "pause", "id": "c7", "new_field": 1}',
    "00000000000000000008-c8.json": b"[" * 5000,
    "00000000000000000009-c9.json": b" " * (MOST_BYTES + 1),
    "deep/00000000000000000010-c10.json": b"[]",
}


def test_what_is_no_command_is_said_once_and_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = LocalStore(tmp_path)
    for name, data in STRANGE.items():
        store.write(f"{paths.mailbox('r1')}/{name}", data)
    send(store, "r1", pause("good"), clock=lambda: 99)
    looking, heard = poller(store)
    with caplog.at_level(logging.WARNING):
        looking.look()
        looking.look()
    assert heard == ["good"]
    for name in STRANGE:
        assert sum(f"mailbox/{name} in" in said for said in caplog.messages) == 1
    assert len(store.list(paths.mailbox("r1"))) == len(STRANGE) + 1, "what others wrote is theirs"


@given(st.binary(max_size=200))
def test_whatever_bytes_are_there_no_look_fails(data: bytes) -> None:
    store = open_store("memory://mailbox-of-bytes")
    store.delete(paths.mailbox("r1"))
    store.write(paths.letter("r1", 1, "c1"), data)
    looking, heard = poller(store)
    looking.look()
    assert heard == []


class Failing(LocalStore):
    """Fails while it is told to: when it is listed, or when a file of it is read."""

    at = ""

    def list(self, folder: str = "") -> list[str]:
        if self.at == "list":
            raise StoreError("connection refused")
        return super().list(folder)

    def read(self, name: str) -> bytes:
        if self.at == "read":
            raise StoreError("connection refused")
        return super().read(name)


@pytest.mark.parametrize("at", ["list", "read"])
def test_a_store_that_fails_for_a_while_is_said_once_and_waited_for(
    at: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Failing(tmp_path)
    looking, heard = poller(store)
    for number, name in enumerate(("c1", "c2")):
        send(store, "r1", pause(name), clock=lambda number=number: number)  # type: ignore[misc]
    store.at = at
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            looking.look()
        assert heard == []
        store.at = ""
        looking.look()
        looking.look()
    assert heard == ["c1", "c2"]
    assert [said for said in caplog.messages if "mailbox" in said] == [
        "the mailbox of run r1 cannot be read for now: connection refused",
        "the mailbox of run r1 can be read again",
    ]


STEPS = st.lists(st.sampled_from(["send", "look", "log", "die", "fail"]), max_size=40)


@given(STEPS)
def test_whatever_happens_to_drivers_each_command_is_logged_once_and_none_is_lost(steps: list[str]) -> None:
    """A driver may die between any two steps; the next one knows the log, and nothing else."""
    folder = Path(tempfile.mkdtemp())
    store, log = Failing(folder), list[str]()
    sent: list[str] = []

    def new_driver() -> tuple[MailboxPoller, list[str]]:
        posted: list[str] = []
        relay = Relay()
        drivers.enter_context(relay.connected(lambda command: posted.append(command.id), known=list(log)))
        return MailboxPoller(store, "r1", relay.post), posted

    drivers = ExitStack()
    looking, posted = new_driver()
    for step in [*steps, "look", "log", "look"]:
        store.at = "list" if step == "fail" else ""
        if step == "send":
            sent.append(f"c{len(sent)}")
            send(LocalStore(folder), "r1", pause(sent[-1]), clock=lambda: len(sent))
        elif step in ("look", "fail"):
            looking.look()
        elif step == "log":  # the engine takes what was posted, and its turn is logged before observers hear of it
            log += posted
            looking.note(received(*posted))
            posted.clear()
        elif step == "die":
            looking, posted = new_driver()
    assert log == sent, "each once, in the order of sending"
    drivers.close()
    shutil.rmtree(folder)


def test_a_poller_looks_in_a_thread_of_its_own_until_its_block_ends(tmp_path: Path) -> None:
    store, came = LocalStore(tmp_path), threading.Event()
    threads: list[str] = []

    def post(command: Command) -> None:
        threads.append(threading.current_thread().name)
        came.set()

    with MailboxPoller(store, "r1", post, every=0.01):
        send(store, "r1", pause("c1"))
        assert came.wait(60)
    assert threads == ["mailbox"]
    assert "mailbox" not in {thread.name for thread in threading.enumerate()}


def test_what_waits_is_posted_before_the_block_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.mailbox._MOST_SECONDS", 60.0)
    store = LocalStore(tmp_path)
    send(store, "r1", pause("c1"))
    heard: list[str] = []
    with MailboxPoller(store, "r1", lambda command: heard.append(command.id), every=600):
        assert heard == ["c1"]


class Listed(LocalStore):
    """A store that says when it was listed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.listed = threading.Event()

    def list(self, folder: str = "") -> list[str]:
        found = super().list(folder)
        self.listed.set()
        return found


def test_what_the_log_has_is_gone_when_the_block_ends_and_what_came_too_late_is_not(tmp_path: Path) -> None:
    store, came = Listed(tmp_path), threading.Event()
    heard: list[str] = []

    def post(command: Command) -> None:
        heard.append(command.id)
        came.set()

    with MailboxPoller(store, "r1", post, every=60) as looking:
        assert store.listed.wait(60)  # its thread has looked, and rests
        send(store, "r1", pause("c1"))
        looking.look()
        assert came.wait(60)
        looking.note(received("c1"))
        late = send(store, "r1", pause("c2"))
    assert (store.list(paths.mailbox("r1")), heard) == ([late], ["c1"])


def test_a_store_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cerebro_spark.mailbox._MOST_SECONDS", 0.01)
    hung, free = threading.Event(), threading.Event()

    class Hanging(LocalStore):
        def list(self, folder: str = "") -> list[str]:
            hung.set()
            free.wait(60)
            return super().list(folder)

    heard: list[Command] = []
    send(LocalStore(tmp_path), "r1", pause("c1"))
    with MailboxPoller(Hanging(tmp_path), "r1", heard.append) as looking:
        assert hung.wait(60)
    free.set()
    looking._thread.join(60)
    assert heard == [], "after the block nothing is posted any more"


def test_what_cannot_be_logged_is_not_sent(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(ConfigurationError, match=r"'params\.net' holds a object"):
        send(store, "r1", Command("clone", trial="t1", params={"net": object()}))
    with pytest.raises(ConfigurationError, match=r"the command id is '\.\./x'"):
        send(store, "r1", Command("pause", id="../x"))
    assert store.list() == []


def test_a_letter_is_written_once(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    send(store, "r1", pause("c1"), clock=lambda: 1)
    with pytest.raises(AlreadyInStore):
        send(store, "r1", Command("end", id="c1"), clock=lambda: 1)
