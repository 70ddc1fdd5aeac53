"""What is installed on this machine: Python, Java, libraries. It imports none of them, which would take its time."""

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

from cerebro_spark.doctor.lines import Line, fix, note, ok
from cerebro_spark.doctor.versions import LIBRARIES

_SECONDS_FOR_JAVA = 30.0
_OLDEST_PYTHON = (3, 11)


def installed() -> dict[str, str]:
    """The versions of the libraries that matter, as far as they are there.

    >>> "numpy" in installed()
    True
    """
    found: dict[str, str] = {}
    for name in (*LIBRARIES, "tqdm"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def python_line() -> Line:
    """Whether this Python will do."""
    text = f"Python {platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] >= _OLDEST_PYTHON:
        return ok(text)
    return fix(text, "use Python 3.11 or later")


def cache_lines() -> Iterator[Line]:
    """Whether training data can be cached here, and what of it nobody uses."""
    from cerebro_spark.data.loading.cache_root import CacheRoot, disk_folder, shared_memory_folder

    for folder in (shared_memory_folder(), disk_folder()):
        if not folder.exists():
            continue
        root = CacheRoot(folder)
        try:
            root.enter()
        except OSError as error:
            yield Line("FIX", str(error))
            continue
        unused = sum(each.bytes for each in root.unused())
        root.leave(tidy=not root.was_empty)
        if unused:
            yield note(
                f"the cache {folder} holds {unused / 1e6:,.1f} MB that nobody uses: `cerebro-spark clean` frees them"
            )
        else:
            yield ok(f"the cache {folder} is this user's alone")


def java_command() -> str | None:
    """The Java that Spark would start: that of JAVA_HOME, or the first on the path."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def java_version() -> str | None:
    """The version of that Java, "8" for what calls itself 1.8; None if there is none that runs."""
    command = java_command()
    if command is None:
        return None
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=_SECONDS_FOR_JAVA, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return java_version_in(done.stderr)


def java_version_in(said: str) -> str | None:
    """The version in what `java -version` says.

    >>> java_version_in('openjdk version "17.0.15" 2025-04-15'), java_version_in('java version "1.8.0_402"')
    ('17.0.15', '8.0')
    """
    found = re.search(r'version "(?:1\.)?(\d+(?:\.\d+)*)', said)
    return found[1] if found else None


def java_line(version: str | None, needed: bool) -> Line:
    """Whether there is a Java; whether it goes with Spark, the rules of versions say."""
    if version is not None:
        return ok(f"Java {version} ({java_command()})")
    home = os.environ.get("JAVA_HOME")
    missing = f"JAVA_HOME is {home}, but no Java runs there" if home else "there is no Java on the path"
    if needed:
        return fix(missing, "install Java 17 and let JAVA_HOME point to it")
    return note(f"{missing}: only Spark needs it")
