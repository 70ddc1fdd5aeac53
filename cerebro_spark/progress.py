"""What a person can follow of a run: a bar, and lines in the log. It only watches, and never changes the run.

All of it comes from events, so it is the same for every backend, and a run that is resumed shows where it stood.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import TracebackType
from typing import Any, TextIO

from cerebro_spark.events import (
    Event,
    PartitionLost,
    RunStarted,
    TellSearch,
    UnitFailed,
    UnitFinished,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.scheduling.records import TrialRecord, WorkerRecord
from cerebro_spark.types import Objective, Report, TrialId, Unit, WorkerId

_log = logging.getLogger("cerebro_spark")


@dataclass(frozen=True, slots=True)
class Best:
    """The best epoch so far, by the run's objective."""

    trial: TrialId
    epoch: int
    value: float


class Tally:
    """Counts of a run, from its events alone.

    It repeats what the scheduler made of them, so that late results, retries and failures count as they did there.
    `units` of `total` are done; the total grows when the search asks for more, and shrinks when a trial fails.

    >>> from cerebro_spark.events import Settings, WorkAdded
    >>> from cerebro_spark.types import Partition, Work
    >>> tally = Tally()
    >>> for event in (RunStarted(0.0, "r1", Settings((Partition("p0"),), 1)), WorkAdded(0.0, Work("t0", {}, 3))):
    ...     news = tally.add(event)
    >>> tally.units, tally.total, tally.running
    (0, 3, 1)
    """

    def __init__(self) -> None:
        self.run = ""
        self.epochs = 0
        self.best: Best | None = None
        self._scheduler: MopScheduler | None = None
        self._per_epoch = 0
        self._done: dict[TrialId, int] = {}
        self._reported: dict[TrialId, int] = {}

    def add(self, event: Event) -> list[Report]:
        """Take in one event; returns what the search was told because of it. Events before the run's start are void."""
        if isinstance(event, RunStarted):
            self.run = event.run
            self._scheduler = MopScheduler(event.settings)
            self._per_epoch = len(event.settings.partitions)
        if self._scheduler is None:
            return []
        if isinstance(event, UnitFinished) and self._scheduler.expects(event):
            self._done[event.unit.trial] = self._done.get(event.unit.trial, 0) + 1
        reports = [a.report for a in self._scheduler.handle(event) if isinstance(a, TellSearch)]
        for report in reports:
            self._note(report)
        return reports

    def _note(self, report: Report) -> None:
        if report.failed:
            return
        self.epochs += 1
        self._reported[report.trial] = max(report.epoch, self._reported.get(report.trial, 0))
        objective = self.objective
        value = report.metrics.get(objective.metric, float("nan")) if objective else float("nan")
        if objective is not None and objective.better(value, than=self.best.value if self.best else float("nan")):
            self.best = Best(report.trial, report.epoch, value)

    @property
    def objective(self) -> Objective | None:
        return self._scheduler.settings.objective if self._scheduler else None

    @property
    def units(self) -> int:
        """Units that are done and counted, of training and of evaluation."""
        return sum(self._done.values())

    @property
    def total(self) -> int:
        """Units that were asked for so far; of a trial that failed or was stopped, those that it did."""
        return sum(
            self._done.get(trial.id, 0) if trial.status in ("failed", "stopped") else trial.until * self._per_epoch
            for trial in self._trials.values()
        )

    @property
    def asked_epochs(self) -> int:
        """Epochs that were asked for so far."""
        return sum(trial.until for trial in self._trials.values())

    @property
    def failed(self) -> int:
        """Trials that failed."""
        return sum(trial.status == "failed" for trial in self._trials.values())

    @property
    def done(self) -> int:
        """Trials that have nothing left to do; a search may still let them go on."""
        return sum(
            trial.status == "stopped" or (trial.status != "failed" and self._reported.get(trial.id, 0) >= trial.until)
            for trial in self._trials.values()
        )

    @property
    def running(self) -> int:
        """Trials with work left to do."""
        return len(self._trials) - self.failed - self.done

    @property
    def workers(self) -> int:
        """Workers that are up."""
        return sum(worker.live for worker in self._workers.values())

    def host(self, worker: WorkerId) -> str:
        """The host of a worker, as far as it is known."""
        return self._workers[worker].host if worker in self._workers else ""

    def units_of(self, worker: WorkerId) -> list[Unit]:
        """What a worker has to do just now, first what it runs."""
        if self._scheduler is None or worker not in self._workers:
            return []
        return [self._scheduler.state.assignments[attempt].unit for attempt in self._workers[worker].queue]

    def params(self, trial: TrialId) -> dict[str, Any]:
        """The configuration of a trial."""
        return dict(self._trials[trial].params) if trial in self._trials else {}

    @property
    def _trials(self) -> Mapping[TrialId, TrialRecord]:
        return self._scheduler.state.trials if self._scheduler else {}

    @property
    def _workers(self) -> Mapping[WorkerId, WorkerRecord]:
        return self._scheduler.state.workers if self._scheduler else {}


def describe(tally: Tally) -> str:
    """One line on where a run stands.

    >>> describe(Tally())
    '0 running, 0 done | 0/0 epochs | 0 workers'
    """
    trials = f"{tally.running} running, {tally.done} done"
    parts = [
        trials + (f", {tally.failed} failed" if tally.failed else ""),
        f"{tally.epochs}/{tally.asked_epochs} epochs",
        f"{tally.workers} worker{'' if tally.workers == 1 else 's'}",
    ]
    if tally.best is not None and tally.objective is not None:
        parts.append(f"best {tally.objective.metric} {tally.best.value:.4g} ({tally.best.trial})")
    return " | ".join(parts)


class Notices:
    """Says in the log what happens: at level WARNING what went wrong, with worker, host and trial; at INFO the rest."""

    def __call__(self, event: Event, tally: Tally, before: Sequence[Unit], reports: Sequence[Report]) -> None:
        """`before` is what the worker of the event had to do until then."""
        who = _called(event, tally)
        if isinstance(event, RunStarted):
            _log.info("run %s begins", event.run)
        elif isinstance(event, WorkerJoined):
            _log.info("worker %s is up", who)
        elif isinstance(event, WorkerLost):
            doing = f" while it had {', '.join(map(str, before))}" if before else ""
            level = logging.WARNING if event.blames_unit else logging.INFO  # with its driver every worker is lost
            _log.log(level, "worker %s is lost%s: %s", who, doing, event.reason)
        elif isinstance(event, UnitFailed):
            _log.warning("trial %s: %s failed on worker %s: %s", event.unit.trial, event.unit, who, event.error)
        elif isinstance(event, PartitionLost):
            _log.warning("partition %s could not be loaded by worker %s: %s", event.partition, who, event.reason)
        for report in reports:
            if report.failed:
                _log.warning("trial %s failed with %s: %s", report.trial, tally.params(report.trial), report.error)
            else:
                _log.info("trial %s, epoch %d: %s", report.trial, report.epoch, dict(report.metrics))


def _called(event: Event, tally: Tally) -> str:
    """A worker and its host, as far as that is known."""
    worker = getattr(event, "worker", "")
    host = tally.host(worker)
    return f"{worker} on {host}" if host else worker


class Progress:
    """An observer of a run: it keeps a tally, writes notices, and draws a bar.

    `show` asks for the bar (True), for none (False), or for one where somebody can see it (None). What happened
    `earlier`, before the run was resumed, is counted and not said again.
    """

    def __init__(self, show: bool | None = None, earlier: Iterable[Event] = (), file: TextIO | None = None) -> None:
        self.tally = Tally()
        for event in earlier:
            self.tally.add(event)
        self._notices = Notices()
        self._file = file
        self._bar = self._new_bar() if (_can_be_seen(file) if show is None else show) else None

    def __call__(self, event: Event) -> None:
        worker = getattr(event, "worker", None)
        before = self.tally.units_of(worker) if worker is not None else []
        reports = self.tally.add(event)
        self._notices(event, self.tally, before, reports)
        if self._bar is not None:
            rare = isinstance(event, (RunStarted, WorkerJoined, WorkerLost))
            self._draw(refresh=rare or any(report.failed for report in reports))

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._draw(refresh=True)
            self._bar.close()
            self._bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _new_bar(self) -> Any:
        make = _bar_kind() if self._file is None else _text_bar()
        options = {"unit": " units", "dynamic_ncols": True, "file": self._file, "initial": self.tally.units}
        return make(total=self.tally.total or None, desc=self.tally.run or "starting", **options)

    def _draw(self, refresh: bool) -> None:
        bar: Any = self._bar
        tally = self.tally
        bar.total = tally.total
        bar.set_description_str(tally.run, refresh=False)
        bar.set_postfix_str(describe(tally), refresh=False)
        bar.update(tally.units - bar.n)
        if refresh:
            bar.refresh()


def _can_be_seen(file: TextIO | None) -> bool:
    return in_notebook() or (file or sys.stderr).isatty()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. Looks only at what is loaded already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def _bar_kind() -> Callable[..., Any]:
    """A widget in notebooks that have widgets, else text; `tqdm.auto` would warn where there are none."""
    if in_notebook() and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm as widget

        return widget
    return _text_bar()


def _text_bar() -> Callable[..., Any]:
    from tqdm import tqdm

    return tqdm
