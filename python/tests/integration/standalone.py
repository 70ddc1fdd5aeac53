"""A Spark standalone master and workers, each a process that can be killed.

They listen on loopback addresses, or on hosts of a test, and nowhere else. Executors take the address of their worker,
so that data nodes of the same addresses are their neighbours.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import pyspark
from hadoop.daemon import Daemon, Here, Place, free_ports

TESTS = Path(__file__).resolve().parents[1]
SPARK_HOME = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"
# What tests define is found by executors too.
_OURS = (TESTS.parents[1], TESTS, TESTS / "integration")
_LOOPBACK = Here("127.0.0.1")


class SparkDaemon(Daemon):
    """A master or a worker. What it starts dies with it, as if the machine had lost power."""

    def __init__(
        self,
        name: str,
        main: str,
        folder: Path,
        place: Place,
        arguments: Sequence[str],
        python_path: Sequence[Path] = _OURS,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(name, main, folder, place, {})
        self._added = environment or {}
        self._arguments = tuple(arguments)
        self._python_path = os.pathsep.join(map(str, python_path))

    def kill(self) -> None:
        """SIGKILL for the whole process group: a worker's executors would live on for a moment otherwise."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        super().kill()

    def _command(self, arguments: list[str]) -> list[str]:
        return [str(SPARK_HOME / "bin" / "spark-class"), self._main, *self._arguments, *arguments]

    def _environment(self) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ},
            "LANG": "C.UTF-8",
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_CONF_DIR": str(self.conf_dir),
            "SPARK_LOCAL_IP": self.host,
            "SPARK_LOCAL_DIRS": str(self.conf_dir.parent),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "PYTHONPATH": self._python_path,
            **self._added,
        }


class StandaloneCluster:
    """A master on 127.0.0.1 and one worker with one core on each of `hosts`; `python_path` is that of executors.

    With `master` the master is there instead, and `hosts` may be places, too. `environments` has more variables for the
    workers, and so for their executors, by address. `patient` lets executors fail as often as they may.

    >>> with StandaloneCluster(folder, ["127.0.0.2", "127.0.0.3"]) as cluster:      # doctest: +SKIP
    ...     session = spark_house.session(cluster.url, **cluster.settings)
    ...     cluster.workers["127.0.0.2"].kill()
    ...     cluster.wait_alive(1)
    """

    settings: ClassVar = {"spark__executor__memory": "512m", "spark__executor__cores": "1"}

    def __init__(
        self,
        folder: Path,
        hosts: Sequence[str | Place],
        python_path: Sequence[Path] = _OURS,
        master: Place = _LOOPBACK,
        environments: Mapping[str, Mapping[str, str]] | None = None,
        patient: bool = False,
    ) -> None:
        self._python_path = python_path
        self._environments = environments or {}
        self._taken: set[int] = set()
        self._place, address = master, master.address
        port, http = master.call(free_ports, address, 2, self._taken)
        self.url = f"spark://{address}:{port}"
        self._http = f"http://{address}:{http}/json/"
        ports = ["--port", str(port), "--webui-port", str(http)]
        options = {"SPARK_MASTER_OPTS": "-Dspark.deploy.maxExecutorRetries=-1"} if patient else {}
        self.master = SparkDaemon(
            "master",
            f"{_DEPLOY}.master.Master",
            folder,
            master,
            ["--host", address, *ports],
            environment=options,
        )
        places = [Here(host) if isinstance(host, str) else host for host in hosts]
        self.workers = {place.address: self._worker(folder, place) for place in places}

    def start(self, timeout: float = 300) -> Self:
        try:
            self.master.start()
            for worker in self.workers.values():
                worker.start()
            self.wait_alive(len(self.workers), timeout)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        for daemon in (*self.workers.values(), self.master):
            daemon.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_alive(self, count: int, timeout: float = 300) -> None:
        """Wait until the master counts exactly `count` living workers."""
        self.master.await_(
            lambda: self._place.call(self._status).get("aliveworkers") == count, f"count {count} workers", timeout
        )

    def _worker(self, folder: Path, place: Place) -> SparkDaemon:
        host, name = place.address, f"worker-{place.address}"
        port, http = place.call(free_ports, host, 2, self._taken)
        arguments = ["--host", host, "--port", str(port), "--webui-port", str(http), "--cores", "1", "--memory", "1g"]
        to = ["--work-dir", str(folder / f"{name}-work"), self.url]
        return SparkDaemon(
            name,
            f"{_DEPLOY}.worker.Worker",
            folder,
            place,
            [*arguments, *to],
            self._python_path,
            self._environments.get(host),
        )

    def _status(self) -> dict[str, Any]:
        """What the master says of itself, empty while its web server does not answer, or with its first page only."""
        try:
            with urllib.request.urlopen(self._http, timeout=2) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            error.close()
            return {}
        except (urllib.error.URLError, TimeoutError, ConnectionError, json.JSONDecodeError):
            return {}
