"""A user's folder on the machine from which jobs are sent. Nothing there points back to this checkout.

The environment that is shipped is a real virtual environment with this package installed from a wheel. Its other
libraries would be gigabytes: they stay on this machine, and one file in the environment says where.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pages
import pyspark
from sparks import QUICK_JVM

SPARK_HOME = Path(pyspark.__file__).parent
HAS_MESOS = any(SPARK_HOME.glob("jars/spark-mesos_*.jar"))
_LEASH = Path(__file__).with_name("leash.py")
_JVMS = "".join(f"spark.{part}.extraJavaOptions {QUICK_JVM}\n" for part in ("driver", "executor", "yarn.am"))
_SOURCES = ("cerebro_spark", "setup.cfg", "setup.py", "pyproject.toml", "README.md", "LICENSE")


@dataclass(frozen=True)
class Said:
    """What a command wrote, once it ended well."""

    out: str
    err: str

    def line(self, beginning: str) -> str:
        """The rest of the only line of its output that begins so."""
        (found,) = [line for line in self.out.splitlines() if line.startswith(beginning + " ")]
        return found.removeprefix(beginning + " ")


class Gateway:
    """Runs commands of the pages, each in a shell of its own, as a user with Spark on the path would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        shutil.copytree(pages.ROOT / "examples", folder / "examples")
        (folder / "spark-conf").mkdir()

    def run(self, command: str, timeout: float = 900, **environment: object) -> Said:
        """Run a block to its end; AssertionError with its last words if it fails or takes too long."""
        code, said = self._run(command, timeout, environment)
        assert code == 0, f"code {code} from:\n{command}\n{said.out[-2000:]}\n{said.err[-6000:]}"
        return said

    def fail(self, command: str, timeout: float = 900, **environment: object) -> Said:
        """The same for one that must fail."""
        code, said = self._run(command, timeout, environment)
        assert code != 0, f"it should have failed:\n{command}\n{said.out[-2000:]}"
        return said

    def _run(self, command: str, timeout: float, environment: Mapping[str, object]) -> tuple[int, Said]:
        with subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LEASH), "bash", "-euo", "pipefail", "-c", command],
            cwd=self.folder,
            env={**_environment(self.folder), **{name: str(value) for name, value in environment.items()}},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdin is not None
            leash, process.stdin = process.stdin, None  # `communicate` would let go of it at once
            with leash:
                try:
                    out, err = process.communicate(timeout=timeout)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    out, err = process.communicate()
                    late = f"not within {timeout:g} s:\n{command}\n{out[-2000:]}\n{err[-6000:]}"
                    raise AssertionError(late) from None
        return process.returncode, Said(out, err)

    @property
    def path(self) -> str:
        """Where its shells look for commands."""
        return _environment(self.folder)["PATH"]

    @property
    def python(self) -> str:
        """The interpreter of the tests, which has everything."""
        return sys.executable

    def configure(self, properties: str) -> None:
        """What the cluster's own spark-defaults.conf says, and that its JVMs are to start soon."""
        (self.folder / "spark-conf" / "spark-defaults.conf").write_text(f"{properties}\n{_JVMS}")

    def make_environment(self) -> None:
        """The archive for executors, made by the commands of the page."""
        _build_wheel(self.folder)
        make, pack = pages.blocks("index", "bash", under="The Python environment")
        # pip takes our package from its wheel and nothing from the network.
        self.run(make, PIP_NO_INDEX=1, PIP_NO_DEPS=1, PIP_FIND_LINKS=self.folder / "wheels")
        borrow_libraries(self.folder / "environment")
        self.run(pack)


def borrow_libraries(environment: Path) -> None:
    """Let a virtual environment find what the tests' own has installed; its editable packages are not found."""
    (site,) = environment.glob("lib/python*/site-packages")
    heavy = sysconfig.get_paths()["purelib"]
    (site / "sitecustomize.py").write_text(f"import sys\n\nsys.path.append({heavy!r})\n")


def _build_wheel(folder: Path) -> None:
    sources = folder / "sources"
    sources.mkdir()
    for name in _SOURCES:
        place = pages.ROOT / name
        if place.is_dir():
            shutil.copytree(place, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(place, sources)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", str(sources)],
        cwd=_made(folder / "wheels"),
        check=True,
        timeout=600,
    )


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _environment(folder: Path) -> dict[str, str]:
    tools = [str(Path(sys.executable).parent), str(SPARK_HOME / "bin")]
    return {
        **{name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ},
        "PATH": os.pathsep.join([*tools, os.environ["PATH"]]),
        "LANG": "C.UTF-8",
        "USER": "somebody",
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_CONF_DIR": str(folder / "spark-conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
