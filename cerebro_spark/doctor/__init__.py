"""Checks whether a search can run here, and on a cluster: `cerebro-spark doctor`. It repairs nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cerebro_spark.doctor.diagnosis import Diagnosis, fix, ok
from cerebro_spark.doctor.machine import check_caches, check_java, check_python, find_java_version, find_versions
from cerebro_spark.doctor.versions import judge_versions
from cerebro_spark.errors import CerebroError
from cerebro_spark.runs import check_writable
from cerebro_spark.store.base import Store
from cerebro_spark.store.opening import open_store


def examine(
    master: str | None = None, store: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Diagnosis]:
    """Check this machine, then the store, then the cluster.

    Args:
        master: The address of a Spark cluster; None (the default) leaves it out.
        store: The URL of a store; None (the default) leaves it out.
        settings: Spark settings for the session on the cluster.

    Yields:
        One diagnosis after another, as they are made.
    """
    versions = find_versions()
    java = find_java_version()
    yield check_python()
    diagnoses = list(judge_versions({**versions, **({"java": java} if java else {})}))
    if not any(each.verdict == "FIX" and each.text.startswith("java ") for each in diagnoses):
        yield check_java(java, needed=master is not None or "pyspark" in versions)
    yield from diagnoses
    yield from check_caches()
    place = None
    if store is not None:
        diagnosis, place = _check_store(store)
        yield diagnosis
    if master is None:
        return
    if "pyspark" not in versions:
        yield fix(f"there is no pyspark to reach {master} with", "pip install 'cerebro-spark[spark]'")
    elif not java:
        yield fix(f"{master} is not looked at: Spark does not start without Java", "install Java first")
    else:
        from cerebro_spark.doctor.spark import examine_cluster

        yield from examine_cluster(master, place, settings or {}, versions)


def _check_store(url: str) -> tuple[Diagnosis, Store | None]:
    try:
        store = open_store(url)
        check_writable(store)
    except CerebroError as error:
        return Diagnosis("FIX", str(error)), None
    return ok(f"store {store.url} can be written from here"), store
