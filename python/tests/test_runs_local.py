"""Runs on real workers that are interrupted, killed, raced or lose their store come to the weights of a plain loop."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from kept_workers import KeptWorkers
from logs import logged as logged_words
from observing import each_event
from plain_loop import check_run, judged, logged
from small_driver import CONFIGURATIONS, EPOCHS, SEED, Stop, small_recipe, stopping_after
from small_search import small_dataset, torch_model_fn

from cerebro_spark import runs
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.engine import Observer
from cerebro_spark.errors import BackendError, StoreUnavailable
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    Event,
    UnitFailed,
    UnitFinished,
    WorkerJoined,
)
from cerebro_spark.recipe import Recipe
from cerebro_spark.search import FixedSearch
from cerebro_spark.store import paths
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.types import Objective

TESTS = Path(__file__).parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def children(pid: int) -> list[int]:
    """The worker processes that a driver has started."""
    found = []
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"cerebro_spark.backend.worker" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


@contextlib.contextmanager
def deaths_of(pids: Sequence[int]) -> Iterator[Callable[[float], bool]]:
    """Hands out a function that waits until all these processes, of whatever parent, have ended."""
    handles = [os.pidfd_open(pid) for pid in pids]

    def all_end(seconds: float) -> bool:
        return all(select.select([handle], [], [], seconds)[0] for handle in handles)

    yield all_end
    for handle in handles:
        os.close(handle)


@contextlib.contextmanager
def driver(folder: Path, run: str, units: int) -> Iterator[subprocess.Popen[str]]:
    """A driver in a process, and a process group, of its own, which waits after so many units."""
    process = subprocess.Popen(
        [sys.executable, str(TESTS / "small_driver.py"), str(folder), run, str(units)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=300)


def see_units(process: subprocess.Popen[str], count: int) -> None:
    assert process.stdout is not None
    for _ in range(count):
        assert process.stdout.readline(), process.stderr and process.stderr.read()


@pytest.mark.parametrize("how", ["ctrl-c", "killed"])
def test_a_driver_that_is_stopped_takes_its_workers_along_and_the_run_is_resumed(how: str, tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    with driver(tmp_path, "r1", 20) as process:
        see_units(process, 20)
        workers = children(process.pid)
        assert len(workers) == 2
        with deaths_of(workers) as all_end:
            if how == "ctrl-c":
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everybody in the group gets it
                _, said = process.communicate(timeout=300)
                assert "KeyboardInterrupt" in said
                assert f'run r1 can be resumed: cs.resume("{dataset.store.url}", "r1", backend=...)' in said
            else:
                process.kill()
                process.wait(300)
            assert all_end(300)
    before = logged(dataset.store, "r1")
    assert not judged(before)[0].finished
    assert not [e for e in before if type(e).__name__ == "WorkerLost"], "an interrupt is no worker's fault"
    trained = {e.unit for e in before if isinstance(e, UnitFinished)}
    runs.resume(dataset.store, "r1", LocalBackend(num_workers=1, threads=2), take_over=how == "killed")
    events = check_run(dataset, "r1", len(CONFIGURATIONS), EPOCHS, SEED)
    assert events[: len(before)] == before
    again = [e.unit for e in events[len(before) :] if isinstance(e, UnitFinished)]
    assert trained.isdisjoint(again), "no finished unit is trained again"
    best = [trial.best for trial in judged(events)[0].state.trials.values()]
    found = dataset.store.list(paths.checkpoint_folder("r1"))
    assert found == sorted(paths.checkpoint("r1", c) for c in best if c), "and nothing is left of either driver"
    assert {e.threads for e in events if isinstance(e, WorkerJoined)} == {1}, "the logged thread count is kept"


def test_a_run_that_is_taken_over_goes_on_here_and_ends_there(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    with driver(tmp_path, "r1", 8) as process:
        see_units(process, 8)
        runs.resume(dataset.store, "r1", kept_backend(2), take_over=True)
        _, said = process.communicate("go on\n", timeout=600)
        assert process.returncode == 1
        assert "EventLogError: another driver goes on with run r1" in said
        assert f"process {os.getpid()} on" in said
    events = check_run(dataset, "r1", len(CONFIGURATIONS), EPOCHS, SEED)
    best = [trial.best for trial in judged(events)[0].state.trials.values()]
    needed = {paths.checkpoint("r1", checkpoint) for checkpoint in best if checkpoint}
    assert needed <= set(dataset.store.list(paths.checkpoint_folder("r1"))), "who was taken over deletes none of them"
    assert dataset.store.list(paths.beats("r1")) == []


# -- a store that fails


class Outage:
    """Makes a folder unusable while others work in it, as a network mount that hangs up: every call on it fails."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._away = folder, folder.with_name(folder.name + ".away")

    def begin(self) -> None:
        self._away.symlink_to(self._folder)
        # A loop: whatever is asked of it is an error, and none of the final ones.
        if not exchange(self._away, self._folder):
            self._away.unlink()
            self._folder.rename(self._away)
            self._folder.symlink_to(self._folder)

    def end(self) -> None:
        # In one step: between two, somebody could make an empty folder.
        back = self._folder.with_name(self._folder.name + ".back")
        back.symlink_to(self._away)
        back.replace(self._folder)

    @contextlib.contextmanager
    def ending_when_noticed(self) -> Iterator[None]:
        """Within the block, it ends when a store of this process has said for the first time that a call failed."""
        with logged_words("cerebro_spark.store.retrying", "trying again in") as noticed:
            waiting = threading.Thread(target=self._end_after, args=(noticed,), daemon=True)
            waiting.start()
            yield
        waiting.join(300)

    def _end_after(self, noticed: threading.Event) -> None:
        if noticed.wait(300):
            self.end()


def exchange(one: Path, other: Path) -> bool:
    """Let two names change places in one step, so that there is no moment without them; False where that cannot be."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    folder, flag = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux
    return rename is not None and bool(rename(folder, bytes(one), folder, bytes(other), flag) == 0)


def outage_after(units: int, outage: Outage) -> Observer:
    count = 0

    @each_event
    def observe(event: Event) -> None:
        nonlocal count
        count += isinstance(event, UnitFinished)
        if isinstance(event, UnitFinished) and count == units:
            outage.begin()

    return observe


def test_a_store_that_fails_for_a_while_only_delays_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kept_backend: KeptWorkers
) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    outage = Outage(tmp_path / "store")
    recipe = small_recipe(dataset, 3)
    with outage.ending_when_noticed():
        runs.execute(recipe, dataset.store, kept_backend(2), "r1", [outage_after(9, outage)], store_patience=300.0)
    assert "trying again in" in caplog.text
    check_run(dataset, "r1", len(CONFIGURATIONS), 3, SEED)


def test_a_store_that_fails_for_ever_ends_the_run_which_is_resumed_when_it_is_back(
    tmp_path: Path, kept_backend: KeptWorkers
) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    outage = Outage(tmp_path / "store")
    observers = [outage_after(9, outage)]
    before = children(os.getpid())
    with pytest.raises(StoreUnavailable, match=r"writing 'runs/r1/log/.*failed \d+ times.*can be resumed") as caught:
        runs.execute(
            small_recipe(dataset, 3), dataset.store, LocalBackend(2, threads=1), "r1", observers, store_patience=2.0
        )
    assert caught.value.__notes__ == [f'run r1 can be resumed: cs.resume("{dataset.store.url}", "r1", backend=...)']
    assert set(children(os.getpid())) <= set(before)
    outage.end()
    runs.resume(dataset.store, "r1", kept_backend(2), take_over=True)
    check_run(dataset, "r1", len(CONFIGURATIONS), 3, SEED)


def test_checkpoints_that_cannot_be_written_end_the_run_not_its_trials(
    tmp_path: Path, kept_backend: KeptWorkers
) -> None:
    """The log can still be written: what fails is not the trials' fault, and none of them is to be given up."""
    dataset = small_dataset(tmp_path, partitions=3)
    folder = tmp_path / "store" / paths.checkpoint_folder("r1")
    outage = Outage(folder)
    observers = [outage_after(9, outage)]
    with pytest.raises(
        BackendError, match=r"run r1 cannot go on: the store failed worker w\d.*StoreUnavailable.*resume"
    ) as caught:
        runs.execute(small_recipe(dataset, 3), dataset.store, kept_backend(2), "r1", observers, store_patience=2.0)
    assert "cs.resume" in caught.value.__notes__[0]
    scheduler, _ = judged(logged(dataset.store, "r1"))
    assert not [trial for trial in scheduler.state.trials.values() if trial.status == "failed"]
    failures = [e for e in EventLog(dataset.store, "r1").read() if isinstance(e, UnitFailed)]
    assert "store" in {failure.blame for failure in failures}
    outage.end()
    runs.resume(dataset.store, "r1", kept_backend(2))
    check_run(dataset, "r1", len(CONFIGURATIONS), 3, SEED)


def test_a_replay_repeats_a_run_and_can_itself_be_resumed(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    runs.execute(small_recipe(dataset, 2), dataset.store, kept_backend(2), "r1")
    dataset.store.delete(paths.checkpoint_folder("r1"))
    with pytest.raises(Stop):
        runs.replay(dataset.store, "r1", LocalBackend(1, threads=2), "r2", [stopping_after(9, Stop())])
    runs.resume(dataset.store, "r2", kept_backend(3))
    check_run(dataset, "r2", len(CONFIGURATIONS), 2, SEED)
    digests = [
        {
            e.unit: e.checkpoint.digest
            for order in judged(logged(dataset.store, run))[1].values()
            for e in order
            if e.checkpoint
        }
        for run in ("r1", "r2")
    ]
    assert digests[0] == digests[1]


def test_a_backend_and_a_recipe_serve_twice_and_give_the_same(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path, partitions=2)
    backend = kept_backend(1)
    recipe = Recipe(
        FixedSearch(CONFIGURATIONS[:1], 1),
        Objective("val_loss", "min"),
        dataset,
        TrainerSpec(Hooks(torch_model_fn), seed=SEED),
    )
    for run in ("r1", "r2"):
        runs.execute(recipe, dataset.store, backend, run)
        check_run(dataset, run, 1, 1, SEED)
