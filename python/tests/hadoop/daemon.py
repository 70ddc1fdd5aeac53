"""One Java daemon as a process of its own, that can be killed and started again. It knows nothing of HDFS or YARN."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar
from xml.sax.saxutils import escape

from hadoop import jars

_GUARD = Path(__file__).with_name("guard.py")
# Daemons of a test cluster live for a minute: compiling less and a serial collector start sooner on few cores.
_JAVA_OPTIONS = (
    *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Djava.net.preferIPv4Stack=true"),
    *("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.io=ALL-UNNAMED"),
)
_LOG_SETTINGS = """\
log4j.rootLogger=INFO,stderr
log4j.appender.stderr=org.apache.log4j.ConsoleAppender
log4j.appender.stderr.target=System.err
log4j.appender.stderr.layout=org.apache.log4j.PatternLayout
log4j.appender.stderr.layout.ConversionPattern=%d{HH:mm:ss,SSS} %p %c{2}: %m%n
"""


Found = TypeVar("Found")


class DaemonError(RuntimeError):
    """A daemon died or did not get ready; the message ends with the last lines of its log and names the file."""


class Place(Protocol):
    """Where a daemon runs: an address, and a way to call functions where it is."""

    @property
    def address(self) -> str:
        """The address that it listens on."""

    def call(self, function: Callable[..., Found], *arguments: Any) -> Found:
        """Call a function there: what it connects to, and the processes that it starts, are in the same network."""


@dataclass(frozen=True, slots=True)
class Here:
    """A loopback address of this machine."""

    address: str

    def call(self, function: Callable[..., Found], *arguments: Any) -> Found:
        return function(*arguments)


class Daemon:
    """A Java main class with its own configuration folder, log file and address.

    The process dies with the one that started it, even when that one is killed.
    """

    def __init__(self, name: str, main: str, folder: Path, place: Place, settings: dict[str, str]) -> None:
        self.name = name
        self.host = place.address
        self._place = place
        self.log = folder / f"{name}.log"
        self.conf_dir = folder / f"{name}-conf"
        self._main = main
        self._process: subprocess.Popen[bytes] | None = None
        write_settings(self.conf_dir, settings)

    def __repr__(self) -> str:
        return f"Daemon({self.name} on {self.host}, {'running' if self.running else 'down'}, log {self.log})"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def processes(self) -> list[int]:
        """The numbers of its process and of that which guards it, while it runs."""
        if not self.running:
            return []
        assert self._process is not None
        guard = self._process.pid
        children = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
        return [guard, *map(int, children)]

    def start(self) -> None:
        """Start the process; whether it is ready is for the caller to wait for."""
        if self.running:
            return
        self.kill()  # what is left of a process that others have killed
        with open(self.log, "ab") as log:
            self._process = self._spawn([], log)

    def run_once(self, *arguments: str, timeout: float = 300) -> None:
        """Run the main class with these arguments to its end, as for formatting a name node."""
        with open(self.log, "ab") as log:
            process = self._spawn(list(arguments), log)
        with _stdin(process):
            code = process.wait(timeout)
        if code != 0:
            raise DaemonError(f"{self.name} {' '.join(arguments)} failed with {code}; {self.last_words()}")

    def kill(self) -> None:
        """SIGKILL, as if the machine had lost power; returns once the process is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        with _stdin(process) as orders:
            if process.poll() is None:
                # An order, not just the end of the pipe: a forked child of the tests may hold a copy of it.
                with contextlib.suppress(BrokenPipeError):
                    orders.write(b"k")
            process.wait(300)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """For the time of the block the process does nothing, but its connections stay: a machine that hangs."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

    def await_(self, ready: Callable[[], bool], what: str, timeout: float) -> None:
        """Wait until `ready`, or raise DaemonError when the daemon ends or the time is over."""
        wait_for(ready, f"{self.name}: {what}", timeout, or_fail=self._check_alive, hint=self.last_words)

    def last_words(self) -> str:
        """The end of the log, with its path."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return f"the end of {self.log}:\n{text[-3000:]}"

    def _check_alive(self) -> None:
        if not self.running:
            raise DaemonError(f"{self.name} ended by itself; {self.last_words()}")

    def _spawn(self, arguments: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        command, environment = self._command(arguments), self._environment()
        return self._place.call(guarded, command, log, self.conf_dir.parent, environment)

    def _command(self, arguments: list[str]) -> list[str]:
        """What it runs. Its jars are fetched here if need be: its place may reach nobody who has them."""
        return ["java", *_JAVA_OPTIONS, "-cp", f"{self.conf_dir}:{jars.classpath()}", self._main, *arguments]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HADOOP_CONF_DIR": str(self.conf_dir),
            "HADOOP_HOME": str(self.conf_dir.parent),
            **{name: os.environ[name] for name in ("HOME", "JAVA_HOME") if name in os.environ},
        }


def guarded(command: list[str], log: IO[bytes], folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a command that dies with this process, in a session of its own; a byte to its standard input kills it."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(_GUARD), *command],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        bufsize=0,
        cwd=folder,
        env=environment,
        start_new_session=True,  # an interrupt at the terminal goes to the tests, which then stop the cluster
    )


def _stdin(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


def wait_for(
    ready: Callable[[], bool],
    what: str,
    timeout: float,
    or_fail: Callable[[], None] = lambda: None,
    hint: Callable[[], str] = lambda: "",
) -> None:
    """Ask `ready` until it says yes, at most `timeout` seconds.

    Polling, because a foreign daemon offers no event to wait on: its state is only to be had by asking over HTTP.
    """
    end = time.monotonic() + timeout
    while not ready():
        or_fail()
        if time.monotonic() > end:
            raise DaemonError(f"{what}: not within {timeout:g} s; {hint()}")
        time.sleep(0.05)


def free_ports(host: str, count: int, taken: set[int]) -> list[int]:
    """Ports that nobody listens on, below the range from which the kernel takes ports for outgoing connections.

    They stay free while a daemon is down, so that it can come back under its old address.
    """
    found: list[int] = []
    # Each process of a test run has a range of its own: daemons listen only seconds after their ports were chosen.
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 4
    candidates = random.SystemRandom().sample(range(20000 + 3000 * number, 23000 + 3000 * number), 2000)
    for port in candidates:
        if len(found) == count:
            break
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if port not in taken and probe.connect_ex((host, port)) != 0:
                found.append(port)
                taken.add(port)
    return found


def write_settings(conf_dir: Path, settings: dict[str, str]) -> None:
    """Write the same settings as core-site, hdfs-site and yarn-site: each reader takes what it knows."""
    conf_dir.mkdir(parents=True, exist_ok=True)
    rows = "".join(
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>\n"
        for name, value in sorted(settings.items())
    )
    for site in ("core-site.xml", "hdfs-site.xml", "yarn-site.xml"):
        (conf_dir / site).write_text(f'<?xml version="1.0"?>\n<configuration>\n{rows}</configuration>\n')
    (conf_dir / "log4j.properties").write_text(_LOG_SETTINGS)
    for page in ("hdfs", "datanode", "cluster", "node"):
        # A daemon wants the folder of its web pages on the class path; the jars have none, and JMX needs none.
        (conf_dir / "webapps" / page).mkdir(parents=True, exist_ok=True)
