"""Whether a search can run here, and on a cluster: `cerebro-spark doctor`. It looks and tells; it mends nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cerebro_spark.doctor.lines import Line, fix, ok
from cerebro_spark.doctor.machine import cache_lines, installed, java_line, java_version, python_line
from cerebro_spark.doctor.versions import judged
from cerebro_spark.errors import CerebroError
from cerebro_spark.runs import check_writable
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store


def examine(
    master: str | None = None, store: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Line]:
    """One line after another, as they are found: first this machine, then the store, then the cluster at `master`."""
    versions = installed()
    java = java_version()
    yield python_line()
    lines = list(judged({**versions, **({"java": java} if java else {})}))
    if not any(line.verdict == "FIX" and line.text.startswith("java ") for line in lines):
        yield java_line(java, needed=master is not None or "pyspark" in versions)
    yield from lines
    yield from cache_lines()
    place = None
    if store is not None:
        line, place = _store(store)
        yield line
    if master is None:
        return
    if "pyspark" not in versions:
        yield fix(f"there is no pyspark to reach {master} with", "pip install 'cerebro-spark[spark]'")
    elif not java:
        yield fix(f"{master} is not looked at, for Spark does not start without Java", "install Java first")
    else:
        from cerebro_spark.doctor.spark import examine_cluster

        yield from examine_cluster(master, place, settings or {}, versions)


def _store(url: str) -> tuple[Line, Store | None]:
    try:
        store = open_store(url)
        check_writable(store)
    except CerebroError as error:
        return Line("FIX", str(error)), None
    return ok(f"store {store.url} can be written from here"), store
