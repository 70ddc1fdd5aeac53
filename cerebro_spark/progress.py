"""What a person can follow of a run: a bar, and lines in the log. It only watches, and never changes the run.

All of it comes from turns, so it is the same for every backend, and a run that is resumed shows where it stood.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Protocol, TextIO, runtime_checkable

from cerebro_spark.events import (
    CommandAnswered,
    Event,
    GroupGaveUp,
    PartitionLost,
    RunStarted,
    UnitFailed,
    WorkerJoined,
    WorkerLost,
)
from cerebro_spark.run_view import RunView
from cerebro_spark.timeline import Timeline
from cerebro_spark.turns import Turn
from cerebro_spark.types import Report

_log = logging.getLogger("cerebro_spark")
_RARE = (RunStarted, WorkerJoined, WorkerLost, CommandAnswered)


@runtime_checkable
class Remarking(Protocol):
    """An observer of a run that has something to say beside the bar."""

    def in_brief(self) -> str:
        """Return it in a few words; empty if there is nothing to say now.

        Called after each turn of a run.
        """


def describe(view: RunView) -> str:
    """One line on where a run stands.

    >>> describe(RunView())
    '0 running, 0 done | 0/0 epochs | 0 workers'
    """
    counts, best, objective = view.counts(), view.best(), view.objective
    trials = f"{counts.running} running, {counts.done} done"
    parts = [
        trials + (f", {counts.failed} failed" if counts.failed else ""),
        f"{counts.epochs}/{counts.all_epochs} epochs",
        f"{counts.workers} worker{'' if counts.workers == 1 else 's'}",
    ]
    if best is not None and objective is not None and objective.metric in best.metrics:
        parts.append(f"best {objective.metric} {best.metrics[objective.metric]:.4g} ({best.trial})")
    return " | ".join(parts)


def _say(event: Event, reports: Sequence[Report], view: RunView, before: Sequence[str]) -> None:
    """Say in the log what happened: at level WARNING what went wrong, with worker, host and trial; at INFO the rest.

    Args:
        event: The event.
        reports: What the search was told because of it.
        view: The run with it.
        before: What the worker of the event had to do until then.
    """
    who = _called(event, view)
    if isinstance(event, RunStarted):
        _log.info("run %s begins", event.run)
    elif isinstance(event, WorkerJoined):
        _log.info("worker %s is up", who)
    elif isinstance(event, WorkerLost):
        doing = f" while it had {', '.join(before)}" if before else ""
        level = logging.WARNING if event.blames_unit else logging.INFO  # with its driver every worker is lost
        _log.log(level, "worker %s is lost%s: %s", who, doing, event.reason)
    elif isinstance(event, UnitFailed):
        _log.warning("trial %s: %s failed on worker %s: %s", event.unit.trial, event.unit, who, event.error)
    elif isinstance(event, GroupGaveUp):
        _say_given_up(event, view, who)
    elif isinstance(event, PartitionLost):
        _log.warning("partition %s could not be loaded by worker %s: %s", event.partition, who, event.reason)
    elif isinstance(event, CommandAnswered) and event.command in view.commands:
        command = view.commands[event.command].command
        by = f" by {command.by}" if command.by else ""
        _log.info("%s%s was %s: %s", command.verb, by, "done" if event.done else "refused", event.reason)
    for report in reports:
        if report.ended:
            _log.info("trial %s was taken from the search by a person", report.trial)
        elif report.failed:
            params = dict(view.trials[report.trial].params)
            _log.warning("trial %s failed with %s: %s", report.trial, params, report.error)
        else:
            _log.info("trial %s, epoch %d: %s", report.trial, report.epoch, dict(report.metrics))


def _say_given_up(event: GroupGaveUp, view: RunView, who: str) -> None:
    """Say why a group did not train a unit. If no group ever will, that is said for the first trial that has it so."""
    if not event.lasting:
        # That a member is gone is known before by its loss, and then this is too late to count.
        _log.warning("the group of worker %s gave up %s, which is trained again: %s", who, event.unit, event.reason)
    elif event.reason in view.refusals():
        _log.warning(
            "%s. One worker at a time trains this trial, and those that differ from it in real numbers only",
            event.reason.rstrip("."),
        )


def _called(event: Event, view: RunView) -> str:
    """A worker and its host, as far as that is known."""
    worker = getattr(event, "worker", "")
    host = view.workers[worker].host if worker in view.workers else ""
    return f"{worker} on {host}" if host else worker


class Progress:
    """An observer of a run: it keeps a view of it, writes notices, and draws a bar.

    Args:
        show: True for a bar, False for none, None for one where it can be seen.
        earlier: The turns before the run was resumed: they are counted, and not said again.
        file: Where the bar is drawn; None for standard error, or a notebook's cell.
        beside: Observers of the run that have something to say beside the bar. Defaults to `()`: none.
    """

    def __init__(
        self,
        show: bool | None = None,
        earlier: Iterable[Turn] = (),
        file: TextIO | None = None,
        beside: Sequence[Remarking] = (),
    ) -> None:
        self.view = RunView(timeline=Timeline(keep_units=False))
        for turn in earlier:
            self.view.apply(turn)
        if self.view.paused:
            _log.warning("run %s is paused, and nothing begins before somebody unpauses it", self.view.run)
        self._file = file
        self._beside = beside
        self._bar = self._new_bar() if (_can_be_seen(file) if show is None else show) else None

    def __call__(self, turn: Turn) -> None:
        for step in turn.split():
            self._notice(step)
        if self._bar is not None:
            rare = any(isinstance(event, _RARE) for event in turn.events)
            self._draw(refresh=rare or any(report.failed for report in turn.reports))

    def _notice(self, step: Turn) -> None:
        """Take in a turn of one event."""
        (event,) = step.events
        worker = self.view.workers.get(getattr(event, "worker", ""))
        before = worker.orders if worker is not None else []
        self.view.apply(step)
        if step.outcomes[0].counted or not isinstance(event, GroupGaveUp):  # each member of a group may say the same
            _say(event, step.reports, self.view, before)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._draw(refresh=True)
            self._bar.close()
            self._bar = None

    def _new_bar(self) -> Any:
        make = _bar_kind(self._file)
        counts = self.view.counts()
        options = {"unit": " units", "dynamic_ncols": True, "file": self._file, "initial": counts.units}
        return make(total=counts.all_units or None, desc=self.view.run or "starting", **options)

    def _draw(self, refresh: bool) -> None:
        bar: Any = self._bar
        counts = self.view.counts()
        bar.total = counts.all_units
        bar.set_description_str(f"{self.view.run}{', paused' if self.view.paused else ''}", refresh=False)
        remarks = [remark for remark in (one.in_brief() for one in self._beside) if remark]
        bar.set_postfix_str(" | ".join([describe(self.view), *remarks]), refresh=False)
        bar.update(counts.units - bar.n)
        if refresh:
            bar.refresh()


def _can_be_seen(file: TextIO | None) -> bool:
    return in_notebook() or (file or sys.stderr).isatty()


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook. Looks only at what is loaded already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in getattr(shell, "config", {})


def _bar_kind(file: TextIO | None) -> Callable[..., Any]:
    """A widget in notebooks that have widgets, else text; `tqdm.auto` would warn where there are none."""
    if file is None and in_notebook() and find_spec("ipywidgets") is not None:
        from tqdm.notebook import tqdm as widget

        return widget
    from tqdm import tqdm

    return tqdm
