"""What one turn of the engine took in and decided: the values that observers get and the event log keeps. PURE.

An outcome says what the scheduler made of one event, in as few facts as a reader needs who has no scheduler. It repeats
nothing that the events themselves say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from cerebro_spark.codec import from_plain, to_plain
from cerebro_spark.events import Event
from cerebro_spark.types import PartitionId, Report, TrialId, Unit, UnitKind, WorkerId

TrialStatus = Literal["training", "paused", "stopped", "failed"]


class UnitOrder(NamedTuple):
    """A unit that was given to a worker, under the number of this attempt.

    `bundle` is the attempt of the first unit of the same order, where an order has units of several trials. The
    `partners` run it together with the worker, as a group.
    """

    attempt: int
    worker: WorkerId
    unit: Unit
    bundle: int | None = None
    partners: tuple[WorkerId, ...] = ()

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """All workers that run it, by rank."""
        return (self.worker, *self.partners)


class LoadOrder(NamedTuple):
    """A partition that a worker was told to load."""

    worker: WorkerId
    partition: PartitionId


class TrialState(NamedTuple):
    """Where a trial stands after an event that changed it.

    `until` is the last epoch that it trains, `works` the number of its Works that have taken effect, and `best` its
    best epoch so far.
    """

    trial: TrialId
    status: TrialStatus
    until: int
    works: int
    best: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the scheduler made of one event.

    Attributes:
        counted: False for a unit's result that came too late or twice, and for work asked of a stopped trial.
        orders: The units that were given out.
        loads: The partitions that are to be loaded.
        reports: What the search is told.
        trials: The trials that are in another state now.
        retired: The workers that were let go.
        finished: Whether the run is over.
    """

    counted: bool = True
    orders: tuple[UnitOrder, ...] = ()
    loads: tuple[LoadOrder, ...] = ()
    reports: tuple[Report, ...] = ()
    trials: tuple[TrialState, ...] = ()
    retired: tuple[WorkerId, ...] = ()
    finished: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """Events that were taken in together, each with its outcome.

    Attributes:
        events: The events, in the order in which the scheduler heard them.
        outcomes: One for each event; none at all in logs of versions that did not record them.
        wall_clock: When the turn was logged, in seconds since 1970 (UTC). It is for people: such a clock may jump, so
            nothing is decided by it. None where it is not known.

    >>> from cerebro_spark.events import WorkerLost
    >>> turn = Turn([WorkerLost(1.0, "w0"), WorkerLost(2.0, "w1")], [Outcome(), Outcome(counted=False)])
    >>> [event.worker for event in turn.accepted]
    ['w0']
    """

    events: Sequence[Event]
    outcomes: Sequence[Outcome] = ()
    wall_clock: float | None = None

    def __iter__(self) -> Iterator[tuple[Event, Outcome]]:
        return zip(self.events, self.outcomes, strict=True)

    @property
    def accepted(self) -> list[Event]:
        """The events that counted."""
        return [event for event, outcome in self if outcome.counted]

    @property
    def reports(self) -> list[Report]:
        """All that the search was told in this turn."""
        return [report for outcome in self.outcomes for report in outcome.reports]

    @property
    def recorded(self) -> bool:
        """Whether the outcomes are known."""
        return len(self.outcomes) == len(self.events)

    def split(self) -> Iterator[Turn]:
        """The same as turns of one event each."""
        return (Turn((event,), (outcome,), self.wall_clock) for event, outcome in self)


def events_of(turns: Iterable[Turn]) -> list[Event]:
    """All events of some turns."""
    return [event for turn in turns for event in turn.events]


def outcome_to_plain(outcome: Outcome) -> dict[str, Any]:
    """An outcome as JSON writes it. What is as usual is left out.

    >>> outcome_to_plain(Outcome(orders=(UnitOrder(7, "w0", Unit("t0", 1, "p0")),)))
    {'orders': [[7, 'w0', 't0', 1, 'p0', 'train']]}
    """
    plain: dict[str, Any] = {} if outcome.counted else {"counted": False}
    # One by one: most outcomes are a single order, and a run writes as many as it has events.
    if outcome.orders:
        plain["orders"] = [_plain_order(order) for order in outcome.orders]
    if outcome.loads:
        plain["loads"] = outcome.loads
    if outcome.reports:
        plain["reports"] = [to_plain(report, "report") for report in outcome.reports]
    if outcome.trials:
        plain["trials"] = outcome.trials
    if outcome.retired:
        plain["retired"] = outcome.retired
    if outcome.finished:
        plain["finished"] = True
    return plain


def outcome_from_plain(plain: Mapping[str, Any]) -> Outcome:
    """The outcome that `outcome_to_plain` made this from.

    Raises:
        LookupError, TypeError, ValueError: It is none.
    """
    if not plain:
        return _USUAL
    return Outcome(
        plain.get("counted", True) is True,
        tuple(_unit_order(*order) for order in plain.get("orders", ())),
        tuple(LoadOrder(_text(worker), _text(partition)) for worker, partition in plain.get("loads", ())),
        tuple(_report(report) for report in plain.get("reports", ())),
        tuple(_trial_state(*state) for state in plain.get("trials", ())),
        tuple(_text(worker) for worker in plain.get("retired", ())),
        plain.get("finished", False) is True,
    )


_USUAL = Outcome()
_KINDS, _STATUSES = get_args(UnitKind), get_args(TrialStatus)


def _plain_order(order: UnitOrder) -> list[Any]:
    """Return an order as JSON has it: as few values as there are to say."""
    attempt, worker, (trial, epoch, partition, kind, beside), bundle, partners = order
    plain = [attempt, worker, trial, epoch, partition, kind]
    if partners:
        return [*plain, bundle, [*beside], [*partners]]
    return plain if bundle is None else [*plain, bundle]


def _unit_order(
    attempt: Any,
    worker: Any,
    trial: Any,
    epoch: Any,
    partition: Any,
    kind: Any,
    bundle: Any = None,
    beside: Iterable[Any] = (),
    partners: Iterable[Any] = (),
) -> UnitOrder:
    unit = Unit(_text(trial), _number(epoch), _text(partition), _one_of(_KINDS, kind), tuple(map(_text, beside)))
    known = None if bundle is None else _number(bundle)
    return UnitOrder(_number(attempt), _text(worker), unit, known, tuple(map(_text, partners)))


def _trial_state(trial: Any, status: Any, until: Any, works: Any, best: Any) -> TrialState:
    known = None if best is None else _number(best)
    return TrialState(_text(trial), _one_of(_STATUSES, status), _number(until), _number(works), known)


def _report(plain: Any) -> Report:
    report: Report = from_plain(Report, plain)
    if all(isinstance(value, (int, float)) for value in report.metrics.values()):
        return report
    raise ValueError(f"{report.metrics!r:.80} are no metrics")


def _one_of(known: tuple[Any, ...], value: Any) -> Any:
    if value in known:
        return value
    raise ValueError(f"{value!r:.80} is none of {known}")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"{value!r:.80} is no name")


def _number(value: Any) -> int:
    if isinstance(value, int):
        return value
    raise ValueError(f"{value!r:.80} is no whole number")
