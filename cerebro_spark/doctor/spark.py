"""Checks whether a Spark cluster can run workers: slots, barrier stages, executors. It leaves nothing there."""

from __future__ import annotations

import platform
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from cerebro_spark.backend.driver import spark_cluster as cluster
from cerebro_spark.backend.driver.spark_cluster import Cluster, Finding
from cerebro_spark.data.cluster import use_this_python
from cerebro_spark.data.slots import make_room
from cerebro_spark.doctor.diagnosis import Diagnosis, fix, note, ok
from cerebro_spark.errors import CerebroError
from cerebro_spark.spark_session import active_session
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store

T = TypeVar("T")
_SECONDS_FOR_A_TASK = 60.0
_FRAMEWORKS = ("torch", "keras", "tensorflow")


def examine_cluster(
    master: str, store: Store | None, settings: Mapping[str, str], versions: Mapping[str, str]
) -> Iterator[Diagnosis]:
    """Start a session there, or use the active one, and check it. `versions` are those of the driver."""
    mine = active_session() is None
    try:
        session = _session(master, settings)
    except Exception as error:
        yield fix(
            f"no Spark session can be started on {master} ({_shorten(error)})",
            "see that the address is right and that the cluster answers (for yarn, that HADOOP_CONF_DIR is set)",
        )
        return
    try:
        yield from _examine_context(session.sparkContext, store, versions)
    finally:
        if mine:
            session.stop()


def _session(master: str, settings: Mapping[str, str]) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("cerebro-spark doctor").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def _examine_context(context: Any, store: Store | None, versions: Mapping[str, str]) -> Iterator[Diagnosis]:
    use_this_python(context)  # as a run would
    make_room(context)
    found = cluster.settled(context)
    yield ok(f"Spark {context.version} on {found.master}")
    yield from check_room(found)
    settings = dict(context.getConf().getAll())
    yield from check_settings(found, settings)
    yield from check_idle_timeout(settings)
    if not found.slots:
        return
    yield _check_barrier(context, found)
    yield from _check_executors(context, store, found, versions)


def check_room(found: Cluster) -> Iterator[Diagnosis]:
    """Check how many workers have room."""
    if found.slots:
        yield ok(f"{found.slots} slots: room for that many workers")
    elif found.dynamic:
        yield note("no slots now: with dynamic allocation executors come as they are asked for")
    else:
        yield fix(
            f"{found.master} has no room for a single task",
            "start executors, or give them as many cores as spark.task.cpus says"
            f" ({found.task_cpus}; --num-executors, --executor-cores)",
        )


def check_settings(found: Cluster, settings: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Note settings that are no mistake, but matter for a long search."""
    yield note(
        f"spark.task.cpus is {found.task_cpus}: that many cores, and threads, are a worker's;"
        " more of them make fewer, faster workers"
    )
    if found.dynamic:
        yield note(
            "spark.dynamicAllocation.enabled is true: workers run as plain tasks instead of barrier stages;"
            " a search starts faster with it off"
        )
    limits = [settings.get(name) for name in ("spark.yarn.max.executor.failures", "spark.executor.maxNumFailures")]
    if found.master.startswith("yarn") and not any(limits):
        yield note(
            "spark.yarn.max.executor.failures is not set, so YARN ends the application after as many lost executors as"
            " twice their number: for a long search set it to 1000"
        )


def check_idle_timeout(settings: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Check that Spark 4 does not kill Python processes that send no rows for a while: workers send none."""
    seconds = settings.get("spark.python.worker.idleTimeoutSeconds", "0")
    kills = settings.get("spark.python.worker.killOnIdleTimeout", "false").lower() == "true"
    if kills and seconds not in ("0", "0s"):
        yield fix(
            "spark.python.worker.killOnIdleTimeout is true: a worker sends Spark no rows, so Spark kills it"
            f" (spark.python.worker.idleTimeoutSeconds is {seconds})",
            "set spark.python.worker.killOnIdleTimeout to false",
        )


def _check_barrier(context: Any, found: Cluster) -> Diagnosis:
    if found.dynamic:
        return note("barrier stages are not tried: Spark refuses them with dynamic allocation")
    problem = _run_in_time(
        context,
        lambda: context.parallelize([0], 1).barrier().mapPartitions(_pass_barrier).collect(),
        late=f"a barrier task did not run within {_SECONDS_FOR_A_TASK:g} s, though there is room for {found.slots}",
        failed="a barrier task failed",
    )
    return problem if isinstance(problem, Diagnosis) else ok("barrier stages run")


_PYTHON_FIX = f"let executors use the Python of this environment, such as PYSPARK_PYTHON={sys.executable}"
_SLOTS_FIX = "others may hold all slots: wait for them, or ask for executors of your own"


def _run_in_time(context: Any, job: Callable[[], T], late: str, failed: str) -> T | Diagnosis:
    """Return what a Spark job returns; what is wrong if it fails, or takes too long and is cancelled."""
    from pyspark import InheritableThread

    group = f"cerebro-doctor-{uuid.uuid4().hex}"
    outcome: Future[T] = Future()

    def run() -> None:
        context.setJobGroup(group, "cerebro-spark doctor", interruptOnCancel=True)
        try:
            outcome.set_result(job())
        except Exception as error:
            outcome.set_exception(error)

    InheritableThread(target=run, name=group, daemon=True).start()
    try:
        return outcome.result(_SECONDS_FOR_A_TASK)
    except TimeoutError:
        context.cancelJobGroup(group)
        return fix(late, _SLOTS_FIX)
    except CerebroError as error:
        return Diagnosis("FIX", str(error))
    except Exception as error:
        return fix(f"{failed} ({_shorten(error)})", _PYTHON_FIX)


def _pass_barrier(rows: Iterator[int]) -> Iterator[int]:
    from pyspark import BarrierTaskContext

    BarrierTaskContext.get().barrier()
    yield from rows


def _check_executors(
    context: Any, store: Store | None, found: Cluster, versions: Mapping[str, str]
) -> Iterator[Diagnosis]:
    wanted = (*cluster.ALWAYS, *(name for name in _FRAMEWORKS if name in versions))
    token = uuid.uuid4().hex
    names = [paths.probe(f"{token}-{number}") for number in range(found.slots)]
    findings = _run_in_time(
        context,
        lambda: cluster.ask_executors(context, wanted, store, names),
        late=f"executors did not answer within {_SECONDS_FOR_A_TASK:g} s",
        failed="executors cannot run our tasks",
    )
    if isinstance(findings, Diagnosis):
        yield findings
        return
    yield from compare_versions(findings, {"Python": platform.python_version(), **versions})
    written = [name for name, finding in zip(names, findings, strict=True) if finding.store is None]
    unseen = cluster.unseen(store, written) if store is not None else []
    problems = [*cluster.troubles(findings, store), *unseen]
    yield from (Diagnosis("FIX", trouble) for trouble in problems)
    if not any(finding.missing for finding in findings):
        hosts = sorted({finding.host for finding in findings})
        yield ok(f"executors on {', '.join(hosts)} have {', '.join(wanted)}")
    if store is None:
        yield note("the store was not tried from executors: name one with --store")
    elif not unseen and all(finding.store is None for finding in findings):
        yield ok(f"store {store.url} can be written from executors")


def compare_versions(findings: Sequence[Finding], own: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Yield a diagnosis for each library of another version on executors; of Python the first two numbers count."""
    reported: set[tuple[str, str]] = set()
    for finding in findings:
        for name, version in finding.versions.items():
            here = own.get(name)
            if here is None or _is_same(name, version, here) or (name, version) in reported:
                continue
            reported.add((name, version))
            yield fix(
                f"{name} is {version} on executors of {finding.host}, but {here} here",
                _PYTHON_FIX if name == "Python" else f"install {name}=={here} there, or ship this environment",
            )


def _is_same(name: str, one: str, other: str) -> bool:
    return one == other if name != "Python" else one.split(".")[:2] == other.split(".")[:2]


def _shorten(error: Exception) -> str:
    """Return the line of a Spark error that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("at ", "...", "File ", "Traceback"))]
    words = next((line for line in telling if "MISMATCH" in line or "Error:" in line), (telling or ["no reason"])[0])
    return words if len(words) <= 200 else words[:197] + "..."
