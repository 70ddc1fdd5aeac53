"""What runs on the other side: a worker that loads partitions, trains units and keeps models. It decides nothing.

Three threads: the main one does the work, in the order in which it was given; one listens to the driver, and has the
next checkpoint fetched while the current unit trains; one shows that the worker is alive. A checkpoint is written while
the next unit already runs, and only when it is in the store is the unit reported.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import cloudpickle

from cerebro_spark.backend.carried import fetched, put_away
from cerebro_spark.backend.child import HOST
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.messages import checkpoint_of, finished, restored_metrics, restored_params, unit_of
from cerebro_spark.backend.speech import mark
from cerebro_spark.backend.wire import Line, Message, WireError
from cerebro_spark.data.loading.arrays import first_rows
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.data.shuffling import row_order
from cerebro_spark.errors import (
    BackendError,
    CerebroError,
    CheckpointError,
    CheckpointUnreadable,
    ConfigurationError,
    StoreForbidden,
    StoreFull,
    StoreUnavailable,
    TrialFailed,
)
from cerebro_spark.store import paths
from cerebro_spark.trainer.base import Trainer
from cerebro_spark.trainer.feed import Feed, batch_size_of
from cerebro_spark.trainer.frameworks import choose_trainer
from cerebro_spark.types import Checkpoint, Metrics, Unit
from cerebro_spark.user_modules import import_sent_modules_first

Parent = Path | bytes
_REHEARSAL = "rehearsal"


@dataclass(frozen=True, slots=True)
class Posting:
    """Where a worker belongs: whom it dials, how it proves itself, what it is called, what it works on.

    The job is packed, so that a worker which cannot unpack it can still say so to its driver. `probe` is the name of a
    blob that it writes into the store first, to show that it can.
    """

    address: tuple[str, int]
    secret: bytes
    name: str
    job: bytes
    beat: float = 5.0
    timeout: float = 30.0
    probe: str | None = None


def packed(job: Job, name: str) -> bytes:
    """A job as it travels; BackendError says what cannot."""
    try:
        data: bytes = cloudpickle.dumps(job)
    except Exception as error:
        raise BackendError(f"what worker {name} needs cannot be sent to it: {error}") from error
    return data


def serve(posting: Posting, relay: Relay | None = None) -> None:
    """Work until the driver says stop, or hangs up."""
    # Before the driver is dialled, who would take a long silence for death: functions may bring whole frameworks along.
    job, trouble = _unpacked(posting)
    line = Line(posting.address, posting.secret, posting.timeout, silence=8 * posting.beat)
    # What this machine is called by those who say where data lies, if whoever started this process knows.
    host = os.environ.get(HOST) or socket.gethostname()
    hello = {"type": "hello", "name": posting.name, "host": host, "pid": os.getpid(), "probe": posting.probe}
    if job is None:
        line.send({**hello, "trouble": trouble})
        line.close()
        return
    line.send({**hello, "threads": job.resources.threads})
    if relay is not None:
        relay.line = line
    work_for(job, line, posting, mark if relay is not None else None)


def work_for(job: Job, line: Line, posting: Posting, mark: Callable[[str], None] | None = None) -> None:
    """Work on this job until the driver says stop, or hangs up; the driver knows already who works for it."""
    worker = Worker(job, line, mark)
    threading.Thread(target=_beat, args=(line, posting.beat, worker.stopped), daemon=True).start()
    threading.Thread(target=_listen, args=(line, worker), name=f"listen-{posting.name}", daemon=True).start()
    try:
        worker.warm_up()
        worker.work()
    finally:
        worker.stopped.set()
        line.close()


def _unpacked(posting: Posting) -> tuple[Job | None, dict[str, str]]:
    """The job, or what stands in the way of it: functions that cannot be loaded here, or a store to write to."""
    try:
        job: Job = cloudpickle.loads(posting.job)
    except Exception as error:
        return None, {"functions": f"{type(error).__name__}: {error}"}
    try:
        if posting.probe is not None:
            job.store.write(posting.probe, b"probe")
    except OSError as error:
        return None, {"store": f"{type(error).__name__}: {error}"}
    return job, {}


def _beat(line: Line, seconds: float, stopped: threading.Event) -> None:
    while not stopped.wait(seconds):
        try:
            line.send({"type": "alive"})
        except (OSError, WireError):
            return  # the listener sees the same and ends the worker


def _listen(line: Line, worker: Worker) -> None:
    try:
        while True:
            for message in line.receive():
                worker.order(message)
    except (OSError, WireError):
        worker.abandon()


class Worker:
    """Carries out orders one after another, and says what came of them."""

    def __init__(self, job: Job, line: Line, mark: Callable[[str], None] | None = None) -> None:
        self._job = job
        self._line = line
        self._mark = mark or (lambda trial: None)
        self._cache = Cache(**job.cache)
        self._orders: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._parents: dict[int, Future[Parent]] = {}
        self._fetching = ThreadPoolExecutor(1, "fetch")
        self._saving = ThreadPoolExecutor(1, "save")
        self._trainer: Trainer | None = None
        self._computed = 0.0  # when the last unit had been computed; 0 before the first
        self._waited = 0.0
        self._abandoned = False
        self.stopped = threading.Event()

    def order(self, message: Message) -> None:
        """Take an order; called by the listener. Fetching what a unit starts from begins at once."""
        if message["type"] == "run" and message["parent"] is not None:
            parent = checkpoint_of(message["parent"])
            self._parents[message["attempt"]] = self._fetching.submit(self._fetch, parent)
        self._orders.put(message)

    def abandon(self) -> None:
        """Nobody listens any more; called by the listener. No other unit is begun, and what is done is not kept."""
        self._abandoned = True
        self._orders.put({"type": "stop"})

    def warm_up(self) -> None:
        """Load the framework while others are still coming; if that fails, the first unit will fail of the same."""
        try:
            self._ready_trainer().warm_up()
        except Exception as error:
            print(f"the trainer is not ready: {type(error).__name__}: {error}", file=sys.stderr)

    def work(self) -> None:
        """Do what is ordered until told to stop."""
        while True:
            message = self._orders.get()
            if message["type"] == "stop" or self._abandoned:
                break
            if message["type"] == "load":
                self._load(message["partition"])
            elif message["type"] == "drop":
                self._drop(message["partition"])
            elif message["type"] == "run":
                self._run(message)
                self._mark("")
            elif message["type"] == "rehearse":
                error = self._rehearse(message["params"])
                self._line.send({"type": "rehearsed", "number": message["number"], "error": error})
            elif message["type"] == "practise":
                self._rehearse(message["params"])  # if it goes wrong, whoever rehearses says so
        self._saving.shutdown(wait=True)
        self._fetching.shutdown(wait=False, cancel_futures=True)
        self._cache.close()

    # -- partitions

    def _load(self, partition: str) -> None:
        dataset = self._job.dataset
        self._line.send({"type": "loading", "partition": partition})
        try:
            self._cache.load(dataset, dataset.partition(partition))
        except Exception as error:
            # Whatever it is, the driver must hear of it: a worker that only died would be replaced, and die again.
            known = isinstance(error, (CerebroError, OSError))
            reason = f"{type(error).__name__}: {error}" if known else traceback.format_exc()
            self._line.send({"type": "unloaded", "partition": partition, "reason": reason})
            return
        self._line.send({"type": "loaded", "partition": partition})

    def _drop(self, partition: str) -> None:
        dataset = self._job.dataset
        self._cache.release(dataset, dataset.partition(partition))
        if self._trainer is not None:
            self._trainer.forget(partition)

    # -- units

    def _rehearse(self, given: Mapping[str, Any]) -> str | None:
        """Train and evaluate one batch of a trial that is none, so that what is broken shows before the run begins."""
        try:
            params = restored_params(given)
            self._cache.enter()  # what speaks against its folder is said now, and not by the first load
            partition = self._job.dataset.train[0]
            size = batch_size_of(params)
            arrays = first_rows(self._job.dataset, partition, size)
            trainer = self._ready_trainer()
            trainer.build(_REHEARSAL, params)
            trainer.train(Unit(_REHEARSAL, 1, partition.id), Feed(arrays, batch_size=size))
            # Whatever no checkpoint can hold shows here, and not when a unit's work is to be kept.
            trainer.save(BytesIO())
            measured = trainer.evaluate(Unit(_REHEARSAL, 1, partition.id, "eval"), Feed(arrays, batch_size=size))
            self._check_metric(trainer.finish(measured))
        except (CerebroError, MemoryError) as known:
            return f"{type(known).__name__}: {known}"
        except Exception:
            return traceback.format_exc()
        return None

    def _check_metric(self, measured: Mapping[str, float]) -> None:
        """Whether the search will hear of what it goes by."""
        found = [*measured, *(f"val_{name}" for name in measured if self._job.dataset.validation)]
        if self._job.metric is not None and self._job.metric not in found:
            raise ConfigurationError(
                f"`metric` is {self._job.metric!r}, but the model measures {', '.join(found)}: choose one of them, or"
                " have the model measure it"
            )

    def _run(self, message: Message) -> None:
        unit = unit_of(message["unit"])
        parent = self._parents.pop(message["attempt"], None)
        self._line.send({"type": "started", "attempt": message["attempt"]})
        self._mark(unit.trial)
        try:
            began = time.perf_counter()
            metrics, values = self._perform(unit, message, parent)
            self._computed = time.perf_counter()
            seconds = self._computed - began
            metrics = put_away(metrics, self._job, unit.trial, message["attempt"], final=message["final"])
            if unit.kind == "train":
                self._save(unit, message, seconds, metrics, values)
            else:
                self._line.send(finished(message, seconds, self._waited, metrics, values))
        except CheckpointUnreadable as error:
            self._fail(message, error, "worker")  # the file, or the way to it: elsewhere, or later, it may be whole
        except (TrialFailed, ConfigurationError, CheckpointError, MemoryError) as error:
            self._fail(message, error, "trial")
        except StoreUnavailable as error:
            self._fail(message, error, "store")
        except (CerebroError, OSError) as error:
            self._fail(message, error, "worker")
        except Exception as error:
            self._fail(message, error, "trial", traceback.format_exc())

    def _perform(
        self, unit: Unit, message: Message, parent: Future[Parent] | None
    ) -> tuple[Metrics, dict[str, float] | None]:
        params = restored_params(message["params"])
        trainer = self._ready_trainer()
        self._make_current(trainer, unit, params, message, parent)
        dataset = self._job.dataset
        arrays = self._cache.load(dataset, dataset.partition(unit.partition))
        size = batch_size_of(params)
        carry = fetched(restored_metrics(message["carry"]), self._job.store)
        self._waited = time.perf_counter() - self._computed if self._computed else 0.0
        if unit.kind == "train":
            rows = len(next(iter(arrays.values())))
            order = row_order(rows, self._job.seed, unit.trial, unit.epoch, unit.partition)
            smallest = self._job.smallest_batch
            feed = Feed(arrays, order, batch_size=size, key=unit.partition, smallest=smallest)
            metrics = trainer.train(unit, feed, carry)
        else:
            metrics = trainer.evaluate(unit, Feed(arrays, batch_size=size, key=unit.partition), carry)
        if not message["final"]:
            return metrics, None
        return metrics, trainer.finish(Metrics.merge([part for part in (carry, metrics) if part is not None]))

    def _ready_trainer(self) -> Trainer:
        if self._trainer is None:
            job = self._job
            kind = choose_trainer(job.hooks.model_fn, job.framework)
            self._trainer = kind(job.hooks, job.columns, seed=job.seed, resources=job.resources)
        return self._trainer

    def _make_current(
        self, trainer: Trainer, unit: Unit, params: Mapping[str, Any], message: Message, parent: Future[Parent] | None
    ) -> None:
        if parent is None:
            trainer.build(unit.trial, params)
            return
        source = parent.result()
        digest = checkpoint_of(message["parent"]).digest
        trainer.load(unit.trial, params, source, digest=digest, warm_start=message["rebased"])

    # -- checkpoints

    def _fetch(self, parent: Checkpoint) -> Parent:
        name = paths.checkpoint(self._job.run, parent)
        return self._job.store.local_path(name) or self._job.store.read(name)

    def _save(
        self, unit: Unit, message: Message, seconds: float, metrics: Metrics, values: dict[str, float] | None
    ) -> None:
        """Copy the state out of the trainer, and go on; the store gets it from another thread."""
        assert self._trainer is not None
        buffer = BytesIO()
        saved = self._trainer.save(buffer)
        checkpoint = Checkpoint(unit.trial, unit.epoch, message["step"], message["attempt"], saved.bytes, saved.digest)
        report = finished(message, seconds, self._waited, metrics, values, checkpoint)
        self._saving.submit(self._store, checkpoint, buffer, report)

    def _store(self, checkpoint: Checkpoint, buffer: BytesIO, report: Message) -> None:
        if self._abandoned:
            return  # its driver has given this unit to somebody else, and would never hear of the file
        try:
            self._job.store.write(paths.checkpoint(self._job.run, checkpoint), buffer.getbuffer())
            self._line.send(report)
        except Exception as error:
            # Nobody looks at this thread's result: whatever happens, the driver must hear of it.
            refused = isinstance(error, (StoreUnavailable, StoreForbidden, StoreFull))
            self._fail(report, error, "store" if refused else "worker")

    def _fail(self, message: Message, error: BaseException, blame: str, text: str | None = None) -> None:
        told = text or f"{type(error).__name__}: {error}"
        report = {
            "type": "failed",
            "attempt": message["attempt"],
            "unit": message["unit"],
            "blame": blame,
            "error": told,
        }
        self._line.send(report)


def main() -> None:
    """A worker process: its posting comes through standard input, and when that is closed its parent is gone."""
    # What is worth a warning goes to standard error, and from there into the driver's log.
    logging.basicConfig(level=logging.WARNING)
    import_sent_modules_first()
    posting = cloudpickle.load(sys.stdin.buffer)
    relay = Relay()
    threading.Thread(target=_die_with_parent, args=(relay,), daemon=True).start()
    try:
        serve(posting, relay)
    except (OSError, WireError) as error:
        print(f"worker {posting.name} ends: {error}", file=sys.stderr)
    # Threads of frameworks may not end by themselves; everything of ours has.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


@dataclass
class Relay:
    """Where lines go that a parent, which read what this process printed, cannot bring to the driver itself."""

    line: Line | None = None

    def __call__(self, raw: bytes) -> None:
        if self.line is not None:
            with contextlib.suppress(OSError, WireError, ValueError):
                text, trial, loud = json.loads(raw)
                self.line.send({"type": "said", "text": text, "trial": trial, "loud": loud})


def _die_with_parent(relay: Relay) -> None:
    for raw in sys.stdin.buffer:
        relay(raw)
    os._exit(1)


if __name__ == "__main__":
    main()
