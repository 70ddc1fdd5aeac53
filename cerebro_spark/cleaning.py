"""Frees what is unused on this host and in a store: `cerebro-spark clean`. It never touches what is in use."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebro_spark.data.loading.cache_root import CacheRoot, disk_folder, shared_memory_folder
from cerebro_spark.errors import CerebroError, ConfigurationError
from cerebro_spark.result.listing import read_view
from cerebro_spark.store import paths, spooling
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something unused: where it is, its size in bytes, and what it was."""

    place: str
    bytes: int
    what: str


def clean(
    store: str | Store | None = None, *, older_than: float | None = None, dry_run: bool = False
) -> list[Leftover]:
    """Free what is unused in this user's cache on this host, and what died on its way to a store or in it.

    Args:
        store: The store, or its URL; None (the default) for this host alone.
        older_than: The age in days from which unfinished writes count as left by the dead. None (the default) is a
            day, and a week for a folder of `prepare`: a younger one may still be written.
        dry_run: Whether to find only, and to remove nothing.

    Returns:
        What was found.

    Raises:
        ConfigurationError: `older_than` is negative.
    """
    if older_than is not None and not older_than >= 0:
        raise ConfigurationError(f"`older-than` is {older_than}, but must be a number of days, 0 or more")
    found = [left for folder in (shared_memory_folder(), disk_folder()) for left in _clean_cache(folder, dry_run)]
    found += _clean_uploads(DAY if older_than is None else older_than * DAY, dry_run)
    return found if store is None else [*found, *_clean_store(open_store(store), older_than, dry_run)]


def format_leftovers(found: Sequence[Leftover], dry_run: bool) -> str:
    """Return the leftovers, a line each, and their sum.

    >>> found = [Leftover("/dev/shm/cerebro-spark-0/train-00000-1f", 2_000_000, "a partition")]
    >>> print(format_leftovers(found, dry_run=True))
           2.0 MB  /dev/shm/cerebro-spark-0/train-00000-1f (a partition)
    1 unused, 2.0 MB: without --dry-run they are removed
    """
    total = sum(left.bytes for left in found)
    if not found:
        return "nothing is unused"
    lines = [f"{_megabytes(left.bytes):>13}  {left.place} ({left.what})" for left in found]
    done = "without --dry-run they are removed" if dry_run else "they are removed"
    return "\n".join([*lines, f"{len(found)} unused, {_megabytes(total)}: {done}"])


def _clean_cache(folder: Path, dry_run: bool) -> Iterator[Leftover]:
    if not folder.exists():
        return
    root = CacheRoot(folder)
    root.enter()
    try:
        for unused in root.unused():
            yield Leftover(str(unused.path), unused.bytes, "a partition that was cached for workers")
        if not dry_run:
            with root.locked():
                root.evict(None)
    finally:
        # A worker that left meanwhile took this process for a user, and did not tidy up.
        root.leave(tidy=not dry_run or not root.was_empty)


def _clean_uploads(older_than: float, dry_run: bool) -> Iterator[Leftover]:
    for path, size in spooling.find_abandoned(older_than).items():
        yield Leftover(str(path), size, "an upload that never ended")
        if not dry_run:
            path.unlink(missing_ok=True)


def _clean_store(store: Store, older_than: float | None, dry_run: bool) -> Iterator[Leftover]:
    from cerebro_spark.data.partitioning.dataset_writer import WEEK, delete_abandoned, find_abandoned

    staged = DAY if older_than is None else older_than * DAY
    prepared = WEEK if older_than is None else older_than * DAY
    url = store.url.rstrip("/")
    for name, size in store.unfinished(staged).items():
        yield Leftover(f"{url}/{name}", size, "a write that never ended")
    for folder, names in find_abandoned(store, prepared).items():
        yield Leftover(f"{url}/{folder}", sum(store.size(name) for name in names), "a preparation that never ended")
    pilots = _find_pilots(store, staged)
    for folder, names in pilots.items():
        yield Leftover(f"{url}/{folder}", sum(store.size(name) for name in names), "a plan that never ended")
    unheard = _find_unheard(store, staged)
    for name, what in unheard.items():
        yield Leftover(f"{url}/{name}", store.size(name), what)
    if not dry_run:
        store.sweep(staged)
        delete_abandoned(store, prepared)
        for folder in pilots:
            store.delete(folder)
        for name in unheard:
            store.delete(name)


def _find_pilots(store: Store, seconds: float) -> dict[str, list[str]]:
    """Return the folders of what old plans tried and did not delete: they were killed. And the files in each."""
    before = time.time_ns() - int(seconds * 1e9)
    found: dict[str, list[str]] = {}
    for name in [*store.list(paths.RUNS), *store.list(paths.DATASETS)]:
        pilot = paths.read_pilot(name)
        if pilot is not None and pilot.begun_at < before:
            found.setdefault(pilot.folder, []).append(name)
    return found


def _find_unheard(store: Store, seconds: float) -> dict[str, str]:
    """Return what nobody will ever take or answer, and in words what it is.

    These are old commands to runs that are done: a run that is not may be resumed, and then hears them. And old
    questions to any run: who asked does not wait that long.
    """
    before = time.time_ns() - int(seconds * 1e9)
    names = store.list(paths.RUNS)
    questions = [asked.name for name in names if (asked := paths.read_question(name)) and asked.sent < before]
    letters: dict[str, list[str]] = {}
    for name in names:
        letter = paths.read_letter(name)
        if letter is not None and letter.sent < before:
            letters.setdefault(letter.run, []).append(name)
    done = [name for run, sent in letters.items() if _is_done(store, run) for name in sent]
    return {
        **dict.fromkeys(done, "a command to a run that is done"),
        **dict.fromkeys(questions, "a question that nobody waits for an answer to"),
    }


def _is_done(store: Store, run: str) -> bool:
    try:
        return read_view(store, run).finished
    except CerebroError:  # without a log that can be read, nobody knows
        return False


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
