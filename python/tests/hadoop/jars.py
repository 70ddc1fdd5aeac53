"""Get the jars of the Hadoop version that pyspark speaks, with Maven and `pom.xml`. It starts no daemon."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

_POM = Path(__file__).with_name("pom.xml")
_ROOT = Path(__file__).resolve().parents[3]
_DEFAULT_VERSION = "3.3.4"
# Its full name, so that Maven need not ask which plugin has the prefix `dependency`.
_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
# A repository that does not answer once mostly does so the next time.
_TRIES = 3


class HadoopUnavailable(RuntimeError):
    """The daemons cannot be started on this machine; the message says what is missing."""


def missing() -> str | None:
    """What this machine lacks for a Hadoop cluster, in words, or None.

    Once the jars are there, Maven is no longer needed.
    """
    if shutil.which("java") is None:
        return "no Hadoop cluster: `java` is not on the PATH (install a JDK 11 or 17)"
    if not _is_resolved() and shutil.which("mvn") is None:
        return "no Hadoop cluster: `mvn` is not on the PATH and its jars were not fetched before (install Maven)"
    return None


def hadoop_version() -> str:
    """The version of the Hadoop client inside the installed pyspark, or the one that pom.xml names."""
    spec = importlib.util.find_spec("pyspark")
    for place in (spec.submodule_search_locations or []) if spec else []:
        for jar in Path(place, "jars").glob("hadoop-client-api-*.jar"):
            found = re.fullmatch(r"hadoop-client-api-(.+)\.jar", jar.name)
            if found:
                return found[1]
    return _DEFAULT_VERSION


def classpath() -> str:
    """The class path of all daemons, fetched with Maven the first time and kept in `.hadoop/` of the project."""
    folder = _jar_folder()
    folder.parent.mkdir(exist_ok=True)
    with open(folder.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _is_resolved():
            _fetch(folder)
    return f"{folder}/*"


def _jar_folder() -> Path:
    digest = hashlib.sha256(_POM.read_bytes()).hexdigest()[:8]
    cache = Path(os.environ.get("CEREBRO_HADOOP_JARS", _ROOT / ".hadoop"))
    return cache / f"{hadoop_version()}-{digest}"


def _is_resolved() -> bool:
    # The folder gets its name only once Maven has put everything in it.
    return _jar_folder().is_dir()


def _fetch(folder: Path) -> None:
    if reason := missing():
        raise HadoopUnavailable(reason)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = [
        *("mvn", "--batch-mode", "--quiet", "--update-snapshots", "--file", str(_POM)),
        *(f"-Dhadoop.version={hadoop_version()}", _GOAL, "-DincludeScope=runtime", f"-DoutputDirectory={partial}"),
    ]
    for _ in range(_TRIES):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if not done.returncode:
            break
    else:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise HadoopUnavailable(f"Maven could not fetch Hadoop {hadoop_version()} ({' '.join(command)}):\n{said}")
    os.rename(partial, folder)
