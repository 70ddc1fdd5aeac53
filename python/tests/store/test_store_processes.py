"""Stores among several processes: pickled copies, forks, and writers that are killed in the middle of a write."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from store_children import contest, use

from cerebro_spark.errors import NotFoundInStore
from cerebro_spark.store.base import Store

SPAWN = multiprocessing.get_context("spawn")


def test_a_pickled_store_is_the_same_store(store: Store) -> None:
    store.write("a", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.url == store.url
    assert repr(copy) == repr(store)
    assert copy.read("a") == b"1"
    copy.write("b", b"2")
    assert store.list() == ["a", "b"]
    assert len(pickle.dumps(store)) < 2_000


def test_other_processes_see_and_are_seen(shared_store: Store) -> None:
    shared_store.write("from the parent", b"hello")
    answers: Any = SPAWN.Queue()
    child = SPAWN.Process(target=use, args=(pickle.dumps(shared_store), "child", answers), daemon=True)
    child.start()
    expected = ["child", "child-streamed", "from the parent"]
    assert answers.get(timeout=300) == expected
    child.join(60)
    assert child.exitcode == 0
    assert shared_store.list() == expected
    assert shared_store.read("child-streamed") == b"hello"


# In a process of its own: this one has threads of many libraries, and a fork of it is nobody's use of a store.
_FORKING = """
import os, pickle, signal, sys
store = pickle.load(open(sys.argv[1], "rb"))
store.write("from the parent", b"p")
child = os.fork()
if child == 0:
    copy = pickle.loads(pickle.dumps(store))
    store.write("child", b"c")
    copy.write("copy", copy.read("child"))
    os._exit(0 if store.read("from the parent") == b"p" else 1)
signal.alarm(400)
assert os.waitpid(child, 0)[1] == 0
assert store.read("child") == store.read("copy") == b"c"
store.write("after", b"a")
print(store.list(), flush=True)
"""


def test_a_forked_child_uses_the_inherited_store_and_a_copy(shared_store: Store, tmp_path: Path) -> None:
    """The parent's connections are open at the fork; the child must not hang on them, nor break them."""
    forking = _script(_FORKING, shared_store, tmp_path)
    out, _ = forking.communicate(timeout=450)
    assert forking.returncode == 0
    assert out.decode().strip() == str(["after", "child", "copy", "from the parent"])
    assert shared_store.list() == ["after", "child", "copy", "from the parent"]


def test_one_of_several_processes_wins(contested_store: Store) -> None:
    ready, answers = SPAWN.Barrier(4), SPAWN.Queue()
    pickled = pickle.dumps(contested_store)
    children = [
        SPAWN.Process(target=contest, args=(pickled, number, ready, answers), daemon=True) for number in range(4)
    ]
    for child in children:
        child.start()
    outcomes = dict(answers.get(timeout=300) for _ in children)
    for child in children:
        child.join(60)
    assert sorted(outcomes.values()) == ["done", "taken", "taken", "taken"]
    winner = next(number for number, outcome in outcomes.items() if outcome == "done")
    assert contested_store.read("contested") == bytes([winner]) * 50_000


_HALF = """
import pickle, sys
store = pickle.load(open(sys.argv[1], "rb"))
with store.writer("runs/torn") as file:
    file.write(b"x" * 3_000_000)
    file.flush()
    print("half", flush=True)
    sys.stdin.read()
"""


def test_a_writer_killed_in_its_block_leaves_no_name(shared_store: Store, tmp_path: Path) -> None:
    child = _script(_HALF, shared_store, tmp_path)
    assert child.stdout is not None
    assert child.stdout.readline() == b"half\n"
    assert shared_store.list() == []
    child.kill()
    child.communicate(timeout=300)
    assert shared_store.list() == []
    assert not shared_store.exists("runs")
    with pytest.raises(NotFoundInStore):
        shared_store.read("runs/torn")
    shared_store.write("runs/torn", b"whole")
    assert shared_store.sweep(older_than=3600) == 0
    assert shared_store.unfinished(older_than=3600) == {}
    unfinished = shared_store.unfinished(older_than=-60)
    assert all(name.startswith(".staging/") and size >= 0 for name, size in unfinished.items())
    assert shared_store.sweep(older_than=-60) == len(unfinished) <= 1
    assert shared_store.unfinished(older_than=-60) == {}
    assert shared_store.sweep(older_than=-60) == 0
    assert shared_store.read("runs/torn") == b"whole"
    assert shared_store.list() == ["runs/torn"]


_STREAM_OF_BLOBS = """
import hashlib, pickle, sys
store = pickle.load(open(sys.argv[1], "rb"))
for number in range(10_000):
    data = bytes([number % 256]) * 700_000
    if number % 2:
        store.write(f"k/{number}-{hashlib.sha256(data).hexdigest()}", data)
    else:
        with store.writer(f"k/{number}-{hashlib.sha256(data).hexdigest()}") as file:
            for start in range(0, len(data), 50_000):
                file.write(data[start:start + 50_000])
    print(number, flush=True)
"""


@pytest.mark.parametrize("seen", [2, *(pytest.param(seen, marks=pytest.mark.slow) for seen in (1, 4, 9))])
def test_a_writer_killed_at_any_moment_leaves_only_whole_blobs(shared_store: Store, tmp_path: Path, seen: int) -> None:
    child = _script(_STREAM_OF_BLOBS, shared_store, tmp_path)
    assert child.stdout is not None
    for _ in range(seen):
        assert child.stdout.readline()
    child.kill()
    child.communicate(timeout=300)
    names = shared_store.list()
    assert len(names) >= seen
    for name in names:
        assert hashlib.sha256(shared_store.read(name)).hexdigest() == name.rpartition("-")[2]


def _script(code: str, store: Store, tmp_path: Path) -> subprocess.Popen[bytes]:
    pickled = tmp_path / "store.pickle"
    pickled.write_bytes(pickle.dumps(store))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code, str(pickled)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
