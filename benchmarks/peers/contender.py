"""How a contender is started, and what it tells. It imports nothing but the standard library: every environment has it.

A contender is a module that is run as a command by the Python of its environment, with the repository as its folder and
on its path:

    python -m benchmarks.peers.<module> --work reference --framework torch --folder DATA [--how WORD]

DATA holds the arrays as .npy files (`works.py` reads them). The last line of its standard output is a Report as JSON;
anything before that line is ignored. Whoever trains calls `here_is_a_worker()` once in its process: the process that
started the contender then follows its memory from outside.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

NOTES = "CEREBRO_BENCH_NOTES"
_REQUIRED = ("wall_s", "losses")


@dataclass(frozen=True)
class Contender:
    """Who takes part, and how it is started.

    `environment` names a file in requirements/, from which .bench/<environment> is made; None is the project's own.
    `how` is one word more for a module that has several ways. Ratios are against `limit`, another contender's name.
    `imports` are what it loads: imported once before it is timed, so that nobody's files come from a cold disk.

    >>> Contender("ray", "Ray Tune, 2 slots", "benchmarks.peers.ray_tune", environment="ray").arguments("cnn", "/data")
    ['-m', 'benchmarks.peers.ray_tune', '--work', 'cnn', '--framework', 'torch', '--folder', '/data']
    """

    name: str
    title: str
    module: str
    framework: str = "torch"
    environment: str | None = None
    how: str | None = None
    limit: str = "limit-torch"
    imports: tuple[str, ...] = ()
    timeout_s: float = 1800.0

    def arguments(self, work: str, folder: str | Path) -> list[str]:
        said = ["-m", self.module, "--work", work, "--framework", self.framework, "--folder", str(folder)]
        return said if self.how is None else [*said, "--how", self.how]


@dataclass(frozen=True)
class Report:
    """What a contender tells of itself, once it has done its work.

    `wall_s` is from the call on prepared data to the result, `start_s` what came before it (a session, a cluster).
    `losses` are the validation losses of the last epoch, by trial (`works.label`). `data_bytes` are the arrays that the
    worker with most of them held. `bytes_read` are read from files of data by all workers together, `bytes_moved` the
    checkpoints written and read, or the gradients or weights sent, by all together; `counted` says how each of the last
    three came about. None is "not known". `more` is for numbers of one contender only.

    >>> report = Report(wall_s=12.5, losses={"128/0.001": 0.31, "128/0.01": 0.29}, hops=16)
    >>> report.best_loss, Report.read("starting ...\\n" + report.line()) == report
    (0.29, True)
    """

    wall_s: float
    losses: dict[str, float]
    start_s: float = 0.0
    hops: int | None = None
    data_bytes: int | None = None
    bytes_read: int | None = None
    bytes_moved: int | None = None
    counted: dict[str, str] = field(default_factory=dict)
    more: dict[str, float] = field(default_factory=dict)

    @property
    def best_loss(self) -> float:
        return min(self.losses.values())

    @property
    def mean_loss(self) -> float:
        return sum(self.losses.values()) / len(self.losses)

    def line(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def read(output: str) -> Report:
        """The report in the last line of what a contender printed; ValueError where there is none."""
        last = (output.strip().splitlines() or [""])[-1]
        try:
            found: Any = json.loads(last)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ValueError(
                f"the last line is {last[:200]!r}, but must be a report: print(Report(...).line()) at the end"
            )
        known = {each.name for each in fields(Report)}
        if missing := [name for name in _REQUIRED if name not in found]:
            raise ValueError(f"the report has {sorted(found)}, but must have {missing} too")
        if unknown := sorted(set(found) - known):
            raise ValueError(f"the report has {unknown}, but may have {sorted(known)} only: put them into `more`")
        if not found["losses"]:
            raise ValueError("`losses` is empty, but must have the last validation loss of every trial")
        return Report(**found)


def here_is_a_worker() -> None:
    """Say that this process is a worker: its memory counts. Free to be said more than once, and where nobody asks."""
    if folder := os.environ.get(NOTES):
        (Path(folder) / str(os.getpid())).touch()


def asked() -> argparse.Namespace:
    """What the command line of a contender says: `work`, `framework`, `folder` and `how`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", required=True)
    parser.add_argument("--framework", choices=["torch", "keras"], default="torch")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--how")
    return parser.parse_args()
