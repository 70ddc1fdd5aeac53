"""What the handles of live runs have in common: live views, and commands. It trains nothing."""

from __future__ import annotations

import getpass
import html
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd

from cerebro_spark.checks import check_at_least, check_seconds
from cerebro_spark.commands import Command, Verb
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.forecast.files import read_latest
from cerebro_spark.forecast.questions import wait_for_answer
from cerebro_spark.forecast.values import Forecast
from cerebro_spark.inbox import write_command
from cerebro_spark.live.live_view import Answer, LiveView
from cerebro_spark.progress import describe
from cerebro_spark.result import Result, display, tables
from cerebro_spark.run_view import Counts, RunView
from cerebro_spark.store.base import Store
from cerebro_spark.types import TrialId, WorkerId

if TYPE_CHECKING:
    from cerebro_spark.dashboard.notebook import Dashboard

Status = Literal["starting", "running", "paused", "ending", "done", "failed", "stopped"]
OVER: tuple[Status, ...] = ("done", "failed", "stopped")


class RunHandle(ABC):
    """A run that may be under way: `search.start` and `cs.attach` return one.

    Its views are snapshots: each look shows the run as it is then, and what was looked at does not change. Any thread
    may use it. A command waits for its answer and returns it; a refused one raises CommandRefused with the reason.
    Arguments that cannot be right are refused before anything is sent.

    Args:
        store: The store of the run.
        run: The id of the run.
    """

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._live = LiveView()

    # -- how it stands

    @property
    def id(self) -> str:
        """The id of the run in its store."""
        return self._run

    @property
    @abstractmethod
    def status(self) -> Status:
        """How the run stands.

        "starting", "running", "paused" or "ending" while it is under way; then "done"; or "failed" or "stopped", if it
        ended early: `cs.resume` continues such a run.
        """

    @property
    @abstractmethod
    def error(self) -> BaseException | None:
        """What ended the run early; None if nothing did, or if that is not known here."""

    @property
    @abstractmethod
    def result(self) -> Result | None:
        """The result of the run; None before it is done."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the run is done.

        Args:
            timeout: The seconds to wait at most. Defaults to None: as long as it takes.

        Returns:
            The result of the run.

        Raises:
            NoAnswerYet: The run was not done in time. It goes on.
            CerebroError: The run ended early; the message says how to go on.
        """

    # -- what there is to see

    def snapshot(self) -> RunView:
        """Look at the run.

        Returns:
            The run as it is now, of which the tables below are made. Its units are only counted.
        """
        return self._live.snapshot()

    @property
    def trials(self) -> pd.DataFrame:
        """A row for each trial so far, best first, with the columns of `result.trials`."""
        return tables.trials_table(self.snapshot())

    @property
    def best(self) -> tables.BestTrial | None:
        """The trial with the best epoch so far; None if there is none yet, or none with a finite value."""
        return tables.find_best(self.snapshot())

    @property
    def history(self) -> pd.DataFrame:
        """A row for each epoch of each trial so far, with the columns of `result.history`."""
        return tables.history_table(self.snapshot())

    @property
    def workers(self) -> pd.DataFrame:
        """A row for each worker that ever came.

        The columns are worker, host, up, doing (in words), since (in seconds of the run) and queued (how many units
        wait at the worker).
        """
        return tables.workers_table(self.snapshot())

    @property
    def progress(self) -> Counts:
        """How many units, epochs and trials are done, of how many that were asked for so far, and how many workers."""
        return self.snapshot().counts()

    @property
    def forecast(self) -> Forecast | None:
        """When the run will be done, as it seems; None if there is no forecast yet. It prints as a sentence.

        The driver has forecasts made some seconds after the first units, and writes them to the store, from where this
        reads the newest. While nobody drives the run there is none.
        """
        return None if self.status in OVER else read_latest(self._store, self._run)

    def what_if(
        self,
        verb: Verb,
        *,
        trial: TrialId = "",
        epochs: int | None = None,
        params: Mapping[str, Any] | None = None,
        warm_start: bool = True,
        workers: int = 0,
        worker: WorkerId = "",
        timeout: float = 60.0,
    ) -> Forecast:
        """Ask when the run would be done after a command, which is not given.

        Args:
            verb: The name of the command, such as "stop_trial".
            trial: The trial that it is about. Defaults to "": none.
            epochs: How many further epochs a trial would train. Defaults to None: as far as it was to go.
            params: Params of a clone that would differ. Defaults to None: none.
            warm_start: Whether a clone would begin with the trial's weights. Defaults to True.
            workers: How many workers would be added. Defaults to 0: none.
            worker: The worker that would be removed. Defaults to "": none.
            timeout: The seconds to wait for the answer. Defaults to 60.0.

        Returns:
            The forecast of the run after that command.

        Raises:
            NoAnswerYet: There is no answer yet, or there will be none: nobody drives the run, it is paused, or nothing
                can be foreseen of it. The message says which.

        Examples:
            >>> run.what_if("stop_trial", trial="t7")  # doctest: +SKIP
            done at 14:12
        """
        check_seconds("timeout", timeout)
        trial = self._known_trial(trial) if trial else ""
        about: dict[str, Any] = {"trial": trial, "worker": worker, "workers": workers, "epochs": epochs}
        command = Command(verb, params=dict(params or {}), warm_start=warm_start, **about)
        write_command(command)  # what cannot be logged is refused before it is sent
        why_none = lambda: self._why_nothing_is_foreseen(verb)  # noqa: E731 (a name helps to read the next line)
        return wait_for_answer(self._store, self._run, command, timeout, why_none=why_none)

    def _why_nothing_is_foreseen(self, verb: Verb) -> str:
        """Return why no forecast will say what a command would change; "" if one may."""
        status = self.status
        if status in OVER:
            return f"run {self._run} is {status}, and nobody makes forecasts of it"
        return "the run is paused, so ask again when it goes on" if status == "paused" and verb != "unpause" else ""

    def dashboard(self, *, read_only: bool = False) -> Dashboard:
        """Start a dashboard of the store in a process of its own, or find the one that was started, and open this run.

        It prints the link, and in a notebook shows the page. It ends with this process.

        Args:
            read_only: Whether it can send no commands. Defaults to False.

        Returns:
            The dashboard, with its `link`.

        Raises:
            MissingDependency: The extra `dashboard` is not installed.
        """
        from cerebro_spark.dashboard.notebook import open_dashboard

        return open_dashboard(self._store, self._run, read_only=read_only)

    # -- what can be told to it

    def stop_trial(self, trial: TrialId, *, timeout: float = 60.0) -> Answer:
        """End a trial. Units that have not begun are withdrawn; the trial keeps its last checkpoint until the run ends.

        Args:
            trial: The id of the trial.
            timeout: The seconds to wait for the answer. Defaults to 60.0.

        Returns:
            The answer of the run.
        """
        return self._command("stop_trial", timeout, trial=self._known_trial(trial))

    def resume_trial(self, trial: TrialId, epochs: int | None = None, *, timeout: float = 60.0) -> Answer:
        """Let a trial go on that was stopped, or that is at its end.

        Args:
            trial: The id of the trial.
            epochs: How many further epochs. Defaults to None: as far as it was to go.
            timeout: The seconds to wait for the answer. Defaults to 60.0.

        Returns:
            The answer of the run.
        """
        return self._command("resume_trial", timeout, trial=self._known_trial(trial), epochs=epochs)

    def clone(
        self,
        trial: TrialId,
        params: Mapping[str, Any] | None = None,
        *,
        warm_start: bool = True,
        epochs: int | None = None,
        timeout: float = 60.0,
    ) -> Answer:
        """Train another trial with the params of this one, some of them changed.

        Args:
            trial: The id of the trial.
            params: The params that are to differ. Defaults to None: none.
            warm_start: Whether it begins with the weights of the trial. Defaults to True.
            epochs: How many epochs it is trained for. Defaults to None: as many as the trial was to be.
            timeout: The seconds to wait for the answer. Defaults to 60.0.

        Returns:
            The answer of the run; its `trial` is the id of the new trial.
        """
        if not isinstance(params, Mapping | None):
            raise ConfigurationError(f"`params` is {params!r}, but must be a dict of the params that are to differ")
        if not isinstance(warm_start, bool):
            raise ConfigurationError(f"`warm_start` is {warm_start!r}, but must be True or False")
        changed = {"params": dict(params or {}), "warm_start": warm_start}
        return self._command("clone", timeout, trial=self._known_trial(trial), epochs=epochs, **changed)

    def add_workers(self, workers: int, *, timeout: float = 60.0) -> Answer:
        """Have the backend start further workers.

        Args:
            workers: How many.
            timeout: The seconds to wait for the answer. Defaults to 60.0.

        Returns:
            The answer of the run.
        """
        check_at_least("workers", workers, 1)
        return self._command("add_workers", timeout, workers=workers)

    def remove_worker(self, worker: WorkerId, *, timeout: float = 60.0) -> Answer:
        """Let a worker go.

        Args:
            worker: The name of the worker, as in `workers`.
            timeout: The seconds to wait for the answer. Defaults to 60.0.

        Returns:
            The answer of the run.
        """
        known = self.snapshot().workers
        if worker not in known:
            raise ConfigurationError(f"run {self._run} has no worker {worker!r}: it has {list(known)}")
        return self._command("remove_worker", timeout, worker=worker)

    def pause(self, *, timeout: float = 60.0) -> Answer:
        """Let units that run end, and begin no others. Workers stay, and `time_budget` stands still.

        Args:
            timeout: The seconds to wait for the answer. Defaults to 60.0.

        Returns:
            The answer of the run.
        """
        return self._command("pause", timeout)

    def unpause(self, *, timeout: float = 60.0) -> Answer:
        """Let a paused run go on.

        Args:
            timeout: The seconds to wait for the answer. Defaults to 60.0.

        Returns:
            The answer of the run.
        """
        return self._command("unpause", timeout)

    def end(self, *, timeout: float = 60.0) -> Answer:
        """End the run in good order: units that run end, no others begin, and the result can be used.

        Args:
            timeout: The seconds to wait for the answer. Defaults to 60.0.

        Returns:
            The answer of the run.
        """
        return self._command("end", timeout)

    def kill(self, *, timeout: float = 60.0) -> Answer:
        """End the driver of the run at once, as Ctrl-C does. `cs.resume` continues the run.

        Args:
            timeout: The seconds to wait for the answer. Defaults to 60.0.

        Returns:
            The answer of the run.
        """
        return self._command("kill", timeout)

    # -- what people see

    def __repr__(self) -> str:
        error = "" if self.error is None else f" | {type(self.error).__name__}: {self.error}".splitlines()[0]
        return f"Run {self._run} ({self.status}): {describe(self.snapshot())}{error}"

    def _repr_html_(self) -> str:
        view = self.snapshot()
        head = f"<p>Run {html.escape(self._run)} ({self.status}): {html.escape(describe(view))}</p>"
        error = "" if self.error is None else f"<pre>{html.escape(str(self.error))}</pre>"
        return f"<div>{head}{error}{display.table_as_html(view)}</div>"

    # -- what the kinds of handles do in their own ways

    @abstractmethod
    def _send(self, command: Command, timeout: float) -> Answer:
        """Send a command and wait for its answer."""

    def _command(self, verb: Verb, timeout: float, **about: Any) -> Answer:
        check_seconds("timeout", timeout)
        if about.get("epochs") is not None:
            check_at_least("epochs", about["epochs"], 1)
        command = Command(verb, by=author(), **about)
        write_command(command)  # what cannot be logged is refused before it is sent
        return self._send(command, timeout)

    def _known_trial(self, trial: TrialId) -> TrialId:
        return tables.check_trial(self.snapshot(), trial)


def author() -> str:
    """Return who gives a command, for people."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as containers may have one
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
