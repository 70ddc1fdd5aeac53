"""Training a run again from its log alone: what each trial did, in which order, and whether it comes out the same.

It never asks the search of that run and never reads its checkpoints; what people told that run is in its log. Nothing
here decides what is trained: the script does, and the scheduler follows it (see `scheduling/script.py`).
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cerebro_spark.backend.metric_states import digest_states
from cerebro_spark.codec import to_plain
from cerebro_spark.errors import ConfigurationError, EventLogError, ReplayDiverged
from cerebro_spark.eventlog import taken_from_log
from cerebro_spark.events import (
    EvaluatedEpoch,
    Event,
    RunStarted,
    RunUnit,
    Settings,
    TellSearch,
    TrialScript,
    TrialStopped,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.scheduling.evaluations import infer_merging
from cerebro_spark.scheduling.script import largest_group
from cerebro_spark.search import Done, Search, Wait
from cerebro_spark.turns import Turn
from cerebro_spark.types import Checkpoint, Metrics, PartitionId, Report, Strategy, TrialId, Unit, Work

Epoch = tuple[TrialId, int]


class RequestedWork(NamedTuple):
    """A Work, and how many reports the search of that run had heard when it asked for it."""

    work: Work
    heard: int


@dataclass(frozen=True, slots=True)
class RunScript:
    """What a run did, as far as a replay repeats it; made by `RunScript.from_events`.

    `works` in the order in which they were asked for; `reports` of epochs that went well, in the order in which they
    came; `digests` of the weights after each training unit; `measured` by each evaluation unit; `threads` of every
    worker, 0 if not known; `strategies` by which the models of trials lay on their devices, as far as they are known.
    Results that came too late, and units that failed, are not part of it: a trial that failed or was stopped is trained
    up to its last unit that counted, and ends there as it did. So does a run that never came to its end.
    """

    run: str
    settings: Settings
    works: tuple[RequestedWork, ...]
    reports: tuple[Report, ...]
    trials: tuple[TrialScript, ...]
    digests: Mapping[Unit, str]
    measured: Mapping[Unit, UnitFinished]
    threads: int = 0
    strategies: Mapping[TrialId, Strategy] = field(default_factory=dict)

    @staticmethod
    def from_events(events: Iterable[Event]) -> RunScript:
        """Read a script from the events of a run's log.

        Raises ConfigurationError for a run that cannot be repeated bit for bit.

        >>> from cerebro_spark.types import Partition
        >>> settings = Settings((Partition("p0"),), workers=1)
        >>> script = RunScript.from_events([RunStarted(0.0, "r1", settings), WorkAdded(0.0, Work("t0", {}, 1))])
        >>> script.trials == (TrialScript("t0", turns=(0,), stopped=True),)
        True
        """
        iterator = iter(events)
        first = next(iterator, None)
        if not isinstance(first, RunStarted):
            raise EventLogError("the log does not begin with the start of a run: there is nothing to replay")
        with taken_from_log(first):
            builder = _ScriptBuilder(first)
        for event in iterator:
            with taken_from_log(event):
                builder.read(event)
        return builder.build()

    def settings_like(self, settings: Settings) -> Settings:
        """The settings of a replay on the workers of `settings`.

        Raises ConfigurationError for other partitions, and for fewer workers than trained a unit together.
        """
        self.check_workers(settings.workers)
        mine, other = ([(p.id, p.split, p.rows) for p in s.partitions] for s in (self.settings, settings))
        if mine != other:
            raise ConfigurationError(
                f"run {self.run} was trained on {len(mine)} partitions that are not the {len(other)} given:"
                " replay it on its own data set"
            )
        return dataclasses.replace(
            settings,
            policy="longest-first",
            script=self.trials,
            group=1,
            group_auto=False,
            group_on_host=False,
            smallest_batch=self.settings.smallest_batch,
            digest=self.settings.digest,
        )

    def check_workers(self, workers: int) -> None:
        """Raise ConfigurationError if there are fewer workers than trained a unit together."""
        largest = largest_group(self.trials)
        if largest > workers:
            raise ConfigurationError(
                f"run {self.run} had units that {largest} workers trained together, and what they learnt depends on"
                f" that: replay it with at least {largest} workers, not {workers}"
            )


@dataclass(slots=True)
class _TrialHistory:
    """What one trial did so far.

    `under` says for each visit how many Works had taken effect, `groups` how many visits each unit had.
    """

    works: int = 0
    visits: list[PartitionId] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    under: list[int] = field(default_factory=list)
    rebased: list[int] = field(default_factory=list)
    reports: list[EvaluatedEpoch] = field(default_factory=list)


class _ScriptBuilder:
    """Feeds a log to a scheduler, which says what counted and what came too late."""

    def __init__(self, start: RunStarted) -> None:
        self._start = start
        self._scheduler = MopScheduler(start.settings)
        self._works_of: dict[int, int] = {}
        """By attempt, how many Works of its trial had taken effect when the unit was ordered."""
        self._histories: dict[TrialId, _TrialHistory] = {}
        self._works: list[RequestedWork] = []
        self._reports: list[Report] = []
        self._digests: dict[Unit, str] = {}
        self._evaluated: dict[Epoch, dict[PartitionId, UnitFinished]] = {}
        self._measured: dict[Unit, UnitFinished] = {}
        self._threads: set[int] = set()
        self._strategies: dict[TrialId, Strategy] = {}

    def read(self, event: Event) -> None:
        self._scheduler.check_logged(event)
        if isinstance(event, UnitFinished) and self._scheduler.expects(event):
            self._finished(event)
        elif isinstance(event, WorkAdded) and self._scheduler.takes(event):
            self._asked(event.work)
        elif isinstance(event, WorkerJoined):
            self._threads.add(event.threads)
        trials = self._scheduler.state.trials
        for action in self._scheduler.handle(event):
            if isinstance(action, RunUnit):
                for member in action.members:
                    self._works_of[member.attempt] = trials[member.unit.trial].works
            elif isinstance(action, TellSearch) and not action.report.failed:
                self._reported(action.report)

    def _asked(self, work: Work) -> None:
        """Take note of a Work that was begun, whether a search or a person asked for it."""
        self._histories.setdefault(work.trial, _TrialHistory()).works += 1
        self._works.append(RequestedWork(work, len(self._reports)))

    def _finished(self, event: UnitFinished) -> None:
        unit = event.unit
        if unit.kind == "eval":
            self._evaluated.setdefault((unit.trial, unit.epoch), {})[unit.partition] = event
            return
        if event.strategy and not event.partners:  # what a group does follows from what was asked for
            self._strategies[unit.trial] = event.strategy  # a trial that needed more memory later gets that at once
        history = self._histories[unit.trial]
        if self._scheduler.state.assignments[event.attempt].rebased:
            history.rebased.append(len(history.visits))
        history.visits += unit.partitions
        history.groups.append(len(unit.partitions))
        history.under += [self._works_of[event.attempt]] * len(unit.partitions)
        self._digests[unit] = _digest(event)

    def _reported(self, report: Report) -> None:
        self._reports.append(report)
        units = self._evaluated.pop((report.trial, report.epoch), {})
        self._histories[report.trial].reports.append(EvaluatedEpoch(report.epoch, _order(units)))
        self._measured.update({event.unit: event for event in units.values()})

    def build(self) -> RunScript:
        """Return the script, or raise ConfigurationError for a run that cannot be repeated bit for bit."""
        run = self._start.run
        for unit, digest in self._digests.items():
            if not digest:
                raise ConfigurationError(f"run {run} cannot be replayed: its log has no digest of what {unit} left")
        if len(self._threads) > 1:
            raise ConfigurationError(
                f"run {run} cannot be replayed: its workers had {sorted(self._threads)} threads, and results depend on"
                " that. Give all workers the same number"
            )
        sources = self._sources()
        trials = tuple(self._trial_script(trial, history, sources) for trial, history in self._histories.items())
        return RunScript(
            run,
            self._start.settings,
            tuple(self._works),
            tuple(self._reports),
            trials,
            self._digests,
            self._measured,
            next(iter(self._threads), 0),
            self._strategies,
        )

    def _sources(self) -> list[Epoch]:
        """The epochs that Works started from, in their order."""
        known = {r.checkpoint.name: (r.trial, r.epoch) for r in self._reports if r.checkpoint}
        sources = []
        for work, _ in self._works:
            if work.warm_start is not None:
                if work.warm_start.name not in known:
                    raise ConfigurationError(
                        f"run {self._start.run} cannot be replayed: trial {work.trial} started from"
                        f" {work.warm_start.name}, which is not the end of an epoch that was reported"
                    )
                sources.append(known[work.warm_start.name])
        return sources

    def _trial_script(self, trial: TrialId, history: _TrialHistory, sources: Sequence[Epoch]) -> TrialScript:
        record = self._scheduler.state.trials[trial]
        return TrialScript(
            trial,
            tuple(history.visits),
            tuple(bisect_right(history.under, work) for work in range(history.works)),
            tuple(history.rebased),
            tuple(sorted(history.reports, key=lambda measured: measured.epoch)),
            tuple(sorted(epoch for name, epoch in sources if name == trial)),
            stopped=record.status in ("stopped", "training"),
            error=record.error if record.status == "failed" else None,
            groups=tuple(history.groups) if max(history.groups, default=1) > 1 else (),
        )


class ReplaySearch(Search):
    """Asks for what a run's search asked for, each Work once all is reported that was reported before it then.

    The checkpoints that Works start from are those which this run wrote for the same trial and epoch.
    """

    def __init__(self, script: RunScript) -> None:
        self._script = script
        self._errors = {trial.trial: trial.error for trial in script.trials}
        self._asked = 0
        self._heard: dict[Epoch, Checkpoint | None] = {}
        self._reached = 0

    @property
    def script(self) -> RunScript:
        """What is repeated."""
        return self._script

    def ask(self) -> Work | Wait | Done:
        if self._asked == len(self._script.works):
            return Done()
        work, heard = self._script.works[self._asked]
        if self._reached < heard:
            return Wait()
        self._asked += 1
        theirs = work.warm_start
        return dataclasses.replace(work, warm_start=self._heard[theirs.trial, theirs.epoch]) if theirs else work

    def tell(self, report: Report) -> None:
        if report.failed:
            self._check_failure(report)
            return
        self._heard[_epoch(report)] = report.checkpoint
        reports = self._script.reports
        while self._reached < len(reports) and _epoch(reports[self._reached]) in self._heard:
            self._reached += 1

    def _check_failure(self, report: Report) -> None:
        before = self._errors.get(report.trial)
        if report.error != before:
            then = "did not fail" if before is None else f"failed later: {before}"
            raise ReplayDiverged(
                f"trial {report.trial} failed in epoch {report.epoch}, but in run {self._script.run} it {then}."
                f" This time: {report.error}"
            )


class ReplayChecker:
    """An observer of a replay: raises ReplayDiverged at the first unit that does not come out as it did.

    It judges late results too: every worker that trains a unit of a script must come to the same weights. `finish`,
    after the run, makes sure that all of the script was repeated.
    """

    def __init__(self, script: RunScript) -> None:
        self._script = script
        self._compared: set[Unit] = set()

    def __call__(self, turn: Turn) -> None:
        for event in turn.events:
            if isinstance(event, UnitFinished):
                self._compare(event)
            elif isinstance(event, WorkerJoined):
                self._check_threads(event)
            elif isinstance(event, TrialStopped):
                raise ReplayDiverged(f"trial {event.trial} was stopped by hand: a replay must be left alone")

    def finish(self) -> None:
        """Raise ReplayDiverged if a unit of the script was not trained again, or not evaluated again."""
        script = self._script
        missing = [unit for unit in (*script.digests, *script.measured) if unit not in self._compared]
        if missing:
            raise ReplayDiverged(
                f"{len(missing)} units of run {script.run} were not repeated, the first of them {missing[0]}"
            )

    def _compare(self, event: UnitFinished) -> None:
        if event.unit.kind == "train":
            self._compare_weights(event.unit, _digest(event))
        else:
            self._compare_values(event.unit, _shown(event))
        self._compared.add(event.unit)

    def _compare_weights(self, unit: Unit, now: str) -> None:
        before = self._script.digests.get(unit)
        if now != before:
            raise ReplayDiverged(
                f"trial {unit.trial} has other weights after epoch {unit.epoch}, partition {unit.partition}, than in"
                f" run {self._script.run}: digest {now}, not {before}. {_REASONS}"
            )

    def _compare_values(self, unit: Unit, now: dict[str, Any]) -> None:
        known = self._script.measured.get(unit)
        before = _shown(known) if known else None
        if now != before:
            raise ReplayDiverged(
                f"trial {unit.trial} has the same weights after epoch {unit.epoch} as in run {self._script.run}, but"
                f" evaluates differently on partition {unit.partition}: {now}, not {before}. {_REASONS}"
            )

    def _check_threads(self, event: WorkerJoined) -> None:
        if self._script.threads and event.threads and event.threads != self._script.threads:
            raise ReplayDiverged(
                f"worker {event.worker} computes with {event.threads} threads, run {self._script.run} did with"
                f" {self._script.threads}, and results depend on that: give it as many"
            )


_REASONS = (
    "Possible reasons: another number of threads, other versions of the libraries, another kind of CPU, a GPU, or a"
    " model that draws random numbers which no checkpoint carries"
)


def _order(units: Mapping[PartitionId, UnitFinished]) -> tuple[PartitionId, ...]:
    """As much of the order of evaluation units as the values of their epoch depend on."""
    merging = {infer_merging(event.metrics) for event in units.values()}
    if "carried" in merging:
        return tuple(units)
    return (*sorted([*units][:-1]), [*units][-1]) if "states" in merging else ()


def _digest(event: UnitFinished) -> str:
    return event.checkpoint.digest if event.checkpoint else ""


def _epoch(report: Report) -> Epoch:
    return report.trial, report.epoch


def _shown(event: UnitFinished) -> dict[str, Any]:
    """What an evaluation unit measured, in a form in which NaN equals NaN."""
    metrics: Metrics = dataclasses.replace(event.metrics, carried={}, stored=None)
    plain, values = to_plain(metrics, "metrics"), to_plain(event.values, "values")
    return {"metrics": plain, "carried": digest_states(event.metrics), "values": values}
