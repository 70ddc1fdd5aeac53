"""Checks this machine: Python, Java, libraries, caches. It imports no library, which would take long."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cerebro_spark.doctor.diagnosis import Diagnosis, fix, note, ok
from cerebro_spark.doctor.versions import LIBRARIES

_SECONDS_FOR_JAVA = 30.0
_OLDEST_PYTHON = (3, 11)


def find_versions() -> dict[str, str]:
    """Return the versions of the libraries that matter, as far as they are installed.

    >>> "numpy" in find_versions()
    True
    """
    found: dict[str, str] = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def check_python() -> Diagnosis:
    """Check the version of this Python."""
    text = f"Python {platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] >= _OLDEST_PYTHON:
        return ok(text)
    return fix(text, "use Python 3.11 or later")


def check_caches() -> Iterator[Diagnosis]:
    """Check whether training data can be cached here, and how much of the cache is unused."""
    from cerebro_spark.data.loading.cache_root import CacheRoot, disk_folder, shared_memory_folder

    for folder in (shared_memory_folder(), disk_folder()):
        if not folder.exists():
            continue
        root = CacheRoot(folder)
        try:
            root.enter()
        except OSError as error:
            yield Diagnosis("FIX", str(error))
            continue
        unused = sum(each.bytes for each in root.unused())
        root.leave(tidy=not root.was_empty)
        if unused:
            yield note(
                f"the cache {folder} holds {unused / 1e6:,.1f} MB that are unused: `cerebro-spark clean` frees them"
            )
        else:
            yield ok(f"the cache {folder} is this user's alone")


def find_java() -> str | None:
    """Return the Java that Spark would start: that of JAVA_HOME, or the first on the path; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def find_java_version() -> str | None:
    """Return the version of that Java, "8" for one that calls itself 1.8; None if none runs."""
    command = find_java()
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=_SECONDS_FOR_JAVA, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(done.stderr)


def parse_java_version(said: str) -> str | None:
    """Return the version in the output of `java -version`, or None.

    >>> parse_java_version('openjdk version "17.0.15" 2025-04-15'), parse_java_version('java version "1.8.0_402"')
    ('17.0.15', '8.0')
    """
    found = re.search(r'version "(?:1\.)?(\d+(?:\.\d+)*)', said)
    return found[1] if found else None


def check_java(version: str | None, needed: bool) -> Diagnosis:
    """Check that there is a Java. Whether it fits Spark is checked by the rules of versions."""
    if version is not None:
        return ok(f"Java {version} ({find_java()})")
    home = os.environ.get("JAVA_HOME")
    missing = f"JAVA_HOME is {home}, but no Java runs there" if home else "there is no Java on the path"
    if needed:
        return fix(missing, "install Java 17 and let JAVA_HOME point to it")
    return note(f"{missing}: only Spark needs it")
