"""A soak: real training on hosts on which one fault follows another, for as long as told. `make soak` runs it.

    python -m hosts.soak [--hours 2] [--kills 1000] [--seed N] [--json FILE] [--folder FOLDER]

Each fault of `faults.py` strikes once, then they are drawn by chance; up to six strike in a row. After that the run
must be well again before the next one strikes. Runs are checked while they go on and trained again afterwards, by a
process of its own (`soak_auditor.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from cerebro_spark.data.loading.cache_root import CacheRoot
from hosts.cluster import Driver, Hosts
from hosts.faults import FAULTS, NO_WAY_OUT, Fault, Stage, pythons_of
from hosts.network import kill, why_not
from hosts.soak_report import Report, Struck, longest_wait
from hosts.soak_runs import HEARTBEAT, WORKERS, name_of

STORE = "/soak"
_MOST_SECONDS = 240.0
"""Seconds after which a run that is not well again has not survived."""
_UNITS_TO_BE_WELL = 3
_NOTICED = 0.5
"""Seconds after which the driver has noticed that a connection was closed."""
FAULTS_A_RUN = (25, 45)
_DRIVERS_LOST = 25
"""In the last third of a soak, one fault of so many is the loss of the driver and its host."""
_IN_A_ROW = {1: 0.1, 2: 0.15, 3: 0.2, 4: 0.2, 5: 0.2, 6: 0.15}
"""How often so many faults strike one right after the other, as parts of what happened or by chance."""
_LOOK_AT_MEMORY = 20.0


class NotSurvived(Exception):
    """A run did not survive a fault, or something came of it that must not."""


class Soak:
    """One soak on some hosts. It says each fault once the run has survived it.

    Args:
        hosts: The hosts; nothing else runs there.
        folder: A folder for what the driver is told.
        seconds: How long it lasts; it ends with the run that is under way then.
        kills: After how many faults it ends, if that is sooner.
        seed: The seed of all that is drawn by chance.
        faults_a_run: How many faults a run has, at least and at most.
        least_runs: How many runs it has at least, however long they last.
    """

    def __init__(
        self,
        hosts: Hosts,
        folder: Path,
        seconds: float,
        kills: int,
        seed: int,
        faults_a_run: tuple[int, int] = FAULTS_A_RUN,
        least_runs: int = 1,
    ) -> None:
        self._hosts = hosts
        self._folder = folder
        self._seconds, self._kills = seconds, kills
        self._faults_a_run, self._least_runs = faults_a_run, least_runs
        self._chance = random.Random(seed)
        self._new = self._chance.sample(list(FAULTS), len(FAULTS))
        self._began = time.monotonic()
        self._live: dict[str, str] = {}
        """The workers that are there, and the addresses of their hosts."""
        self._ends: list[float] = []
        """When units ended, since the last fault struck."""
        self._lost: list[str] = []
        """Why workers were lost, since the last fault struck."""
        self._had_nobody = False
        """Whether at some time since then all workers were lost: whoever comes next has to start first."""
        self._round = -1
        self._has_ended = False
        self._looked = 0.0
        self._driver: Driver
        self._auditor: Driver
        self.report = Report(seed)
        self._stage = Stage(
            hosts,
            hosts.network["driver"],
            HEARTBEAT,
            STORE,
            self._chance,
            busy=lambda: [hosts.host_of(address) for address in sorted(set(self._live.values()))],
            last=lambda seconds: self._watch(seconds),
            meanwhile=self._do,
        )

    def run(self) -> Report:
        """Run it to its end. Raises NotSurvived, with what was seen until then, if a run did not survive."""
        self._auditor = self._hosts.start("hosts.soak_auditor", "master", self._url)
        self._start_driver(0)
        try:
            is_last = False
            while not is_last:
                self._begin_run()
                enough = len(self.report.struck) + self._chance.randint(*self._faults_a_run)
                while len(self.report.struck) < enough and not self._is_over:
                    self._strike()
                # Looked at once: the driver begins another run unless it is told that this is the last one.
                is_last = self._is_over and self.report.runs >= self._least_runs
                self._end_run(is_last)
            self._finish()
        except BaseException as error:
            error.add_note(str(self.report))
            error.add_note("\n".join(["the driver told:", *self._driver.told[-40:]]))
            error.add_note("\n".join(["the auditor told:", *self._auditor.told[-40:]]))
            raise
        finally:
            self.report.seconds = time.monotonic() - self._began
            self._driver.kill()
            self._auditor.kill()
        return self.report

    # -- runs

    @property
    def _url(self) -> str:
        return self._hosts.hdfs.url + STORE

    @property
    def _is_over(self) -> bool:
        return time.monotonic() - self._began > self._seconds or len(self.report.struck) >= self._kills

    def _start_driver(self, number: int) -> None:
        master, host = self._hosts.spark.url, self._stage.driver
        self._live.clear()
        arguments = (self._url, str(self._folder), str(number), master, host.address)
        self._driver = self._hosts.start("hosts.soak_driver", host.name, *arguments)

    def _begin_run(self) -> None:
        before, self._has_ended = self._round, False
        self._wait(lambda: self._round > before and self._is_well, "the run begins")
        self.report.runs += 1

    def _end_run(self, is_last: bool) -> None:
        if is_last:
            (self._folder / "over").touch()
        (self._folder / name_of(self._round)).touch()
        self._wait(lambda: self._has_ended, "the run ends")

    def _finish(self) -> None:
        self._wait_for_driver()
        self._wait_for_auditor()
        self.report.left = self._find_left()
        if self.report.left:
            raise NotSurvived(f"left behind: {self.report.left}")

    def _wait_for_driver(self) -> None:
        """Wait until the driver has ended, and nobody is left of its workers."""
        end = time.monotonic() + _MOST_SECONDS
        while self._driver.told[-1:] != ["done"] or any(map(pythons_of, self._hosts.workers)):
            if time.monotonic() > end:
                raise NotSurvived(f"driver and workers have not ended within {_MOST_SECONDS:.0f} s")
            try:
                self._driver.next_line(0.2)
            except EOFError:
                if self._driver.told[-1:] != ["done"]:
                    raise NotSurvived("the driver has failed in the end") from None
                time.sleep(0.2)

    def _wait_for_auditor(self) -> None:
        assert self._auditor.process.stdin is not None
        self._auditor.process.stdin.close()
        end = time.monotonic() + 30 * 60
        while time.monotonic() < end:
            try:
                self._hear_auditor(1.0)
            except EOFError:
                break
        if self._auditor.told[-1:] != ["done"]:
            raise NotSurvived("the auditor found something wrong, or was not done in time")

    def _find_left(self) -> list[str]:
        """What is in the store beside the data, and on the disks of hosts, when all is over."""
        host = self._hosts.network["master"]
        command, environment = [sys.executable, "-m", "hosts.soak_left", self._url], self._hosts.environment(host)

        def look() -> str:
            done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120)
            return done.stdout

        swept, *left = host.call(look).splitlines()
        self.report.swept = int(swept)
        return [*left, *map(str, self._find_cached())]

    def _find_cached(self) -> list[Path]:
        """What is in the caches of hosts, once somebody has used them: what dead workers leave is for the next user."""
        found: list[Path] = []
        for folder in (host.disk.folder for host in self._hosts.workers if host.disk):
            for cache in (CacheRoot(folder / "cache"), CacheRoot(folder / "shared-memory")):
                self.report.caches_left += cache.path.exists()
                cache.enter()
                cache.leave()
                found += cache.path.glob("*")
        return found

    # -- faults

    def _strike(self) -> None:
        """Let a fault strike, or some in a row, and wait until the run is well again."""
        self._ends.clear()
        self._lost.clear()
        self._had_nobody = False
        (count,) = self._chance.choices(list(_IN_A_ROW), list(_IN_A_ROW.values()))
        struck = [self._strike_once() for _ in range(count)]
        over = time.monotonic()
        self._wait(lambda: self._is_well_since(over), " and ".join(f"{one.fault} ({one.whom})" for one in struck))
        begun = [self._began + one.at for one in struck]
        alone, waited = longest_wait(begun[:1], self._ends), longest_wait(begun, self._ends)
        has_way_out = all(one.has_way_out for one in struck) and not self._had_nobody
        struck[0].lost = list(self._lost)
        for one in struck:
            one.recovered = self._ends[-1] - (self._began + one.at)
            one.without_unit, one.waited, one.has_way_out = alone, waited, has_way_out
            print(f"{one.at / 60:7.1f} min  {one}", file=sys.stderr, flush=True)

    def _strike_once(self) -> Struck:
        began = time.monotonic()
        late = (began - self._began > self._seconds * 2 / 3) or len(self.report.struck) > self._kills * 2 / 3
        fault = self._lose_driver if late and self._chance.random() < 1 / _DRIVERS_LOST else self._draw()
        has_way_out = fault not in NO_WAY_OUT and fault != self._lose_driver
        one = Struck(fault.__name__.strip("_"), "", began - self._began, has_way_out=has_way_out)
        self.report.struck.append(one)
        one.whom = fault(self._stage)
        one.lasted = time.monotonic() - began
        return one

    def _draw(self) -> Fault:
        """Return a fault that was never drawn, while there is one; then any, some more often than others."""
        if self._new:
            return self._new.pop()
        (fault,) = self._chance.choices(list(FAULTS), list(FAULTS.values()))
        return fault

    def _lose_driver(self, stage: Stage) -> str:
        """The driver's host is killed, and its run goes on from another one."""
        lost = stage.driver
        kill(lost)
        self._driver.kill()
        self._hear_the_last()
        lost.heal()
        stage.driver = self._hosts.network["other" if lost.name == "driver" else "driver"]
        self._start_driver(self._round)
        self.report.resumed += 1
        return lost.name

    # -- what driver and auditor tell

    @property
    def _is_well(self) -> bool:
        return len(self._live) >= WORKERS

    def _is_well_since(self, over: float) -> bool:
        """Whether all workers are there, and some units have ended since a loss would have been noticed."""
        ended = [at for at in self._ends if at > over + _NOTICED]
        return self._is_well and len(ended) >= _UNITS_TO_BE_WELL

    def _do(self, act: Callable[[], object]) -> None:
        """Do something that takes its time, while what is told is read."""
        with ThreadPoolExecutor(1) as pool:
            doing = pool.submit(act)
            while not doing.done():
                self._watch(0.2, until=doing.done)
            doing.result()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _MOST_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise NotSurvived(f"not within {_MOST_SECONDS:.0f} s: {what}")
            self._watch(0.5, until=condition)

    def _watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> None:
        """Read what is told for so many seconds, or until a condition holds."""
        end = time.monotonic() + seconds
        while not until():
            try:
                line = self._driver.next_line(end - time.monotonic())
            except EOFError:
                if self._has_ended:
                    return
                raise NotSurvived("the driver has ended") from None
            self._look_at_memory()
            self._hear_auditor(0.0)
            if line is not None:
                self._note(line)
            elif time.monotonic() >= end:
                break

    def _hear_the_last(self) -> None:
        """Read what the driver has told before it was killed."""
        end = time.monotonic() + _MOST_SECONDS
        with contextlib.suppress(EOFError):
            while time.monotonic() < end:
                line = self._driver.next_line(1.0)
                if line is not None:
                    self._note(line)
            raise NotSurvived("the driver was killed, and somebody still tells something for it")

    def _note(self, line: str) -> None:
        match line.split():
            case ["unit", at, *_]:
                self.report.units += 1
                self._ends.append(float(at))
            case ["joined", _, worker, address]:
                self._live[worker] = address
            case ["lost", _, worker, *reason]:
                self._live.pop(worker, None)
                self._lost.append(" ".join(reason))
                self._had_nobody = self._had_nobody or not self._live
            case ["round", _, number]:
                self._live.clear()
                if int(number) > self._round:
                    self._round = int(number)
                    self._auditor.say(number)
            case ["ended", *_]:
                self._has_ended = True
            case ["stopped", *_]:
                self._live.clear()
                self.report.resumed += 1
                self.report.stopped.append(line)
        del self._driver.told[:-500]

    def _hear_auditor(self, seconds: float) -> None:
        try:
            line = self._auditor.next_line(seconds)
        except EOFError:
            if self._auditor.told[-1:] == ["done"]:
                raise
            raise NotSurvived("the auditor has ended") from None
        if line is not None and line.startswith("audited"):
            self.report.audited.append(line)

    def _look_at_memory(self) -> None:
        now = time.monotonic()
        if now - self._looked < _LOOK_AT_MEMORY:
            return
        self._looked = now
        workers = [_resident(number) for host in self._hosts.workers for number in pythons_of(host)]
        large = [size for size in workers if size > 150]  # those that have loaded PyTorch
        java = [_resident(number) for number in self._stage.driver.processes() if number != self._driver.process.pid]
        seen = {"driver": _resident(self._driver.process.pid), "java": sum(java)}
        mean = statistics.mean(large) if large else 0.0
        self.report.memory.append({"minute": (now - self._began) / 60, **seen, "worker": mean})


def _resident(process: int) -> float:
    """The memory that a process has, in MiB; 0 if it is gone."""
    try:
        status = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS:")), 0.0)


def soak(
    folder: Path,
    seconds: float,
    kills: int,
    seed: int,
    faults_a_run: tuple[int, int] = FAULTS_A_RUN,
    least_runs: int = 1,
) -> Report:
    """Make hosts, and soak runs on them.

    Args:
        folder: A folder of its own, for all files.
        seconds: How long it lasts once they stand.
        kills: After how many faults it ends, if that is sooner.
        seed: The seed of all that is drawn by chance.
        faults_a_run: How many faults a run has, at least and at most.
        least_runs: How many runs it has at least, however long they last.
    """
    with Hosts(folder / "cluster") as hosts:
        told = folder / "told"
        told.mkdir()
        return Soak(hosts, told, seconds, kills, seed, faults_a_run, least_runs).run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hosts.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=24.0, help="how long it lasts at most (default: a day)")
    parser.add_argument("--kills", type=int, default=1000, help="after how many faults it ends (default: 1000)")
    parser.add_argument(
        "--seed", type=int, default=None, help="what faults are drawn from (default: another each time)"
    )
    parser.add_argument("--json", type=Path, help="also write all that was seen to this file")
    parser.add_argument("--folder", type=Path, help="keep all files there (default: a folder that is deleted)")
    asked = parser.parse_args()
    if reason := why_not():
        sys.exit(f"no soak: {reason}")
    seed = int.from_bytes(os.urandom(4), "big") if asked.seed is None else asked.seed
    with contextlib.ExitStack() as stack:
        folder = asked.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="soak-")))
        report = soak(folder.resolve(), asked.hours * 3600, asked.kills, seed)
    print(report)
    if asked.json:
        asked.json.write_text(json.dumps(asdict(report), indent=1))


if __name__ == "__main__":
    main()
