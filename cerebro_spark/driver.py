"""One driver's part of a run: all that surrounds the engine. It decides nothing.

Whatever ends it early (an interrupt, a lost store, a dead process), the log of the run is complete.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.driver.deletions import CheckpointSweep, MetricStateFiles
from cerebro_spark.backend.job import Job
from cerebro_spark.engine import Engine, Expected, Observer
from cerebro_spark.errors import EventLogError, ReplayDiverged
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import CommandReceived, Settings
from cerebro_spark.forecast.observer import LiveForecasts
from cerebro_spark.mailbox import MailboxPoller
from cerebro_spark.progress import Progress, Remarking
from cerebro_spark.recipe import Recipe
from cerebro_spark.relay import Relay
from cerebro_spark.replays import ReplayChecker, ReplaySearch
from cerebro_spark.store.base import Store
from cerebro_spark.store.retrying import RetryingStore
from cerebro_spark.turns import Turn, events_of

_log = logging.getLogger("cerebro_spark")
_PATIENCE_TO_SWEEP = 10.0
"""Seconds for which a failing store is tried again where only superfluous files are deleted."""
_this_thread = threading.local()


def drives_here(store: Store, run: str) -> bool:
    """Return whether this very thread drives a run: then it must not wait for what only the driver can do.

    Args:
        store: The store of the run.
        run: The id of the run.
    """
    return (store.url, run) in getattr(_this_thread, "runs", ())


@contextmanager
def _driving_here(store: Store, run: str) -> Iterator[None]:
    """Let `drives_here` know of a run for the length of a block; a tracker of it may drive another one meanwhile."""
    before: tuple[tuple[str, str], ...] = getattr(_this_thread, "runs", ())
    _this_thread.runs = (*before, (store.url, run))
    try:
        yield
    finally:
        _this_thread.runs = before


class Driver:
    """Drives a run from its beginning, or from where it stopped, to its end.

    Args:
        store: The store of the run, as it was opened.
        run: The id of the run.
        recipe: What runs; it is not shared with anybody.
        backend: Where units run.
        settings: What the scheduler is made from.
        patience: The seconds for which a failing store is tried again.
        log: The log of the run.
        earlier: The turns after which the run goes on. Empty by default: it begins now.
        relay: Where commands come in. Defaults to None: from the mailbox in the store alone.
        way_on: What to do if the run ends early, for people. Defaults to None: `cs.resume`.
        expected: What units of a configuration were measured to take, before the run. Knows nothing by default.

    Attributes:
        begun: Whether the log of the run has anything yet.
    """

    _engine: Engine

    def __init__(
        self,
        store: Store,
        run: str,
        recipe: Recipe,
        backend: Backend,
        settings: Settings,
        patience: float,
        log: EventLog,
        earlier: Sequence[Turn] = (),
        relay: Relay | None = None,
        way_on: str | None = None,
        expected: Expected = lambda params: None,
    ) -> None:
        self._plain_store = store
        self._store = RetryingStore(store, seconds=patience)
        self._run = run
        self._recipe = recipe
        self._backend = backend
        self._settings = settings
        self._patience = patience
        self._earlier = earlier
        self._relay = relay or Relay()
        self._expected = expected
        self._way_on = way_on or f'cs.resume("{store.url}", "{run}", backend=...)'
        self._script = recipe.search.script if isinstance(recipe.search, ReplaySearch) else None
        self._log = log
        superfluous = RetryingStore(store, seconds=min(patience, _PATIENCE_TO_SWEEP))
        self._sweeper, self._carried = CheckpointSweep(superfluous, run), MetricStateFiles(superfluous, run)
        self._inherited = self.begun = bool(earlier)

    def drive(self, recipe: str, observers: Sequence[Observer], progress: bool | None) -> None:
        """Run to the end.

        Args:
            recipe: The digest of the recipe.
            observers: Called with every turn, after it was logged.
            progress: Whether to show a progress bar; None for where it can be seen.
        """
        self._backend.bind(self._job())
        checker, log = self._checker(), self._log
        try:
            with closing(log), self._sweeper, self._carried, self._bar(progress, observers) as watching:
                mailbox = MailboxPoller(self._plain_store, self._run, self._relay.post)
                search, settings = self._recipe.search, self._scripted()
                # The script of a replay may be long: whoever makes its forecasts reads it from the recipe.
                forecasts = LiveForecasts(self._plain_store, None if self._script else search, self._run)
                checking = [checker] if checker else []
                all_observers: list[Observer] = [self._note, watching, mailbox.note, forecasts, *checking, *observers]
                self._engine = Engine(
                    search,
                    settings,
                    self._backend,
                    log,
                    self._run,
                    all_observers,
                    expected=self._expected,
                    recipe=recipe,
                )
                go = self._engine.resume if self._earlier else self._engine.run
                self._clear_away(mailbox, forecasts)
                # Commands that wait in the mailbox are handed to the engine before it begins.
                connected = self._relay.connected(self._engine.post, self._known_commands())
                with _driving_here(self._plain_store, self._run), forecasts, connected, mailbox:
                    go()
                self._sweep()
                self._carried.clear(inherited=bool(self._earlier))
        except BaseException as error:
            self._say_how_to_go_on(error)
            raise
        if checker is not None:
            checker.finish()

    def _bar(self, show: bool | None, observers: Sequence[object]) -> Progress:
        return Progress(show, self._earlier, beside=[one for one in observers if isinstance(one, Remarking)])

    def _clear_away(self, mailbox: MailboxPoller, forecasts: LiveForecasts) -> None:
        """Have deleted what earlier drivers left: files of commands that the log has, and what they foresaw."""
        for turn in self._earlier:
            mailbox.note(turn)
        if self._earlier:
            forecasts.forget_earlier()

    def _known_commands(self) -> list[str]:
        events = events_of(self._earlier)
        return [event.command.id for event in events if isinstance(event, CommandReceived)]

    def _job(self) -> Job:
        job = self._recipe.job(self._run, self._store)
        data = dataclasses.replace(job.dataset, store=RetryingStore(job.dataset.store, seconds=self._patience))
        settings = self._scripted()
        return dataclasses.replace(job, dataset=data, smallest_batch=settings.smallest_batch, digest=settings.digest)

    def _scripted(self) -> Settings:
        """Return the settings; a replay follows a script, and one that is resumed has it in its log already."""
        if self._script is None:
            return self._settings
        if self._earlier:
            self._script.check_workers(self._backend.num_workers)
            return self._settings
        return self._script.settings_like(self._settings)

    def _checker(self) -> ReplayChecker | None:
        if self._script is None:
            return None
        checker = ReplayChecker(self._script)
        for turn in self._earlier:
            checker(turn)
        return checker

    def _note(self, turn: Turn) -> None:
        """Told of every turn first, once it is logged and before anything is done about it.

        With the first event the log belongs to this driver, and no other one writes checkpoints that must be kept. So
        this is when those are deleted that earlier drivers left behind.
        """
        self.begun = True
        for event in turn.events:
            self._carried.note(event, self._engine.scheduler.state.trials)
        if self._inherited:
            self._inherited = False
            self._sweep(self._log.is_mine)

    def _sweep(self, owned: Callable[[], bool] = lambda: True) -> None:
        self._sweeper.sweep(self._engine.scheduler.state.retention.kept(), owned)

    def _say_how_to_go_on(self, error: BaseException) -> None:
        if not self.begun or isinstance(error, (EventLogError, ReplayDiverged)):
            return
        note = f"run {self._run} can be resumed: {self._way_on}"
        error.add_note(note)
        _log.warning("the run ended early (%s); %s", type(error).__name__, note)
