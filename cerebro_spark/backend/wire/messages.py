"""What driver and workers say to each other: the actions and events of a run, and messages that no log has.

Each message is a dataclass in the codec's form. Reading one never trusts its sender: only the types of one direction
are known there, with their own fields, and everything else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.codec import CodecError, from_json, to_json
from cerebro_spark.events import (
    AbandonUnit,
    DropPartition,
    GroupGaveUp,
    LoadPartition,
    PartitionLoaded,
    PartitionLost,
    RetireWorker,
    RunUnit,
    UnitFailed,
    UnitFinished,
    UnitWithdrawn,
    WithdrawUnit,
)
from cerebro_spark.types import PartitionId, WorkerId


class MessageError(WireError):
    """A message of a type, or with a field, that this version does not know."""


@dataclass(frozen=True, slots=True)
class StartTrouble:
    """Why a worker cannot begin: the user's functions cannot be loaded there, or the store cannot be written to."""

    what: Literal["functions", "store"]
    error: str


@dataclass(frozen=True, slots=True)
class Hello:
    """Worker or parent: the first message, in the session of its run, or in that of the parents.

    `probe` is the blob it has written into the store; `threads` is 0 if unknown.
    """

    worker: WorkerId
    host: str = ""
    pid: int = 0
    threads: int = 0
    probe: str | None = None
    trouble: StartTrouble | None = None
    session: str = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Worker: the process is alive, whatever else it does."""


@dataclass(frozen=True, slots=True)
class OutputLine:
    """Worker: a line that its process printed; `loud` is worth a warning.

    `about` names the trials that it trained then, in words; "" for none.
    """

    text: str
    about: str = ""
    loud: bool = False


@dataclass(frozen=True, slots=True)
class UnitStarted:
    """Worker: the unit with this attempt has begun."""

    attempt: int


@dataclass(frozen=True, slots=True)
class LoadStarted:
    """Worker: the load of this partition has begun."""

    partition: PartitionId


@dataclass(frozen=True, slots=True)
class MemoryUsed:
    """Worker: the most bytes of memory that its process has had so far. Only those of pilots say it."""

    peak: int


@dataclass(frozen=True, slots=True)
class MeetingCall:
    """Worker: what it asks of the meeting of its group, which is that of the unit with this attempt.

    "set" has no answer. "get" is answered once there is a value, "add" with the sum, "has" with "1" or "0". Values are
    in Base64, sums are numbers.
    """

    attempt: int
    number: int
    verb: Literal["set", "get", "add", "has"]
    key: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class MeetingAnswer:
    """Driver: the answer to the call of that number in the meeting of that attempt."""

    attempt: int
    number: int
    value: str


@dataclass(frozen=True, slots=True)
class GroupStalled:
    """Worker: it has waited for other members of its group for long; or, if this is `over`, it waits no longer."""

    attempt: int
    over: bool = False


@dataclass(frozen=True, slots=True)
class RehearseTrial:
    """Driver: train and evaluate one batch with these params, then answer TrialRehearsed.

    Without a `number` no answer is wanted: the worker builds and traces what its first unit needs. If it is `timed`,
    some more batches are trained, and the answer says how long they take.
    """

    params: Mapping[str, Any]
    number: int | None = None
    timed: bool = False


@dataclass(frozen=True, slots=True)
class TrialRehearsed:
    """Worker: the rehearsal with this number is over; `error` says what went wrong, if anything did.

    If it was timed, `seconds` are what a training unit may take, on a partition of average size.
    """

    number: int
    error: str | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Driver: the run is over, end."""


@dataclass(frozen=True, slots=True)
class StartWorker:
    """Driver to a parent: start the worker `name`, which is to join this session. It is the parent's `number`th.

    `job` is a pickle in Base64, as a worker gets it when it is launched, and so is `stores`. Empty `stores` are those
    that the parent was launched with.
    """

    number: int
    name: WorkerId
    session: str
    job: str
    stores: str = ""
    probe: str | None = None


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Driver to a parent: end the worker with this number, whatever it is doing."""

    number: int


@dataclass(frozen=True, slots=True)
class PrepareNext:
    """Driver to a parent: its worker with this number is at work; get a process ready for the next one."""

    number: int


@dataclass(frozen=True, slots=True)
class WorkerPrinted:
    """Parent: the worker with this number printed a line."""

    number: int
    line: OutputLine


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """Parent: nothing is left of the worker with this number; `words` are the last lines that it printed."""

    number: int
    words: tuple[str, ...] = ()


ToParent = StartWorker | KillWorker | PrepareNext
AboutUnit = RunUnit | WithdrawUnit | AbandonUnit
ToWorker = LoadPartition | DropPartition | AboutUnit | RetireWorker | RehearseTrial | MeetingAnswer | ToParent | Stop
WorkerEvent = PartitionLoaded | PartitionLost | UnitFinished | UnitFailed | UnitWithdrawn | GroupGaveUp
FromParent = WorkerPrinted | WorkerEnded
FromMember = MeetingCall | GroupStalled
Progress = UnitStarted | LoadStarted | MemoryUsed
FromWorker = Hello | Heartbeat | OutputLine | Progress | FromMember | TrialRehearsed | FromParent | WorkerEvent
_TO_WORKER: dict[str, type] = {kind.__name__: kind for kind in get_args(ToWorker)}
_FROM_WORKER: dict[str, type] = {kind.__name__: kind for kind in get_args(FromWorker)}


def pack(message: ToWorker | FromWorker) -> bytes:
    """Return a message as the body of a frame.

    Raises:
        ConfigurationError: If it holds a value that JSON cannot.

    >>> pack(UnitStarted(7))
    b'{"type":"UnitStarted","attempt":7}'
    """
    return to_json(message, "type").encode()


def unpack_order(body: bytes) -> ToWorker:
    """Return what the driver said. Raises MessageError for anything that a driver of this version cannot say."""
    message: ToWorker = _unpack(body, _TO_WORKER)
    return message


def unpack_report(body: bytes) -> FromWorker:
    """Return what a worker said. Raises MessageError for anything that a worker of this version cannot say.

    >>> unpack_report(b'{"type":"UnitStarted","attempt":7}')
    UnitStarted(attempt=7)
    """
    message: FromWorker = _unpack(body, _FROM_WORKER)
    return message


def _unpack(body: bytes, kinds: Mapping[str, type]) -> Any:
    try:
        return from_json(body, "type", kinds)
    except CodecError as error:
        raise MessageError(
            f"a message cannot be read: {error}; driver and workers must run the same version of cerebro-spark"
        ) from error
