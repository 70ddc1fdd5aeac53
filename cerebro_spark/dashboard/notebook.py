"""A dashboard beside a notebook or a script: a child process, so that the run's own process does nothing for it."""

from __future__ import annotations

import atexit
import json
import os
import pickle
import queue
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from typing import IO

from cerebro_spark.dashboard.security import Access
from cerebro_spark.dashboard.serving import MISSING, link_of
from cerebro_spark.errors import BackendError, MissingDependency
from cerebro_spark.store.base import Store

_SECONDS_TO_START = 60.0
_SECONDS_TO_END = 5.0
_HEIGHT = 720
_running: dict[str, Dashboard] = {}
_lock = threading.Lock()


@dataclass(frozen=True)
class Dashboard:
    """A dashboard that runs beside this process, and ends with it.

    Attributes:
        link: The address for the browser. It has the token: whoever has it can read and command the store's runs.
        process: The process that serves it.
    """

    link: str
    process: subprocess.Popen[bytes]

    @property
    def alive(self) -> bool:
        """Whether it still serves."""
        return self.process.poll() is None

    def close(self) -> None:
        """End it. It ends with this process in any case."""
        _end(self.process)

    def __repr__(self) -> str:
        return f"Dashboard at {self.link}"


def open_dashboard(store: Store, run: str = "", *, read_only: bool = False, show: bool = True) -> Dashboard:
    """Start a dashboard for a store, or find the one that this process has started for it.

    Args:
        store: The store whose runs are shown.
        run: The run to open it with. Defaults to "": the list of all runs.
        read_only: Whether it can send no commands. Defaults to False.
        show: Whether to print the link, and to show the page below it in a notebook. Defaults to True.

    Returns:
        The dashboard.

    Raises:
        MissingDependency: The extra `dashboard` is not installed.
        BackendError: It did not start; the message says why.
    """
    for package in ("starlette", "uvicorn", "plotly"):
        if find_spec(package) is None:
            raise MissingDependency(f"{MISSING} ({package} is missing)")
    key = f"{store.url} {read_only}"
    with _lock:
        found = _running.get(key)
        if found is None or not found.alive:
            found = _running[key] = _start(store, read_only)
    about = Dashboard(f"{found.link}&run={run}" if run else found.link, found.process)
    if show:
        _show(about)
    return about


def _start(store: Store, read_only: bool) -> Dashboard:
    # "localhost": pages of a notebook server under that name may show it inside, with its cookie.
    access = Access(read_only=read_only)
    process = subprocess.Popen(
        [sys.executable, "-m", "cerebro_spark.dashboard"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        start_new_session=True,  # Ctrl-C is for the run
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asked = {"store": pickle.dumps(store).hex(), "access": {**asdict(access), "token": access.token}}
    try:
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        port = _read_port(process.stdout)
    except (OSError, ValueError, LookupError, queue.Empty) as error:
        _end(process)
        raise BackendError(
            f"the dashboard did not start ({type(error).__name__}): see what it printed above"
        ) from error
    atexit.register(partial(_end, process))
    return Dashboard(link_of(access, port).replace("127.0.0.1", "localhost", 1), process)


def _read_port(output: IO[bytes]) -> int:
    """The port that the child says, within a time limit."""
    lines: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=lambda: lines.put(output.readline()), name="dashboard", daemon=True).start()
    return int(json.loads(lines.get(timeout=_SECONDS_TO_START))["port"])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the child's input, which ends it; if it does not end, kill it."""
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()
    try:
        process.wait(_SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_SECONDS_TO_END)
    if process.stdout is not None:
        process.stdout.close()


def _show(about: Dashboard) -> None:
    print(f"Dashboard: {about.link}", flush=True)
    shell = _notebook_shell()
    if shell is not None:
        from IPython.display import IFrame, display

        display(IFrame(about.link, width="100%", height=_HEIGHT))  # type: ignore[no-untyped-call]


def _notebook_shell() -> object | None:
    """The kernel of a notebook that this code runs in, if it does."""
    if "IPython" not in sys.modules:
        return None
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    return shell if shell is not None and type(shell).__name__ == "ZMQInteractiveShell" else None
