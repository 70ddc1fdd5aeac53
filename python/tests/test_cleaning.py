"""`cerebro-spark clean`: what nobody uses goes, with its size said; what somebody uses stays."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest
from fake_driver import beginning, ending
from small_search import small_dataset

from cerebro_spark.cleaning import DAY, clean
from cerebro_spark.cli import main
from cerebro_spark.commands import Command
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.data.loading.cache_root import DISK_VARIABLE, MEMORY_VARIABLE, CacheRoot
from cerebro_spark.data.partitioning.dataset_writer import new_token
from cerebro_spark.doctor.machine import check_caches
from cerebro_spark.errors import ConfigurationError, UntrustedCache
from cerebro_spark.eventlog import EventLog
from cerebro_spark.mailbox import ask
from cerebro_spark.store import paths
from cerebro_spark.store.fsspec import FsspecStore
from cerebro_spark.store.local import LocalStore
from cerebro_spark.store.spooling import spool


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The caches of this host, for this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    named = {DISK_VARIABLE: tmp_path / "disk", MEMORY_VARIABLE: tmp_path / "memory"}
    for variable, folder in named.items():
        monkeypatch.setenv(variable, str(folder))
    return named


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return small_dataset(tmp_path, rows=64)


def die_with_a_cache(dataset: Dataset) -> None:
    """Leave what a killed worker leaves: entries, and no locks."""
    cache = Cache()
    cache.load(dataset, dataset.train[0])
    for held in cache._open_entries.values():
        held.lock.close()
    for root in cache._roots():
        root._close()


def test_what_a_dead_worker_left_is_listed_and_freed(
    dataset: Dataset, folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    die_with_a_cache(dataset)
    (entry,) = folders[MEMORY_VARIABLE].glob("*/entry.json")
    size = sum(file.stat().st_size for file in entry.parent.iterdir())
    assert main(["clean", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert str(entry.parent) in said
    assert entry.exists()
    found = clean()
    assert [(left.place, left.bytes) for left in found] == [(str(entry.parent), size)]
    assert not folders[MEMORY_VARIABLE].exists()
    assert main(["clean"]) == 0
    assert capsys.readouterr().out == "nothing is unused\n"


def test_what_somebody_uses_stays(dataset: Dataset) -> None:
    one, two = dataset.train
    with Cache() as cache:
        arrays = cache.load(dataset, one)
        cache.load(dataset, two)
        cache.release(dataset, two)
        assert [Path(left.place).name.startswith("train-00001") for left in clean()] == [True]
        assert cache.load(dataset, one) is arrays
        assert not cache.holds(dataset, two)


def test_a_look_does_not_keep_the_last_user_from_clearing(dataset: Dataset, folders: dict[str, Path]) -> None:
    """Who leaves while somebody looks is not the last: then whoever looks is."""
    worker = Cache()
    worker.load(dataset, dataset.train[0])
    look = CacheRoot(folders[MEMORY_VARIABLE])
    look.enter()
    worker.close()
    assert list(folders[MEMORY_VARIABLE].glob("*/entry.json"))
    look.leave(tidy=not look.was_empty)
    assert not folders[MEMORY_VARIABLE].exists()


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_what_died_writers_left_in_a_store_is_listed_and_freed(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = LocalStore(tmp_path / "s") if kind == "local" else FsspecStore(f"memory://clean{tmp_path}")
    old = f"datasets/d/{new_token(time.time() - 8 * DAY)}/train/a.parquet"
    young = f"datasets/d/{new_token(time.time() - 6 * DAY)}/train/a.parquet"
    for name in (old, young, "runs/r1/functions.pkl"):
        store.write(name, b"12345")
    if isinstance(store, LocalStore):
        (store.root / ".staging").mkdir(exist_ok=True)
        for name, age in (("old", 2 * DAY), ("young", 0.0)):
            (store.root / ".staging" / name).write_bytes(b"123")
            os.utime(store.root / ".staging" / name, (time.time() - age,) * 2)
    expected = [f"{store.url}/{old.rpartition('/train')[0]}"]
    if kind == "local":
        expected.insert(0, f"{store.url}/.staging/old")
    before = store.list()
    assert [left.place for left in clean(store, dry_run=True)] == expected
    assert store.list() == before
    assert sum(left.bytes for left in clean(store)) == (8 if kind == "local" else 5)
    assert store.list() == sorted([young, "runs/r1/functions.pkl"])
    assert [left.bytes for left in clean(store, older_than=0)][-1] == 5
    assert store.list() == ["runs/r1/functions.pkl"]
    assert clean(store, older_than=0) == []


def test_an_upload_that_never_ended_is_listed_and_freed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "temporary"
    (place / "cerebro-upload-old").write_bytes(b"123")
    (place / "cerebro-upload-young").write_bytes(b"12")
    (place / "cerebro-upload-link").symlink_to(place / "other")
    (place / "other").write_bytes(b"1")
    in_use = spool(lambda path: None)
    in_use.file.write(b"1234")
    in_use.file.flush()
    for file in place.iterdir():
        age = 0.0 if file.name.endswith("young") else 2 * DAY
        os.utime(file, (time.time() - age,) * 2, follow_symlinks=False)
    before = sorted(place.iterdir())
    assert main(["clean", "--dry-run"]) == 0
    assert f"{place}/cerebro-upload-old (an upload that never ended)" in capsys.readouterr().out
    assert sorted(place.iterdir()) == before
    with monkeypatch.context() as other:
        other.setattr(os, "getuid", lambda: place.stat().st_uid + 1)
        assert clean() == [], "nothing of another user"
    assert [(left.place, left.bytes) for left in clean()] == [(f"{place}/cerebro-upload-old", 3)]
    assert [Path(left.place).name for left in clean(older_than=0)] == ["cerebro-upload-young"]
    in_use.discard()
    assert sorted(file.name for file in place.iterdir()) == ["cerebro-upload-link", "other"]


def test_a_data_set_is_never_taken_for_a_leftover(dataset: Dataset) -> None:
    before = dataset.store.list()
    assert clean(dataset.store, older_than=0) == []
    assert dataset.store.list() == before


def test_what_cannot_be_cleaned_is_said(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match="`older-than` is -1"):
        clean(older_than=-1)
    folders[DISK_VARIABLE].mkdir()
    os.chmod(folders[DISK_VARIABLE], 0o755)
    with pytest.raises(UntrustedCache, match="has the mode 0755"):
        clean()
    assert main(["clean"]) == 2
    assert "has the mode 0755" in capsys.readouterr().err
    assert [line.verdict for line in check_caches()] == ["FIX"]


def test_the_doctor_says_what_nobody_uses(dataset: Dataset, folders: dict[str, Path]) -> None:
    assert list(check_caches()) == []
    die_with_a_cache(dataset)
    verdicts = {line.verdict: line.text for line in check_caches()}
    assert "`cerebro-spark clean` frees them" in verdicts["note"]
    assert list(folders[MEMORY_VARIABLE].glob("*/entry.json"))
    clean()
    assert list(check_caches()) == []


def test_old_commands_to_a_run_that_is_done_go_and_others_stay(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    EventLog(store, "done").append(beginning(), ending())
    EventLog(store, "waiting").append(beginning())
    day = int(DAY * 1e9)
    for run, age in (("done", 2 * day), ("done", 0), ("waiting", 2 * day), ("without a log", 2 * day)):
        name = f"runs/{run}/mailbox/{time.time_ns() - age:020d}-c1.json"
        store.write(name, b"{}")
    before = [name for name in store.list() if "/mailbox/" in name]
    found = [left for left in clean(store, dry_run=True) if "/mailbox/" in left.place]
    assert [(left.bytes, left.what) for left in found] == [(2, "a command to a run that is done")]
    assert found[0].place.startswith(f"{store.url.rstrip('/')}/runs/done/")
    assert [name for name in store.list() if "/mailbox/" in name] == before
    clean(store)
    after = [name for name in store.list() if "/mailbox/" in name]
    assert set(before) - set(after) == {found[0].place.removeprefix(f"{store.url.rstrip('/')}/")}


def test_old_questions_go_whatever_became_of_their_run(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    EventLog(store, "done").append(beginning(), ending())
    EventLog(store, "waiting").append(beginning())
    day = int(DAY * 1e9)
    old = [ask(store, run, Command("pause"), lambda: time.time_ns() - 2 * day) for run in ("done", "waiting")]
    young = ask(store, "waiting", Command("pause"))
    store.write("runs/waiting/questions/notes.txt", b"mine")
    found = clean(store)
    what = "a question that nobody waits for an answer to"
    assert [(left.place, left.what) for left in found] == [(f"{store.url.rstrip('/')}/{name}", what) for name in old]
    left = [name for name in store.list() if "/questions/" in name]
    assert sorted(left) == sorted([young, "runs/waiting/questions/notes.txt"])


def test_what_a_plan_tried_goes_once_it_is_old(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    old, young = (paths.pilot(time.time_ns() - int(days * DAY * 1e9), "c0ffee") for days in (2, 0.5))
    names = [f"{paths.run_folder(f'{one}-1a')}/checkpoints/t0/state" for one in (old, young)]
    names += [f"{paths.dataset_folder(one)}/token/train/p0.parquet" for one in (old, young)]
    names.append(f"{paths.run_folder('plan-of-mine')}/checkpoints/t0/state")
    for name in names:
        store.write(name, b"12345")
    found = clean(store, dry_run=True)
    assert [(left.place, left.bytes, left.what) for left in found] == [
        (f"{store.url}/runs/{old}-1a", 5, "a plan that never ended"),
        (f"{store.url}/datasets/{old}", 5, "a plan that never ended"),
    ]
    clean(store)
    assert sorted(store.list()) == sorted(name for name in names if old not in name)
