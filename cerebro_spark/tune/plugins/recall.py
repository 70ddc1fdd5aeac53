"""What a led run said before it was interrupted: its log as a script, and what its leader proposed. It asks nobody.

A leader, Hyperopt or Optuna, cannot be made to say the same things twice. So a run that goes on hears from its log what
was said, until it is where it was; from then on the leader is asked.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from cerebro_spark.codec import CodecError, from_plain, to_plain
from cerebro_spark.errors import EventLogError
from cerebro_spark.events import CommandAnswered, CommandReceived, Event, RunStarted, SearchEnded, WorkAdded
from cerebro_spark.search import Done, Wait
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.turns import Outcome, Turn
from cerebro_spark.types import Report, TrialId, Work

_About = Mapping[str, Any]
_Key = tuple[TrialId, int, str | None]
Answer = Work | Done


class Recollection:
    """The answers of a search, by the reports that they followed.

    A log may end within a turn. So if nothing follows the last answers, there may have been more of them.

    Args:
        turns: All turns of the log, with their outcomes.

    >>> events = [WorkAdded(0.0, Work("t0", {}, 1)), SearchEnded(0.0)]
    >>> past = Recollection([Turn(events, [Outcome(), Outcome()])])
    >>> past.ask(), past.ask()
    (Work(trial='t0', params={}, until_epoch=1, warm_start=None), Done())
    >>> past.tell(Report("t0", 1, {"loss": 1.0}))
    >>> past.ask() is None
    True
    """

    def __init__(self, turns: Iterable[Turn]) -> None:
        self._rounds: dict[_Key | None, list[Answer]] = {None: []}
        current, cut, over, stop = self._rounds[None], True, False, ""
        for event, outcome in (step for turn in turns for step in turn):
            # What a person asked for is another kind of event, and no answer of the search.
            if type(event) is WorkAdded:
                current.append(event.work)
            elif isinstance(event, SearchEnded):
                current.append(Done())
                over = True
            elif not isinstance(event, RunStarted) and not _answers(event, stop):
                cut = False
            if outcome.reports:
                current, cut, stop = [], True, _stop_in(event, outcome)
                self._rounds.update((_key(report), current) for report in outcome.reports)
        self._cut = current if cut and not over else None
        """The last answers, if the log may have lost some that followed them."""
        self._told: list[_Key | None] = [None]
        self._now: deque[Answer] = deque()
        self._all_known = True

    @property
    def first(self) -> Work | None:
        """The first that was asked for; None if nothing was."""
        return next((answer for answer in self._rounds[None] if isinstance(answer, Work)), None)

    def tell(self, report: Report) -> None:
        """Take note of a report, as the search did then."""
        self._told.append(_key(report))

    def ask(self) -> Work | Wait | Done | None:
        """Return what was said after what was told; None if the log does not say: the leader must be asked."""
        if self._told:
            found = next((self._rounds[key] for key in self._told if key in self._rounds), None)
            if found is None:
                return None
            self._told, self._now, self._all_known = [], deque(found), found is not self._cut
        if self._now:
            return self._now.popleft()
        return Wait() if self._all_known else None

    def asked_again(self, report: Report) -> bool | None:
        """Return whether a trial was asked for again after a report; None if the log does not say."""
        found = self._rounds.get(_key(report))
        if found is None:
            return None
        if any(isinstance(answer, Work) and answer.trial == report.trial for answer in found):
            return True
        return None if found is self._cut else False


class Proposals:
    """What a leader needs to know its trials again: files in the store, which are never changed or deleted.

    A driver that died, or was taken over, may have left one for a trial that its log does not have, and that has other
    params by now. So each is found by the params that the log has.

    Args:
        store: The store of the run.
        run: The id of the run.
    """

    def __init__(self, store: Store, run: str) -> None:
        self._store, self._run = store, run
        self._names: list[str] | None = None

    def keep(self, trial: TrialId, params: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Keep what is known of a trial, before it is asked for."""
        data = json.dumps(to_plain({"params": params, "about": about}, "proposal"), allow_nan=False)
        token = hashlib.sha256(data.encode()).hexdigest()[:16]
        self._store.write(paths.proposal(self._run, trial, token), data.encode())

    def read(self, trial: TrialId, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what is known of a trial with these params.

        Raises:
            EventLogError: It is not there, or damaged.
        """
        if self._names is None:
            self._names = self._store.list(paths.proposals(self._run))
        wanted = to_plain(params, "params")  # as JSON: there NaN is NaN
        for name in self._names:
            if paths.proposed_trial(name) == trial:
                found, about = self._load(name)
                if found == wanted:
                    return about
        raise EventLogError(
            f"run {self._run} does not say what its leader knew of trial {trial}, so it cannot be resumed: it was begun"
            f" by an earlier version, or files in {paths.proposals(self._run)} were deleted"
        )

    def _load(self, name: str) -> tuple[Any, Mapping[str, Any]]:
        """Return the params as JSON, and what is known."""
        try:
            found = json.loads(self._store.read(name))
            about: Mapping[str, Any] = from_plain(_About, found["about"])
            return found["params"], about
        except (ValueError, LookupError, TypeError, CodecError) as error:
            raise EventLogError(f"{name} in {self._store.url} is damaged: {type(error).__name__}: {error}") from error


def _stop_in(event: Event, outcome: Outcome) -> str:
    """Return the id of the command that ended trials; "" if none did."""
    if isinstance(event, CommandReceived) and any(report.ended for report in outcome.reports):
        return event.command.id
    return ""


def _answers(event: Event, stop: str) -> bool:
    """Whether a person is answered whose command ended a trial: that comes before what the search says to it.

    What a backend answers comes after all that the search said.
    """
    return isinstance(event, CommandAnswered) and event.command == stop


def _key(report: Report) -> _Key:
    return report.trial, report.epoch, report.error
