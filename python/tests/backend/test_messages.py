"""The messages of the wire: each arrives as it was sent, and what this version does not know is refused with words."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from wire_credentials import RUN

import cerebro_spark
from cerebro_spark.backend.wire import messages
from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.wire.hub import Hub
from cerebro_spark.backend.wire.messages import (
    FromWorker,
    GroupStalled,
    Heartbeat,
    Hello,
    KillWorker,
    LoadStarted,
    MeetingAnswer,
    MeetingCall,
    MemoryUsed,
    MessageError,
    OutputLine,
    PrepareNext,
    RehearseTrial,
    StartTrouble,
    StartWorker,
    Stop,
    ToWorker,
    TrialRehearsed,
    UnitStarted,
    WorkerEnded,
    WorkerPrinted,
    pack,
    unpack_order,
    unpack_report,
)
from cerebro_spark.errors import ConfigurationError
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
from cerebro_spark.types import CarriedFile, Checkpoint, Metrics, Unit

UNIT = Unit("t0", 1, "p0")
GROUP_UNIT = Unit("t0", 1, "p0", beside=("p1", "p2"))
PARENT = Checkpoint("t0", 1, 2, 3, 4, "digest")
METRICS = Metrics({"loss": float("nan")}, {"loss": 2.0}, {"auc": (1.0, 2.0)}, {"f1": [1, {"a": 2}]})
PARAMS = {"lr": 0.1, "layers": (64, 32), "act": "relu", "nested": {"x": [1, None, True]}}
ORDERS: list[ToWorker] = [
    LoadPartition("w0", "p0", 9.0),
    DropPartition("w0", "p0"),
    RunUnit("w0", UNIT, 7, PARAMS, PARENT, 3, METRICS, True, True, 60.0),
    RunUnit("w0", UNIT, 7, {}),
    RunUnit("w0", GROUP_UNIT, 7, {}, partners=("w1", "w2")),
    AbandonUnit("w1", 7),
    MeetingAnswer(7, 3, "aGVyZQ=="),
    WithdrawUnit("w0", 7),
    RetireWorker("w0", 5.0),
    RehearseTrial(PARAMS, 3),
    RehearseTrial({}),
    StartWorker(2, "w0", "session", "am9i", "c3RvcmVz", "probe"),
    KillWorker(2),
    PrepareNext(2),
    Stop(),
]
REPORTS: list[FromWorker] = [
    Hello("w0", "host", 77, 4, "probe"),
    Hello("w0", trouble=StartTrouble("store", "no space"), session="session"),
    Heartbeat(),
    OutputLine("half a character: \udcff", "t0", True),
    UnitStarted(7),
    LoadStarted("p0"),
    MemoryUsed(1 << 30),
    WorkerPrinted(2, OutputLine("words", "t0")),
    WorkerEnded(2, ("last", "words")),
    TrialRehearsed(3),
    TrialRehearsed(3, "broken"),
    PartitionLoaded(0.0, "w0", "p0"),
    PartitionLost(0.0, "w0", "p0", "gone"),
    UnitFinished(0.0, "w0", UNIT, 7, 1.5, PARENT, METRICS, {"loss": float("inf")}, 0.5),
    UnitFinished(0.0, "w0", UNIT, 7, 1.5, metrics=Metrics(stored=CarriedFile("name", 9, "digest"))),
    UnitFailed(0.0, "w0", UNIT, 7, "broken", "store"),
    UnitFinished(0.0, "w0", GROUP_UNIT, 7, 1.5, PARENT, METRICS, partners=("w1", "w2")),
    UnitWithdrawn(0.0, "w0", UNIT, 7),
    GroupGaveUp(0.0, "w1", GROUP_UNIT, 7, "its loss is a sum", lasting=True),
    MeetingCall(7, 3, "set", "rank/0", "aGVyZQ=="),
    GroupStalled(7, over=True),
]


def name(message: object) -> str:
    return type(message).__name__


@pytest.mark.parametrize("order", ORDERS, ids=name)
def test_orders_arrive_as_they_were_sent(order: ToWorker) -> None:
    assert repr(unpack_order(pack(order))) == repr(order)


@pytest.mark.parametrize("report", REPORTS, ids=name)
def test_reports_arrive_as_they_were_sent(report: FromWorker) -> None:
    assert repr(unpack_report(pack(report))) == repr(report)


def test_every_message_is_tried() -> None:
    assert {type(order) for order in ORDERS} == set(get_args(ToWorker))
    assert {type(report) for report in REPORTS} == set(get_args(FromWorker))


@pytest.mark.parametrize("order", ORDERS, ids=name)
def test_a_driver_takes_no_orders(order: ToWorker) -> None:
    with pytest.raises(MessageError, match="is not a type that this version knows here"):
        unpack_report(pack(order))


@pytest.mark.parametrize("report", REPORTS, ids=name)
def test_a_worker_takes_no_reports(report: FromWorker) -> None:
    with pytest.raises(MessageError, match="is not a type that this version knows here"):
        unpack_order(pack(report))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"type":"Nonsense"}', "'Nonsense' is not a type that this version knows"),
        (b'{"type":"WorkerLost","at":1,"worker":"w0"}', "'WorkerLost' is not a type"),
        (b'{"type":"started","attempt":7}', "'started' is not a type"),
        (b'{"type":["UnitStarted"],"attempt":7}', "is not a value that this version knows"),
        (b'{"type":"UnitStarted","attempt":7,"colour":1}', "UnitStarted has no field 'colour'"),
        (b'{"type":"UnitStarted"}', "missing 1 required positional argument: 'attempt'"),
        (b'{"type":"UnitStarted","attempt":"7"}', "'7' is no int"),
        (b'{"type":"UnitFailed","at":0,"worker":"w","unit":["t",1,"p"],"attempt":1,"error":""}', "is no Unit"),
        (b'{"attempt":7}', "is not a value that this version knows"),
        (b'["UnitStarted", 7]', "is not a value that this version knows"),
        (b"7", "is not a value that this version knows"),
        (b"no JSON", "is not a value that this version knows"),
        (b"\xff\xfe", "is not a value that this version knows"),
        (b"[" * 100_000, "is not a value that this version knows"),
    ],
)
def test_what_is_not_known_is_refused_with_what_to_do(body: bytes, said: str) -> None:
    with pytest.raises(MessageError) as refused:
        unpack_report(body)
    assert said in str(refused.value)
    assert "driver and workers must run the same version of cerebro-spark" in str(refused.value)
    assert isinstance(refused.value, WireError)


def test_a_blame_that_is_none_is_refused() -> None:
    body = json.loads(pack(UnitFailed(0.0, "w0", UNIT, 7, "broken")))
    with pytest.raises(MessageError, match="'nobody' is no"):
        unpack_report(json.dumps({**body, "blame": "nobody"}).encode())


def test_what_json_cannot_hold_is_refused_where_it_is_sent() -> None:
    hub = Hub(RUN.driver, lambda peer, message: None, lambda peer, reason: None)
    try:
        with pytest.raises(ConfigurationError, match=r"params\.act.*object"):
            hub.send(1, RehearseTrial({"act": object()}))
    finally:
        hub.close()


def modules() -> list[Path]:
    backend = Path(cerebro_spark.__file__).parent / "backend"
    return sorted(path for path in backend.rglob("*.py") if path.parent.name != "wire")


def is_string_keyed(node: ast.AST) -> bool:
    """Whether a message would be read, or written, by a key such as "type"."""
    match node:
        case ast.Subscript(slice=ast.Constant(value="type" | "attempt" | "unit" | "partition" | "params")):
            return True
        case ast.Dict(keys=keys):
            return any(isinstance(key, ast.Constant) and key.value == "type" for key in keys)
        case _:
            return False


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.stem)
def test_no_message_is_read_by_its_keys(path: Path) -> None:
    assert not [node.lineno for node in ast.walk(ast.parse(path.read_text())) if is_string_keyed(node)]  # type: ignore[attr-defined]


def test_messages_of_this_module_are_all_said_by_someone() -> None:
    own: list[Any] = [
        value for value in vars(messages).values() if getattr(value, "__module__", "") == messages.__name__
    ]
    records = {value for value in own if hasattr(value, "__dataclass_fields__")}
    assert records - {StartTrouble} <= {*get_args(ToWorker), *get_args(FromWorker)}
