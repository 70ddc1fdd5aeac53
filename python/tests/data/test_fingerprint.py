"""When files count as untouched, and that the cache then maps them without reading them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cached_rows import cached_rows, check

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.loading import cache as cache_module
from cerebro_spark.data.loading import fingerprint as module
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.data.loading.fingerprint import fingerprint
from cerebro_spark.store.local import LocalStore


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a"
    path.write_bytes(b"abc")
    return path


def settled(files: list[Path]) -> list[str]:
    """The fingerprint of files that were just written, as soon as the clock of files has advanced."""
    while (found := fingerprint(files)) is None:
        pass
    return found


def write(path: Path) -> None:
    path.write_bytes(b"abd")


def replace(path: Path) -> None:
    other = path.with_name("b")
    other.write_bytes(b"abc")
    times = path.stat()
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.rename(path)


def set_back(path: Path) -> None:
    """A write whose time is hidden; that it was hidden has a time of its own."""
    times = path.stat()
    path.write_bytes(b"abd")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("change", [write, replace, set_back, Path.unlink, lambda path: os.truncate(path, 1)])
def test_whatever_is_done_to_a_file_shows(file: Path, change: Callable[[Path], None]) -> None:
    before = settled([file])
    assert fingerprint([file]) == before, "to look at it does nothing"
    change(file)
    assert fingerprint([file]) != before


def test_a_write_at_the_moment_of_the_look_is_not_overlooked(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the clock of files stands still, a next write would have the same time."""
    times = file.stat()
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: max(times.st_mtime_ns, times.st_ctime_ns))
    assert fingerprint([file]) is None


def test_another_boot_shows_and_a_system_without_boots_has_none(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = settled([file])
    monkeypatch.setattr(module, "_BOOT", tmp_path / "boot")
    assert fingerprint([file]) is None
    (tmp_path / "boot").write_text("another")
    assert fingerprint([file]) != before


@pytest.mark.parametrize("known", [True, False])
def test_the_next_process_reads_all_of_an_entry_only_if_it_may_have_changed(
    store: LocalStore, roots: dict[str, Any], monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    dataset: Dataset = cached_rows(store)
    read: list[int] = []
    real = cache_module._checksum

    def counted(array: Any) -> int:
        read.append(array.nbytes)
        return real(array)

    monkeypatch.setattr(cache_module, "_checksum", counted)
    # As if the clock had advanced since the arrays were written, or not.
    monkeypatch.setattr(cache_module, "fingerprint", settled if known else lambda files: None)
    with Cache(**roots) as first:
        first.load(dataset, dataset.train[0])
        written = len(read)
        with Cache(**roots) as second:
            check(second.load(dataset, dataset.train[0]))
    assert len(read) == (written if known else 2 * written)


def test_an_entry_of_an_older_version_is_read_as_before(
    store: LocalStore, roots: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = cached_rows(store)
    with Cache(**roots) as first:
        first.load(dataset, dataset.train[0])
        (entry,) = roots["memory_folder"].glob("*/entry.json")
        text = entry.read_text()
        entry.write_text(text[: text.index(', "unchanged"')] + "}")
        monkeypatch.setattr(cache_module, "fill", None)
        with Cache(**roots) as second:
            check(second.load(dataset, dataset.train[0]))
