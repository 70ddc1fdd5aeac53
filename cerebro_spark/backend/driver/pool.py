"""The workers of one run: hired, replaced when they die, and ended. What they are told is not its business."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from cerebro_spark.backend.driver.event_queue import EventQueue
from cerebro_spark.backend.driver.launcher import Launcher
from cerebro_spark.backend.driver.worker_kinds import ahead_of, framework_of, worker_kind
from cerebro_spark.backend.driver.workers import WorkerHandle, WorkerNames
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.wire.messages import OutputLine
from cerebro_spark.backend.worker.session import WorkerSpec, pack_job
from cerebro_spark.errors import BackendError
from cerebro_spark.events import LossExplained, RetireWorker
from cerebro_spark.types import WorkerId

_log = logging.getLogger(__name__)
_SECONDS_TO_END = 10.0
_SECONDS_FOR_LAST_WORDS = 1.0
_LONGEST_VACANCY = 3600.0


class WorkerPool:
    """Hires and replaces the workers of one run; a ProcessWatcher of their processes.

    Threads: all state is guarded by `lock`. The engine's thread hires and closes, the hub's reports losses, the
    launcher's threads call the methods of ProcessWatcher, and a few threads of the pool do what may take long.

    Args:
        launcher: Starts and ends the processes.
        job: What the workers work on.
        spec: What every worker is given, but for its name, its job and its probe.
        events: Where losses are explained, and errors reported that end the run.
        now: The backend's clock.
        hang_up: Closes the connection of a worker, by its peer number, for a reason.
        start_timeout: Seconds after which a worker that has not joined is killed.
        max_restarts: How many workers may be replaced in the run.
    """

    def __init__(
        self,
        launcher: Launcher,
        job: Job,
        spec: WorkerSpec,
        events: EventQueue,
        now: Callable[[], float],
        hang_up: Callable[[int, str], None],
        start_timeout: float,
        max_restarts: int,
    ) -> None:
        self._launcher = launcher
        self._job = job
        self._spec = spec
        self._events = events
        self._now = now
        self._hang_up = hang_up
        self._start_timeout = start_timeout
        self._names = WorkerNames(max_restarts)
        self._timers: list[threading.Timer] = []
        self._threads = ThreadPoolExecutor(8, "hiring")
        self._processes: set[WorkerHandle] = set()
        self._to_replace: set[WorkerHandle] = set()
        """Workers that are lost, and whose replacements are not hired yet."""
        self.handles: dict[WorkerId, WorkerHandle] = {}
        self.lock = threading.RLock()
        self.closing = False

    def connected(self) -> list[WorkerHandle]:
        """Return the workers that have joined and are not lost."""
        with self.lock:
            return [handle for handle in self.handles.values() if handle.peer is not None]

    def do(self, work: Callable[..., None], *arguments: Any) -> None:
        """Have something done that may take long, in a thread of the pool."""
        self._threads.submit(work, *arguments)

    def after(self, seconds: float, work: Callable[..., None], *arguments: Any) -> None:
        """Have something done in so many seconds, unless the run is closed by then."""
        timer = threading.Timer(seconds, work, arguments)
        timer.daemon = True
        with self.lock:
            if self.closing:
                return
            self._timers = [*(other for other in self._timers if not other.finished.is_set()), timer]
        # Without the lock: a thread that begins may take its time, and others need the lock meanwhile.
        timer.start()

    def hire(self, count: int, extra: bool = False) -> list[WorkerId]:
        """Have new workers launched, in places of their own.

        Args:
            count: How many.
            extra: Whether the run can do without them: it does not end if they cannot be had.

        Returns:
            Their names.

        Raises:
            BackendError: If the run is over.
        """
        with self.lock:
            if self.closing:
                raise BackendError("the run is over: no worker can be added to it")
            names = [self._names.new() for _ in range(count)]
            for name in names:
                self._hire(name, extra)
        return names

    def can_do_without(self, handle: WorkerHandle) -> bool:
        """Return whether the run goes on if a worker's place stays empty; the lock is held.

        It does without one that was added to it, or that came back to its place, if there are others to do the work.
        """
        others = [other for other in self.handles.values() if not (other is handle or other.leaving or other.dismissed)]
        spare = handle.extra or (handle.kept_away > 0.0 and not handle.useful)
        return spare and bool(others or self._to_replace - {handle})

    def remove(self, handle: WorkerHandle) -> None:
        """End a worker whose connection is lost, and replace it if the run needs that; the lock is held."""
        self.handles.pop(handle.name, None)
        if handle.dismissed:
            self.after(_SECONDS_TO_END, self._launcher.kill, handle)  # by then it has ended by itself, if it can
        else:
            self.do(self._launcher.kill, handle)
        # The place of a worker that was to leave anyway stays empty, unless no other is left to do its work.
        if not handle.dismissed and not (handle.leaving and self.handles):
            self._to_replace.add(handle)
            self.do(self._replace_lost, handle)

    def retire(self, handle: WorkerHandle, action: RetireWorker) -> None:
        """Take notice that a worker is told to go, and have its place filled later if so ordered; the lock is held."""
        handle.dismissed = True
        if not handle.leaving:
            again = "" if action.back_after is None else f"; another takes its place in {action.back_after:g} s"
            _log.warning(
                "worker %s on %s is let go: too much failed there and nowhere else%s", handle.name, handle.host, again
            )
        if action.back_after is not None:
            self.after(action.back_after, self._fill, handle, action.back_after)

    # -- the end of the run

    def begin_close(self) -> list[WorkerHandle]:
        """Hire no more, and kill the workers that have not joined; return those that can be told to stop."""
        with self.lock:
            self.closing = True
            joined = self.connected()
            self.handles.clear()
        for timer in self._timers:
            timer.cancel()
        self._kill_unjoined()
        return joined

    def close(self) -> None:
        """Wait until nothing is left of any worker; kill those that have not ended in time."""
        self._threads.shutdown(wait=True)
        self._kill_unjoined()
        for handle in self._still_running(_SECONDS_TO_END):
            self._launcher.kill(handle)
        for handle in self._still_running(_SECONDS_TO_END):
            _log.warning("worker %s on %s did not end when it was killed", handle.name, handle.host)
        self._launcher.tidy()

    def kill_all(self) -> None:
        """Kill what is left, and do not wait."""
        for handle in self._processes.copy():
            self._launcher.kill(handle)

    def _kill_unjoined(self) -> None:
        for handle in self._processes.copy():
            if handle.peer is None:
                self._launcher.kill(handle)

    def _still_running(self, seconds: float) -> list[WorkerHandle]:
        deadline = time.monotonic() + seconds
        running = self._processes.copy()
        return [handle for handle in running if not handle.ended.wait(max(0.0, deadline - time.monotonic()))]

    # -- the start of a worker

    def _hire(self, name: WorkerId, extra: bool, kept_away: float = 0.0) -> None:
        """Have a worker launched; the lock is held."""
        handle = WorkerHandle(name, extra=extra, kept_away=kept_away)
        self.handles[name] = handle
        self._processes.add(handle)
        self.do(self._launch, handle)

    def _launch(self, handle: WorkerHandle) -> None:
        if self.closing:
            self.ended(handle)
            return
        handle.launched_at = time.monotonic()
        try:
            self.after(self._start_timeout, self._check_joined, handle)
            self._launcher.launch(handle, self._spec_for(handle), self)
        except Exception as error:  # this thread has no caller that would see it
            known = error if isinstance(error, BackendError) else None
            with self.lock:
                self.handles.pop(handle.name, None)
                self._go_without(handle, known or BackendError(f"worker {handle.name} cannot be launched: {error!r}"))
            self.ended(handle)

    def _spec_for(self, handle: WorkerHandle) -> WorkerSpec:
        job = self._launcher.job_for(handle.name, self._job)
        packed, framework = pack_job(job, handle.name), framework_of(job)
        return replace(
            self._spec,
            name=handle.name,
            job=packed.job,
            stores=packed.stores,
            probe=self._launcher.probe(),
            framework=framework,
            kind=worker_kind(framework, job),
            cache=job.cache,
            ahead=ahead_of(framework, job),
        )

    def _check_joined(self, handle: WorkerHandle) -> None:
        """Kill a worker that had its time to join."""
        if handle.peer is not None or handle.ended.is_set() or self.closing:
            return
        left = self._seconds_left(handle)
        if left > 0:
            self.after(left, self._check_joined, handle)
        else:
            handle.words.append(f"(it had not joined after {self._start_timeout:g} s)")
            self._launcher.kill(handle)

    def _seconds_left(self, handle: WorkerHandle) -> float:
        """Return how long a worker may still take to join. One without a place is waited for while others work."""
        running = self._launcher.seconds_running(handle)
        if running is not None:
            return self._start_timeout - running
        return self._start_timeout if self.connected() else 0.0

    # -- replacements

    def _replace(self, handle: WorkerHandle) -> None:
        """Have another worker take the place of one that died; the lock is held."""
        if self.closing or self._events.failed:
            return
        if handle.kept_away and not handle.useful:  # it came back to its place, and did nothing there
            seconds = min(2 * handle.kept_away, _LONGEST_VACANCY)
            self.after(seconds, self._fill, handle, seconds)
            return
        try:
            self._hire(self._names.replacement_of(handle), handle.extra)
        except BackendError as error:
            self._go_without(handle, error)

    def _go_without(self, handle: WorkerHandle, error: BackendError) -> None:
        """Leave the place of a worker empty, or end the run if it cannot do without; the lock is held."""
        if self.can_do_without(handle):
            _log.warning("the run goes on, but the place of worker %s stays empty: %s", handle.name, error)
        else:
            self._events.fail(error)

    def _replace_lost(self, handle: WorkerHandle) -> None:
        """Replace a worker that had joined. A short wait for its end gives its last words, and frees its parent."""
        handle.ended.wait(_SECONDS_FOR_LAST_WORDS)
        with self.lock:
            self._to_replace.discard(handle)
            self._replace(handle)

    def _fill(self, handle: WorkerHandle, seconds: float) -> None:
        """Fill the place of a worker that was let go, and that was empty for long enough."""
        with self.lock:
            if self.closing or self._events.failed:
                return
            name = self._names.return_of(handle)
            if name is None:
                _log.warning("the place of worker %s stays empty: no restart is left", handle.name)
            else:
                self._hire(name, handle.extra, kept_away=seconds)

    # -- what processes do (ProcessWatcher)

    def ended(self, handle: WorkerHandle) -> None:
        """Replace a worker that never joined; the connection of one that did is closed, and tells the rest."""
        with self.lock:
            if handle in self._processes:
                self._processes.discard(handle)
                if handle.peer is not None:
                    self._hang_up(handle.peer, "its process ended")
                elif self.handles.pop(handle.name, None) is not None:
                    self._replace(handle)
        handle.ended.set()  # last: whoever waits for it finds the books in order

    def printed(self, handle: WorkerHandle, line: OutputLine) -> None:
        """Pass on to the log what a worker printed."""
        where = f"{handle.name}, {line.about}" if line.about else handle.name
        _log.log(logging.WARNING if line.loud else logging.INFO, "%s: %s", where, line.text)

    def refused(self, handle: WorkerHandle, reason: str) -> None:
        """End the run, unless some worker has already done something: then the reason does not hold everywhere.

        A worker that the run can do without does not end it either.
        """
        with self.lock:
            handle.words.append(reason)
            if not any(other.useful for other in self.handles.values()) and not self.can_do_without(handle):
                self._events.fail(BackendError(reason))

    def loss_explained(self, handle: WorkerHandle, cause: str) -> None:
        """Keep the cause for when the worker is lost; say it at once if it is lost already."""
        with self.lock:
            handle.cause = cause
            told = handle.peer is not None and handle.name not in self.handles and not handle.dismissed
            if told and not self.closing:
                self._events.put(LossExplained(self._now(), handle.name, cause))
