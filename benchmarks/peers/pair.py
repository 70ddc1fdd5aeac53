"""Two processes of one program, started together and awaited; each leaves its losses and counts in a file.

The way of everybody who brings no system of its own along: the limit, data parallelism, model averaging.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.peers.contender import Report, asked, here_is_a_worker

_SECONDS = 1800.0
Half = Callable[[Any, int], dict[str, Any]]


def main(module: str, half: Half, report: Callable[[float, list[dict[str, Any]]], Report]) -> None:
    """Be one half if the command line says so; else start both and print the report on them.

    `half(asked, rank)` trains, and returns what `report(wall seconds, both)` needs to know of it.
    """
    given = asked()
    if given.how and given.how.startswith("half-"):
        rank = int(given.how.removeprefix("half-"))
        here_is_a_worker()
        (given.folder / f"half-{rank}.json").write_text(json.dumps(half(given, rank)))
        return
    wall = _both(module, given)
    said = [json.loads((given.folder / f"half-{rank}.json").read_text()) for rank in (0, 1)]
    print(report(wall, said).line())


def _both(module: str, given: Any) -> float:
    command = [sys.executable, "-m", module, "--work", given.work, "--framework", given.framework]
    started = time.perf_counter()
    halves = [
        subprocess.Popen([*command, "--folder", str(given.folder), "--how", f"half-{rank}"], stdout=sys.stderr)
        for rank in (0, 1)
    ]
    try:
        codes = [half.wait(timeout=_SECONDS) for half in halves]
    finally:
        for half in halves:
            half.kill()
    if any(codes):
        raise RuntimeError(f"the two processes of {module} ended with {codes}, but must end with 0: see what they said")
    return time.perf_counter() - started
