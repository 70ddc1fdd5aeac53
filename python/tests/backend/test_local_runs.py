"""Whole runs on processes of this machine: the same bits as a plain loop, whoever dies on the way."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from kept_workers import KeptWorkers
from logs import logged
from plain_loop import check_run
from small_search import keras_model_fn, small_dataset, torch_model_fn
from wire_credentials import RUN

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.worker.session import OutputRelay, WorkerSpec, pack_job, serve
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.engine import Engine
from cerebro_spark.errors import BackendError, PreflightFailed
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import (
    Event,
    LoadPartition,
    PartitionLoaded,
    Settings,
    UnitFinished,
    WorkerJoined,
    WorkerLost,
    WorkerRetiring,
)
from cerebro_spark.search import Done, FixedSearch, Wait
from cerebro_spark.store import paths
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.checkpoints.reading import open_checkpoint
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.turns import Turn
from cerebro_spark.types import Objective, Report, Work

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SEED = 11
CONFIGURATIONS = [{"lr": lr, "batch_size": size} for lr in (0.01, 0.03) for size in (16, 40)]


class Recording(FixedSearch):
    def __init__(self, configurations: Sequence[Mapping[str, Any]], epochs: int) -> None:
        super().__init__(configurations, epochs)
        self.reports: list[Report] = []

    def tell(self, report: Report) -> None:
        self.reports.append(report)


def run(dataset: Dataset, model_fn: Any, search: FixedSearch, backend: LocalBackend, observers: Any = ()) -> Engine:
    backend.bind(Job("r1", dataset.store, dataset, TrainerSpec(Hooks(model_fn), seed=SEED)))
    settings = Settings(
        dataset.partitions, backend.num_workers, queue_ahead=1, objective=Objective("val_loss", "min"), max_kills=9
    )
    log = EventLog(dataset.store, "r1")
    engine = Engine(search, settings, backend, log, run="r1", observers=observers)
    engine.run()
    return engine


def test_weights_equal_a_plain_loop_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    search = Recording(CONFIGURATIONS, 2)
    run(dataset, torch_model_fn, search, LocalBackend(num_workers=2, threads=1))
    assert len(search.reports) == 8
    check_run(dataset, "r1", trials=4, epochs=2, seed=SEED)
    kept = dataset.store.list(paths.checkpoint_folder("r1"))
    assert len(kept) == 4, "the best epoch of each trial stays, everything else is gone"
    assert list(temporary.glob("tmp*")) == [], "nor do workers leave folders of PyTorch"


def test_keras_metrics_are_exact_over_partitions(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    search = Recording([{"lr": 0.02, "batch_size": 32}], 2)
    run(dataset, keras_model_fn, search, LocalBackend(num_workers=2, threads=1))
    assert [report.epoch for report in search.reports] == [1, 2]
    assert all(
        set(r.metrics) == {f"{p}{m}" for p in ("", "val_") for m in ("loss", "accuracy", "auc")} for r in search.reports
    )
    assert 0.5 < search.reports[-1].metrics["val_auc"] <= 1.0
    assert 0.0 <= search.reports[-1].metrics["val_accuracy"] <= 1.0


class Killer:
    """Kills, or stops, a worker in the middle of the run."""

    def __init__(self, backend: LocalBackend, how: signal.Signals, every: int, most: int) -> None:
        self._backend, self._how, self._every, self._most = backend, how, every, most
        self._units = 0
        self.struck: list[str] = []
        self.lost: list[str] = []
        self.joined: list[str] = []

    def __call__(self, turn: Turn) -> None:
        for event in turn.events:
            self._see(event)

    def _see(self, event: Event) -> None:
        if isinstance(event, WorkerJoined):
            self.joined.append(event.worker)
        elif isinstance(event, WorkerLost):
            self.lost.append(event.worker)
        elif isinstance(event, UnitFinished):
            self._units += 1
            if self._units % self._every == 0 and len(self.struck) < self._most:
                name, handle = next(
                    item
                    for item in self._backend._run.pool.handles.items()
                    if item[1].pid and item[0] not in self.struck
                )
                assert handle.pid
                os.kill(handle.pid, self._how)
                self.struck.append(name)


@pytest.mark.parametrize(
    ("how", "most", "heartbeat"), [(signal.SIGKILL, 2, 300.0), (signal.SIGSTOP, 1, 30.0)], ids=["dead", "stalled"]
)
def test_lost_workers_are_replaced_and_nothing_is_lost(
    tmp_path: Path, how: signal.Signals, most: int, heartbeat: float
) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    # Where somebody stalls, the test waits as long; nobody else may seem to, on however busy a machine.
    backend = LocalBackend(num_workers=2, threads=1, heartbeat=heartbeat)
    killer = Killer(backend, how, every=9, most=most)
    search = Recording(CONFIGURATIONS, 3)
    engine = run(dataset, torch_model_fn, search, backend, [killer])
    assert len(killer.struck) == most
    assert set(killer.lost) == set(killer.struck)
    assert sorted((r.trial, r.epoch) for r in search.reports) == [(f"t{t}", e) for t in range(4) for e in (1, 2, 3)]
    assert not any(r.failed for r in search.reports)
    assert engine.scheduler.units_given_up >= 1
    check_run(dataset, "r1", trials=4, epochs=3, seed=SEED)


def broken_model_fn(params: dict[str, Any]) -> Any:
    if params["lr"] == 0.03:
        raise RuntimeError("no such layer")
    return torch_model_fn(params)


def test_a_failing_trial_says_why_and_the_others_go_on(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path)
    search = Recording([{"lr": 0.01, "batch_size": 32}, {"lr": 0.03, "batch_size": 32}], 1)
    run(dataset, broken_model_fn, search, kept_backend(1))
    failed = [report for report in search.reports if report.failed]
    assert [report.trial for report in failed] == ["t1"]
    assert "no such layer" in str(failed[0].error)
    assert [(r.trial, r.epoch) for r in search.reports if not r.failed] == [("t0", 1)]


def deadly_model_fn(params: Mapping[str, Any]) -> Any:
    if params["lr"] == 0.01:
        os._exit(3)
    return torch_model_fn(params)


def test_a_trial_that_kills_every_worker_is_failed_and_the_run_ends(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path)
    search = Recording([{"lr": 0.01}, {"lr": 0.02}], 1)
    backend = kept_backend(1)
    backend.bind(Job("r1", dataset.store, dataset, TrainerSpec(Hooks(deadly_model_fn), framework="torch")))
    settings = Settings(dataset.partitions, 1)
    Engine(search, settings, backend, EventLog(dataset.store, "r1")).run()
    (failed,) = [report for report in search.reports if report.failed]
    assert failed.trial == "t0"
    assert "lost its worker 2 times in a row" in str(failed.error)
    assert [(report.trial, report.epoch) for report in search.reports if not report.failed] == [("t1", 1)]


def test_a_broken_model_fn_shows_its_own_traceback_and_no_run_begins(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path)
    with pytest.raises(PreflightFailed, match=r"'lr': 0.03(.|\n)*in broken_model_fn(.|\n)*no such layer"):
        run(dataset, broken_model_fn, Recording([{"lr": 0.03}] * 9, 1), kept_backend(1))
    assert list(EventLog(dataset.store, "r1").read()) == []


def test_while_one_worker_tries_a_batch_the_others_build_the_same(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path)

    def model_fn(params: Mapping[str, Any]) -> Any:
        (tmp_path / f"built by {os.getpid()}").touch()
        return torch_model_fn(params)

    backend = kept_backend(2)
    backend.bind(Job("r1", dataset.store, dataset, TrainerSpec(Hooks(model_fn), seed=SEED)))
    backend.start(dataset.partitions)
    told: list[Event] = []
    while len(told) < 2:
        told += backend.events()
    assert backend.rehearse({"lr": 0.01}) is None
    for worker in backend.workers:
        backend.submit(LoadPartition(worker, dataset.train[0].id))
    while len(told) < 4:  # a worker does one thing after another
        told += backend.events()
    backend.close()
    assert len(list(tmp_path.glob("built by *"))) == 2


class LoadedAfter:
    """A `model_fn` that is unpacked only once `event` is set, as one takes its time whose module is large."""

    event = threading.Event()

    def __reduce__(self) -> Any:
        return LoadedAfter._unpacked, ()

    def __call__(self, params: Mapping[str, Any]) -> Any:
        raise AssertionError("it is replaced when it is unpacked")

    @staticmethod
    def _unpacked() -> Any:
        assert LoadedAfter.event.wait(60)
        return torch_model_fn


def test_functions_are_loaded_before_the_driver_is_dialled_who_takes_silence_for_death(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    job = pack_job(Job("r1", dataset.store, dataset, TrainerSpec(Hooks(LoadedAfter()), framework="torch")), "w0")
    with socket.create_server(("127.0.0.1", 0)) as driver:
        spec = WorkerSpec(driver.getsockname(), RUN.worker, "w0", job.job, stores=job.stores)
        worker = threading.Thread(target=refused, args=(spec,), daemon=True)
        worker.start()
        assert select.select([driver], [], [], 0.5)[0] == [], "nobody dials while functions are loaded"
        LoadedAfter.event.set()
        assert select.select([driver], [], [], 60)[0], "and then they do"
        driver.accept()[0].close()
        worker.join(60)
    assert not worker.is_alive()


def refused(spec: WorkerSpec) -> None:
    """Serve a driver that hangs up at once."""
    with contextlib.suppress(OSError, WireError):
        serve(spec, OutputRelay())


def test_a_model_fn_that_kills_its_worker_is_told_by_its_last_words(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    with pytest.raises(PreflightFailed, match=r"worker w0 on (.|\n)* died(.|\n)*ended with code 3"):
        run(dataset, deadly_model_fn, Recording([{"lr": 0.01}], 1), LocalBackend(num_workers=1))


def test_a_worker_that_cannot_start_ends_the_run_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = small_dataset(tmp_path)
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(BackendError, match=r"w0\.2 died, and so did those before it(.|\n)*ended with code 1"):
        run(dataset, torch_model_fn, Recording([{"lr": 0.01}], 1), LocalBackend(num_workers=1))


def test_a_worker_that_hangs_at_its_start_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = small_dataset(tmp_path)
    hanging = tmp_path / "hang"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(hanging))
    with pytest.raises(BackendError, match=r"had not joined after 0\.5 s"):
        run(dataset, torch_model_fn, Recording([{"lr": 0.01}], 1), LocalBackend(num_workers=1, start_timeout=0.5))


def test_a_backend_can_be_used_again_after_it_was_closed(tmp_path: Path) -> None:
    backend = LocalBackend(num_workers=1, threads=1)
    for number in range(2):
        dataset = small_dataset(tmp_path / str(number))
        search = Recording([{"lr": 0.01, "batch_size": 32}], 1)
        run(dataset, torch_model_fn, search, backend)
        assert [report.failed for report in search.reports] == [False]


class Perturbing(Recording):
    """Asks for a second epoch of the same trial with another learning rate, which makes it better: so it is kept."""

    def ask(self) -> Any:
        answer = super().ask()
        if isinstance(answer, Done) and not self.reports:
            return Wait()
        if isinstance(answer, Done) and len(self.reports) == 1:
            self.reports.append(self.reports[0])
            return Work("t0", {"lr": 0.02, "batch_size": 32}, 2)
        return answer


def test_new_numbers_take_effect_when_a_trial_goes_on(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path)
    run(dataset, torch_model_fn, Perturbing([{"lr": 0.01, "batch_size": 32}], 1), kept_backend(1))
    last = max(dataset.store.list(paths.checkpoint_folder("r1")), key=lambda name: "e0002" in name)
    with open_checkpoint(dataset.store.read(last)) as reader:
        assert "0.02" in str(reader.meta["model"]["optimizer"])


class Staffing:
    """Adds a worker after some units, and once that one has worked removes another."""

    def __init__(self, backend: LocalBackend) -> None:
        self._backend = backend
        self._units = 0
        self._removed = False
        self.events: list[Event] = []

    def __call__(self, turn: Turn) -> None:
        for event in turn.events:
            self._see(event)

    def _see(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, UnitFinished):
            self._units += 1
            if self._units == 6:
                with logged("cerebro_spark.backend.driver.run", "worker w2 has joined") as joined:
                    assert self._backend.add_workers() == ["w2"]
                    assert joined.wait(300), "small units would all be done before it has started"
            elif event.worker == "w2" and not self._removed:
                self._removed = True
                self._backend.remove_worker("w0")


def test_workers_come_and_go_while_a_run_goes_on(tmp_path: Path, kept_backend: KeptWorkers) -> None:
    dataset = small_dataset(tmp_path, partitions=4)
    backend = kept_backend(2)
    staffing = Staffing(backend)
    search = Recording(CONFIGURATIONS, 40)
    run(dataset, torch_model_fn, search, backend, [staffing])
    check_run(dataset, "r1", trials=4, epochs=40, seed=SEED)
    gone = next(place for place, event in enumerate(staffing.events) if isinstance(event, WorkerRetiring))
    later = [event.worker for event in staffing.events[gone:] if isinstance(event, UnitFinished)]
    assert later.count("w0") <= 2, "it ends what it was told of, and no more"
    assert later.count("w2") > 2
    loads = [event.partition for event in staffing.events if isinstance(event, PartitionLoaded)]
    # All are loaded once; what the new one takes over and what the leaving one leaves is loaded once more.
    assert len(loads) <= len(dataset.partitions) + 2 * len(dataset.partitions)
    assert not any(isinstance(event, WorkerLost) for event in staffing.events)
