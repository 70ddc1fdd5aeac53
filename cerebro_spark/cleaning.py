"""What nobody uses any more, on this host and in a store: `cerebro-spark clean`. It touches nothing that is in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebro_spark.data.loading.cache_root import CacheRoot, disk_folder, shared_memory_folder
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store

DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that only takes room: where it is, how many bytes it has, and what it was."""

    place: str
    bytes: int
    what: str


def clean(
    store: str | Store | None = None, *, older_than: float | None = None, dry_run: bool = False
) -> list[Leftover]:
    """Free what nobody uses of this user's cache on this host, and what writers that died left in `store`.

    What was being written to a store may still be at work: it is left alone for a day, a folder of `prepare` for a
    week; `older_than` says otherwise, in days. `dry_run` only looks. Returns what was found.
    """
    if older_than is not None and not older_than >= 0:
        raise ConfigurationError(f"`older-than` is {older_than}, but must be a number of days, 0 or more")
    found = [left for folder in (shared_memory_folder(), disk_folder()) for left in _of_cache(folder, dry_run)]
    return found if store is None else [*found, *_of_store(open_store(store), older_than, dry_run)]


def as_text(found: Sequence[Leftover], dry_run: bool) -> str:
    """What was found, a line each, and the sum of it.

    >>> print(as_text([Leftover("/dev/shm/cerebro-spark-0/train-00000-1f", 2_000_000, "a partition")], dry_run=True))
           2.0 MB  /dev/shm/cerebro-spark-0/train-00000-1f (a partition)
    nobody uses 1 of them, 2.0 MB: without --dry-run they are removed
    """
    total = sum(left.bytes for left in found)
    if not found:
        return "there is nothing that nobody uses"
    lines = [f"{_megabytes(left.bytes):>13}  {left.place} ({left.what})" for left in found]
    done = "without --dry-run they are removed" if dry_run else "they are removed"
    return "\n".join([*lines, f"nobody uses {len(found)} of them, {_megabytes(total)}: {done}"])


def _of_cache(folder: Path, dry_run: bool) -> Iterator[Leftover]:
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
        # Whoever left while we looked took us for a user, and left the tidying to us.
        root.leave(tidy=not dry_run or not root.was_empty)


def _of_store(store: Store, older_than: float | None, dry_run: bool) -> Iterator[Leftover]:
    from cerebro_spark.data.partitioning.dataset_writer import WEEK, delete_abandoned, find_abandoned

    staged = DAY if older_than is None else older_than * DAY
    prepared = WEEK if older_than is None else older_than * DAY
    url = store.url.rstrip("/")
    for name, size in store.unfinished(staged).items():
        yield Leftover(f"{url}/{name}", size, "a write that never ended")
    for folder, names in find_abandoned(store, prepared).items():
        yield Leftover(f"{url}/{folder}", sum(store.size(name) for name in names), "a preparation that never ended")
    if not dry_run:
        store.sweep(staged)
        delete_abandoned(store, prepared)


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
