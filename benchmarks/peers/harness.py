"""Runs contenders one after another, each in a process of its own. It believes what they report but their memory."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.contender import NOTES, Contender, Report
from benchmarks.peers.environments import ROOT, python_of
from benchmarks.peers.watch import Watch
from benchmarks.peers.works import Work, label

_LAST_WORDS = 3000
_WARM_SECONDS = 300.0


class ContenderFailed(RuntimeError):
    """A contender did not come to its end, or said nothing usable there."""


@dataclass(frozen=True)
class Measured:
    """One run of one contender: what it reported, and the peak memory of its workers, seen from outside."""

    report: Report
    peak_bytes: int | None
    workers: int

    def to_json(self) -> dict[str, Any]:
        said = asdict(self.report)
        return {**said, "best_loss": self.report.best_loss, "peak_bytes": self.peak_bytes, "workers": self.workers}


@dataclass(frozen=True)
class Row:
    """A contender's medians over all rounds, and its ratio to its limit, which is taken round by round."""

    contender: Contender
    rounds: tuple[Measured, ...]
    ratio: float | None

    def median(self, field: str) -> float | None:
        """The median of a number of the report; None where it is not known."""
        values = [getattr(each.report, field) for each in self.rounds]
        return None if None in values else statistics.median(values)

    @property
    def peak_bytes(self) -> float | None:
        peaks = [each.peak_bytes for each in self.rounds if each.peak_bytes is not None]
        return statistics.median(peaks) if peaks else None


def measure(contender: Contender, work: Work, folder: Path) -> Measured:
    """Run one contender on the arrays in `folder`."""
    python = str(python_of(contender.environment))
    command = [python, *contender.arguments(work.name, folder)]
    with tempfile.TemporaryDirectory() as notes, open(folder / f"{contender.name}.err", "w+b") as words:
        _warm(python, contender, words)
        with Watch(Path(notes)) as watch:
            process = subprocess.Popen(
                command, cwd=ROOT, env=surroundings(notes), stdout=subprocess.PIPE, stderr=words, start_new_session=True
            )
            output = _output_of(process, contender, words)
    try:
        report = Report.read(output)
    except ValueError as error:
        raise ContenderFailed(f"{contender.name}: {error}") from error
    if set(report.losses) != {label(params) for params in work.trials}:
        raise ContenderFailed(f"{contender.name} reports {sorted(report.losses)}, but the work has other trials")
    return Measured(report, watch.peak, len(watch.peaks))


def surroundings(notes: str) -> dict[str, str]:
    """The environment variables of every contender: one thread a process, no GPU, this repository on the path."""
    return {
        **os.environ,
        NOTES: notes,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def compare(work: Work, contenders: Sequence[Contender], folder: Path, rounds: int) -> tuple[list[Row], list[str]]:
    """All contenders in each round, and the failures, each in words. Who failed once takes no further part."""
    taken: dict[str, list[Measured]] = {each.name: [] for each in contenders}
    failures: dict[str, str] = {}
    for each in contenders:
        _ready(each, failures)
    for number in range(rounds):
        for each in contenders:
            if each.name in failures:
                continue
            began = time.perf_counter()
            try:
                taken[each.name].append(measure(each, work, folder))
            except ContenderFailed as error:
                failures[each.name] = str(error)
            took = time.perf_counter() - began
            print(f"{work.name}, round {number + 1}: {each.name}, {took:.1f} s in all", file=sys.stderr, flush=True)
    rows = [
        Row(each, tuple(taken[each.name]), ratio_of(taken[each.name], taken.get(each.limit, [])))
        for each in contenders
        if each.name not in failures
    ]
    return rows, [f"{name} failed: {why}" for name, why in failures.items()]


def ratio_of(taken: Sequence[Measured], limits: Sequence[Measured]) -> float | None:
    """The median over the rounds of wall time over that of the limit in the same round; None without a limit."""
    if not taken or len(taken) != len(limits):
        return None
    return statistics.median(a.report.wall_s / b.report.wall_s for a, b in zip(taken, limits, strict=True))


def _ready(contender: Contender, failures: dict[str, str]) -> None:
    """Make its environment now, so that no round is disturbed by it."""
    try:
        python_of(contender.environment)
    except (subprocess.SubprocessError, FileNotFoundError) as error:
        failures[contender.name] = f"its environment cannot be made: {error}"


def _warm(python: str, contender: Contender, words: Any) -> None:
    """Let the system have the files of its libraries in memory, as it has those of who ran just before."""
    text = "\n".join(f"import {name}" for name in contender.imports)
    # What is wrong with an import, or takes too long there, the contender itself will show.
    with contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run([python, "-c", text], stdout=words, stderr=words, timeout=_WARM_SECONDS, check=False)


def _output_of(process: subprocess.Popen[bytes], contender: Contender, words: Any) -> str:
    try:
        output, _ = process.communicate(timeout=contender.timeout_s)
    except subprocess.TimeoutExpired as error:
        raise ContenderFailed(f"{contender.name} was not done after {contender.timeout_s:g} s") from error
    finally:
        # What it left of its own group, if anything: the next contender has the machine for itself.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        words.seek(0)
        said = words.read().decode(errors="replace")[-_LAST_WORDS:]
        raise ContenderFailed(
            f"{contender.name} ended with {process.returncode}, but must end with 0. It said:\n{said}"
        )
    return output.decode(errors="replace")
