"""The doctor: rules of versions in a table, what executors say turned into lines, and real clusters looked at."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.backend.driver.spark_cluster import Cluster, Finding, troubles, unseen
from cerebro_spark.cli import main
from cerebro_spark.doctor import examine, machine
from cerebro_spark.doctor.diagnosis import Diagnosis, fix, ok
from cerebro_spark.doctor.spark import check_idle_timeout, check_room, check_settings, compare_versions
from cerebro_spark.doctor.versions import RULES, judge_versions, meets
from cerebro_spark.store.local import LocalStore

CLASSIC = {
    "numpy": "1.26.4",
    "pandas": "2.3.3",
    "pyarrow": "14.0.2",
    "safetensors": "0.8.0",
    "cloudpickle": "3.1.2",
    "cryptography": "50.0.2",
    "xxhash": "4.1.0",
    "tqdm": "4.70.1",
    "pyspark": "3.5.9",
    "petastorm": "0.13.1",
    "setuptools": "69.5.1",
    "keras": "3.15.1",
    "tensorflow": "2.21.0",
    "torch": "2.8.0",
    "hyperopt": "0.3.0",
    "java": "17.0.15",
}
MODERN = {
    **{
        name: CLASSIC[name]
        for name in ("safetensors", "cloudpickle", "cryptography", "xxhash", "tqdm", "keras", "tensorflow", "torch")
    },
    "pyspark": "4.3.0",
    "pyarrow": "26.0.0",
    "numpy": "2.4.1",
    "pandas": "3.1.0",
    "java": "21.0.2",
}


@pytest.mark.parametrize("versions", [CLASSIC, MODERN], ids=["classic", "modern"])
def test_the_stacks_that_were_tried_are_fine(versions: dict[str, str]) -> None:
    lines = list(judge_versions(versions))
    assert {line.verdict for line in lines} == {"ok"}
    assert {line.text.split()[0] for line in lines} == set(versions) - {"java"}


# (what differs from the stack, None for what is gone; the one line to fix)
BROKEN: list[tuple[dict[str, str], dict[str, str | None], str]] = [
    (CLASSIC, {"pyarrow": "16.0"}, "pyarrow 16.0 beside petastorm 0.13.1: pip install 'pyarrow<15'"),
    (CLASSIC, {"pyarrow": "15.0.2"}, "pyarrow 15.0.2 beside petastorm 0.13.1: pip install 'pyarrow<15'"),
    (CLASSIC, {"pyarrow": "13.0.0"}, "pyarrow 13.0.0: pip install 'pyarrow>=14'"),
    (CLASSIC, {"numpy": "2.1.0"}, "numpy 2.1.0 beside petastorm 0.13.1: pip install 'numpy<2'"),
    (CLASSIC, {"setuptools": "75.0.0"}, "setuptools 75.0.0 beside petastorm 0.13.1: pip install 'setuptools<70'"),
    (CLASSIC, {"torch": "2.13.0+cpu"}, "torch 2.13.0+cpu beside petastorm 0.13.1: pip install 'torch<2.13'"),
    (CLASSIC, {"java": "21.0.2"}, "java 21.0.2 beside pyspark 3.5.9: point JAVA_HOME to Java 17"),
    (CLASSIC, {"petastorm": None, "setuptools": "81.0"}, "setuptools 81.0 beside hyperopt 0.3.0: pip install 'setup"),
    (CLASSIC, {"tensorflow": "2.15.0"}, "tensorflow 2.15.0 beside keras 3.15.1: pip install 'tensorflow>=2.16'"),
    (CLASSIC, {"numpy": None}, "numpy is not installed: pip install numpy"),
    (CLASSIC, {"keras": None, "torch": None}, "neither Keras nor PyTorch is installed: pip install 'cerebro-spark[ker"),
    (MODERN, {"java": "11.0.2"}, "java 11.0.2 beside pyspark 4.3.0: point JAVA_HOME to Java 17"),
    (MODERN, {"pyarrow": "17.0.0"}, "pyarrow 17.0.0 beside pyspark 4.3.0: pip install 'pyarrow>=18'"),
    (MODERN, {"pyspark": "4.1.0", "pyarrow": "14.0.2"}, "pyarrow 14.0.2 beside pyspark 4.1.0: pip install 'pyarrow>=1"),
    (MODERN, {"pyspark": "3.4.1", "java": "17.0"}, "pyspark 3.4.1: pip install 'pyspark>=3.5'"),
]


@pytest.mark.parametrize(("stack", "changes", "message"), BROKEN, ids=[case[2].split(":")[0] for case in BROKEN])
def test_versions_that_do_not_go_together_are_told_with_the_fix(
    stack: dict[str, str], changes: dict[str, str | None], message: str
) -> None:
    versions = {name: version for name, version in {**stack, **changes}.items() if version is not None}
    told = [line.text for line in judge_versions(versions) if line.verdict == "FIX"]
    assert len(told) == 1
    assert told[0].startswith(message)


def test_petastorm_beside_spark_4_is_told_in_full() -> None:
    told = [line.text for line in judge_versions({**MODERN, "petastorm": "0.13.1"}) if line.verdict == "FIX"]
    assert any(text.startswith("pyspark 4.3.0 beside petastorm 0.13.1: pip uninstall petastorm") for text in told)
    assert any(text.startswith("numpy 2.4.1 beside petastorm") for text in told)


def test_without_pyspark_there_is_a_note_and_nothing_to_fix() -> None:
    lines = list(judge_versions({name: version for name, version in MODERN.items() if name not in ("pyspark", "java")}))
    assert [line.verdict for line in lines if line.verdict != "ok"] == ["note"]


def test_every_rule_can_be_read_and_has_been_broken_here() -> None:
    """A rule that no case above breaks might as well not be there."""
    cases = [{**stack, **{n: v for n, v in changes.items() if v}} for stack, changes, _ in BROKEN]
    cases += [{**MODERN, "petastorm": "0.13.1"}, {name: "0.1" for name in CLASSIC if name != "petastorm"}]
    told = "\n".join(line.text for case in cases for line in judge_versions(case))
    for rule in RULES:
        assert (rule.remedy or f"pip install '{rule.requirement}'") in told, rule


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4), st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_versions_are_ordered_as_their_numbers(one: list[int], other: list[int]) -> None:
    texts = [".".join(map(str, parts)) for parts in (one, other)]
    padded = [parts + [0] * (4 - len(parts)) for parts in (one, other)]
    assert meets(texts[0], "<", texts[1]) == (padded[0] < padded[1])
    assert meets(texts[0], ">=", texts[1]) == (padded[0] >= padded[1])


# -- lines


def test_colours_are_for_terminals() -> None:
    assert ok("Java 17").format() == "ok    Java 17"
    assert fix("no Java", "install it").format() == "FIX   no Java: install it"
    assert fix("no Java", "install it").format(colours=True) == "\x1b[31mFIX \x1b[0m  no Java: install it"


@pytest.mark.parametrize(
    ("home", "text"),
    [
        ("/nowhere", "JAVA_HOME is /nowhere, but no Java runs there: install Java 17"),
        ("", "there is no Java on the path"),
    ],
)
def test_a_missing_java_is_told(home: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", home)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.find_java_version() is None
    line = machine.check_java(None, needed=True)
    assert line.verdict == "FIX"
    assert line.text.startswith(text)
    assert machine.check_java(None, needed=False).verdict == "note"


def test_without_java_no_cluster_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    told = [line.text for line in examine(master="local[2]") if line.verdict == "FIX"]
    assert any(text.startswith("local[2] is not looked at") for text in told)


# -- what a cluster says


def cluster(**changes: Any) -> Cluster:
    facts = {"master": "yarn", "slots": 4, "task_cpus": 1, "dynamic": False, "driver_host": "h", "bind_address": "h"}
    return Cluster(**{**facts, **changes})


def test_room() -> None:
    assert list(check_room(cluster())) == [Diagnosis("ok", "4 slots: room for that many workers")]
    assert [line.verdict for line in check_room(cluster(slots=0, dynamic=True))] == ["note"]
    (line,) = check_room(cluster(slots=0, task_cpus=4))
    assert line.verdict == "FIX"
    assert "as many cores as spark.task.cpus says (4;" in line.text


def test_remarks() -> None:
    def told(settings: dict[str, str] | None = None, **changes: Any) -> str:
        lines = list(check_settings(cluster(**changes), settings or {}))
        assert {line.verdict for line in lines} == {"note"}
        return "\n".join(line.text for line in lines)

    assert "spark.task.cpus is 1" in told()
    assert "spark.yarn.max.executor.failures is not set" in told()
    assert "max.executor.failures" not in told({"spark.yarn.max.executor.failures": "99"})
    assert "max.executor.failures" not in told(master="spark://h:7077")
    assert "dynamicAllocation" in told(dynamic=True)
    assert "dynamicAllocation" not in told()


@pytest.mark.parametrize(
    ("seconds", "kills", "wrong"),
    [("60", "true", True), ("60s", "True", True), ("60", "false", False), ("0", "true", False), (None, "true", False)],
)
def test_workers_that_spark_would_kill_for_their_silence_are_told(seconds: str | None, kills: str, wrong: bool) -> None:
    settings = {"spark.python.worker.killOnIdleTimeout": kills}
    if seconds is not None:
        settings["spark.python.worker.idleTimeoutSeconds"] = seconds
    told = list(check_idle_timeout(settings))
    assert [line.verdict for line in told] == ["FIX"] * wrong
    assert all(
        "killOnIdleTimeout to false" in line.text and f"idleTimeoutSeconds is {seconds})" in line.text for line in told
    )


def test_what_executors_find_is_told_once_a_host(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    bad = Finding("h1", ("torch",), "StoreForbidden: no permission")
    told = troubles([bad, bad, Finding("h2", (), None)], store)
    assert len(told) == 2
    assert told[0].startswith("executors on h1 lack torch: install them there")
    assert told[1].startswith(f"executors on h1 cannot write to the store {store.url}: StoreForbidden: no permission.")


def test_a_store_that_is_not_shared_is_told(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write("runs/probe-1", b"")
    assert unseen(store, ["runs/probe-1"]) == []
    assert store.list() == []
    assert "does not see what executors wrote" in unseen(store, ["runs/probe-1"])[0]


def test_other_versions_on_executors_are_told() -> None:
    own = {"Python": "3.11.7", "numpy": "1.26.4", "torch": "2.8.0"}
    same = Finding("h1", (), None, {"Python": "3.11.2", "numpy": "1.26.4"})
    other = Finding("h2", (), None, {"Python": "3.10.1", "numpy": "2.0.0"})
    assert list(compare_versions([same], own)) == []
    told = [line.text for line in compare_versions([same, other, other], own)]
    assert len(told) == 2
    assert told[0].startswith("Python is 3.10.1 on executors of h2, but 3.11.7 here: let executors use")
    assert told[1].startswith("numpy is 2.0.0 on executors of h2, but 1.26.4 here: install numpy==1.26.4 there")


# -- the command


def test_the_command_ends_with_1_if_there_is_something_to_fix(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["doctor", "--store", str(tmp_path / "store")]) == 0
    out = capsys.readouterr().out
    assert "ok    Python 3." in out
    assert "ok    Java " in out
    assert "can be written from here" in out
    assert "FIX" not in out
    assert "\x1b" not in out, "no colours where nobody sees them"
    assert main(["doctor", "--store", "/proc/nowhere"]) == 1
    assert "FIX   the store file:///proc/nowhere cannot be written" in capsys.readouterr().out


def test_a_setting_without_a_value_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--conf", "spark.task.cpus"]) == 2
    assert "must be NAME=VALUE" in capsys.readouterr().err


def doctor(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, as users call it: a session of other tests shall not be in its way."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(
        [sys.executable, "-m", "cerebro_spark.cli", "doctor", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.jvm
@pytest.mark.slow
def test_a_cluster_where_all_is_well(tmp_path: Path) -> None:
    done = doctor("--master", "local[2]", "--store", str(tmp_path / "store"))
    assert done.returncode == 0, done.stdout + done.stderr
    for text in (
        f"ok    Spark {importlib.metadata.version('pyspark')} on local[2]",
        "ok    2 slots",
        "note  spark.task.cpus is 1",
        "ok    barrier stages run",
        "ok    executors on ",
        f"ok    store {LocalStore(tmp_path / 'store').url} can be written from executors",
    ):
        assert text in done.stdout
    assert LocalStore(tmp_path / "store").list() == [], "it leaves nothing there"


@pytest.mark.jvm
@pytest.mark.slow
def test_a_cluster_where_all_is_not_well() -> None:
    """No room for a task, and a store that cannot be written."""
    done = doctor("--master", "local[2]", "--conf", "spark.task.cpus=2", "--store", "/proc/nowhere")
    assert done.returncode == 1
    assert "FIX   the store file:///proc/nowhere cannot be written" in done.stdout
    assert "ok    1 slots" in done.stdout
    assert "note  spark.task.cpus is 2" in done.stdout
    assert "note  the store was not tried from executors" in done.stdout
