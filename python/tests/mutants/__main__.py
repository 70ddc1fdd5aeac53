"""Puts each deliberate bug into a copy of the package, and runs the tests of the scheduler and the log against it.

    PYTHONPATH=python/tests python -m mutants [--sample N] [--only WORDS]

A mutant that no test finds shows a hole in the tests. The exit code is the number of those.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mutants.listed import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[3]
# The quick ones first: most mutants are found by them.
_TESTS = (
    "scheduling",
    "dispatch",
    "test_placement.py",
    "test_placement_moves.py",
    "test_eventlog.py",
    "test_engine.py",
    "test_engine_fused.py",
    "test_engine_grouped.py",
    "test_engine_commands.py",
    "test_engine_faults.py",
    "test_engine_logs.py",
    "test_replay.py",
    "test_scheduler_stateful.py",
    "test_eventlog_races.py",
    "store/test_store_races.py",
)
_SECONDS = 1200
_FAST = "not jvm and not hadoop and not slow"


def choose(sample: int, only: str = "") -> list[Mutant]:
    """Return the mutants with these words in their names, or a sample of them that differs with the sources.

    Args:
        sample: How many; 0 for all.
        only: Words of the names.
    """
    wanted = [mutant for mutant in MUTANTS if only in mutant.name]
    if not sample:
        return wanted
    sources = "".join((ROOT / "cerebro_spark" / file).read_text() for file in sorted({each.file for each in wanted}))
    seed = hashlib.blake2b(sources.encode()).hexdigest()
    by_chance = sorted(wanted, key=lambda mutant: hashlib.blake2b((seed + mutant.name).encode()).digest())
    return by_chance[:sample]


def apply(mutant: Mutant, package: Path) -> None:
    """Put a mutant into a copy of the package.

    Args:
        mutant: The mutant.
        package: The folder of the copy.

    Raises:
        ValueError: The text that it replaces is not there exactly once.
    """
    file = package / mutant.file
    text = file.read_text()
    if text.count(mutant.sound) != 1:
        raise ValueError(f"{mutant.name!r}: {mutant.sound!r} is {text.count(mutant.sound)} times in {mutant.file}")
    file.write_text(text.replace(mutant.sound, mutant.broken))


def find(mutant: Mutant) -> str:
    """Return the first test that fails with a mutant; "" if none does."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        shutil.copytree(ROOT / "cerebro_spark", copy / "cerebro_spark")
        shutil.copytree(ROOT / "python", copy / "python", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        apply(mutant, copy / "cerebro_spark")
        tests = [f"python/tests/{name}" for name in _TESTS]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", _FAST, *tests]
        done = subprocess.run(
            command, cwd=copy, env=_environment(copy), capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode not in (0, 1, 2) or (done.returncode and not failed):
        raise RuntimeError(
            f"the tests could not be run with {mutant.name!r}:\n{done.stdout[-3000:]}{done.stderr[-1000:]}"
        )
    return failed[0].split(" - ")[0] if failed else ""


def _environment(copy: Path) -> dict[str, str]:
    """Return the environment of tests of a copy, which comes before an installed package."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return {**outer, "PYTHONPATH": str(copy), "CEREBRO_STATEFUL_EXAMPLES": "300", "CEREBRO_RACES": "300"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Try mutants, and say which test found which."""
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="how many, chosen by the sources; all by default")
    parser.add_argument("--only", default="", help="words of their names")
    asked = parser.parse_args(arguments)
    alive = 0
    for mutant in choose(asked.sample, asked.only):
        began = time.monotonic()
        found = find(mutant)
        alive += not found
        print(f"{time.monotonic() - began:6.1f} s  {mutant.name}: {found or 'NOT FOUND'}", flush=True)
    return alive


if __name__ == "__main__":
    sys.exit(main())
