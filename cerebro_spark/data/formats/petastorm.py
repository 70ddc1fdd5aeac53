"""Read Parquet files through Petastorm's batch reader: its one home. It never decodes and never shuffles."""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from cerebro_spark.errors import MissingDependency

# One thread reads ahead while we copy. More would hold more row groups in memory, and could change their order.
_THREADS = 1
_UNKNOWN = (pa.uint16(), pa.uint32(), pa.uint64(), pa.float16())
_SWITCH_SECONDS = 0.0005
_UNSAFE_IN_URL = re.compile(r"[#?;%]")


@cache
def is_installed() -> bool:
    """Return whether Petastorm can be imported here."""
    try:
        _import_reader()
    except MissingDependency:
        return False
    return True


def can_read(schema: pa.Schema, names: Sequence[str]) -> bool:
    """Return whether the batch reader can read these columns: it drops types that it does not know.

    >>> can_read(pa.schema([("x", pa.list_(pa.list_(pa.float32())))]), ["x"])
    False
    """
    kinds = [schema.field(name).type for name in names]
    elements = [kind.value_type if pa.types.is_list(kind) else kind for kind in kinds]
    known = all((pa.types.is_primitive(e) or pa.types.is_binary(e)) and e not in _UNKNOWN for e in elements)
    return known and all(name.isidentifier() and not name.startswith("_") for name in schema.names)


def read_batches(paths: Sequence[Path], names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the columns `names` of these files in order, a row group at a time, as arrays (encoded cells: objects)."""
    make_batch_reader = _import_reader()
    wanted = [f"^{re.escape(name)}$" for name in names]
    with tempfile.TemporaryDirectory(prefix="cerebro-spark-") as links, _hidden_warnings(), _fast_thread_switches():
        for path in paths:
            reader = make_batch_reader(
                _url(path, Path(links)),
                schema_fields=wanted,
                reader_pool_type="thread",
                workers_count=_THREADS,
                shuffle_row_groups=False,
            )
            try:
                yield from _all_batches(reader, pq.read_metadata(path).num_rows)
            finally:
                # Its context manager would do this and then print a line about a cache we do not use.
                reader.stop()
                reader.join()


def _import_reader() -> Any:
    try:
        with _hidden_warnings():
            from petastorm import make_batch_reader
    except (ImportError, AttributeError) as error:
        # AttributeError: Petastorm 0.13 is there, with a pyarrow that dropped what it uses.
        raise MissingDependency("this needs Petastorm: pip install 'cerebro-spark[petastorm]'") from error
    return make_batch_reader


def _all_batches(reader: Any, rows: int) -> Iterator[dict[str, Any]]:
    """Yield all batches of a reader, also if it says too early that it is done.

    Its pool asks "is all handed-out work done?" and only then "is all work handed out?"; between the two questions the
    last row groups may be handed out, and it stops before them. Asked again, it goes on.
    """
    seen, stopped_at = 0, -1
    while seen < rows:
        try:
            batch = next(reader)._asdict()
        except StopIteration:
            if stopped_at == seen:
                return
            stopped_at = seen
            continue
        seen += len(next(iter(batch.values())))
        yield batch


def _url(path: Path, links: Path) -> str:
    """Return a URL that Petastorm reads as this path; a path with characters that URLs reserve gets a link."""
    if _UNSAFE_IN_URL.search(str(path)):
        link = links / f"{len(list(links.iterdir()))}.parquet"
        link.symlink_to(path.absolute())
        path = link
    return f"file://{path.absolute()}"


@contextmanager
def _fast_thread_switches() -> Iterator[None]:
    """Switch threads sooner while the block lasts.

    Petastorm's reader thread waits for the interpreter often; 5 ms each time cost a fifth of a load.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextmanager
def _hidden_warnings() -> Iterator[None]:
    """Hide warnings about old interfaces of pyarrow and NumPy, and about files that Petastorm does not close."""
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning, ResourceWarning):
            warnings.simplefilter("ignore", category)
        warnings.filterwarnings("ignore", category=UserWarning, module=r"petastorm\b")
        yield
