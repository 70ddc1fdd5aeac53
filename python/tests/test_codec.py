"""Events survive the trip through JSON exactly; what cannot is refused by name."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.codec import decode, encode
from cerebro_spark.errors import ConfigurationError, EventLogError
from cerebro_spark.events import EVENTS, Event, RunStarted, Settings, UnitFinished, WorkAdded, WorkerLost
from cerebro_spark.types import Checkpoint, Metrics, Objective, Partition, Unit, Work

numbers = st.floats(allow_nan=False) | st.integers(-(2**53), 2**53)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5).filter(lambda key: not key.startswith("$")), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)
params = st.dictionaries(
    st.text(min_size=1, max_size=6).filter(lambda key: not key.startswith("$")), values, max_size=4
)
checkpoints = st.builds(
    Checkpoint, st.text(max_size=5), st.integers(0, 99), st.integers(0, 99), st.integers(0), st.integers(0)
)
partitions = st.builds(
    Partition, st.text(max_size=9), st.sampled_from(["train", "validation"]), st.integers(0), st.integers(0)
)
events = st.one_of(
    st.builds(WorkerLost, st.floats(0, 1e9), st.text(max_size=9), st.text(max_size=30)),
    st.builds(
        WorkAdded,
        st.floats(0, 1e9),
        st.builds(Work, st.text(max_size=5), params, st.integers(1, 99), st.none() | checkpoints),
        st.none() | st.floats(0, 1e6),
    ),
    st.builds(
        UnitFinished,
        st.floats(0, 1e9),
        st.text(max_size=5),
        st.builds(
            Unit, st.text(max_size=5), st.integers(1, 9), st.text(max_size=5), st.sampled_from(["train", "eval"])
        ),
        st.integers(0),
        st.floats(0, 1e9),
        st.none() | checkpoints,
        st.builds(Metrics, st.just({"loss": 0.5}), st.just({"loss": 2.0})),
        exchanged=st.integers(0, 2**63),
    ),
    st.builds(
        RunStarted,
        st.floats(0, 1e9),
        st.text(max_size=9),
        st.builds(
            Settings,
            st.lists(partitions, max_size=3).map(tuple),
            st.integers(1, 99),
            objective=st.none() | st.just(Objective("val_auc", "max")),
        ),
    ),
)


@given(events)
def test_round_trip(event: Event) -> None:
    line = encode(event)
    assert "\n" not in line
    json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert decode(line) == event


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_that_json_does_not_know(value: float) -> None:
    metrics = Metrics({"loss": value}, {"loss": 1.0})
    back = decode(encode(UnitFinished(0.0, "w", Unit("t", 1, "p"), 1, 1.0, None, metrics)))
    assert isinstance(back, UnitFinished)
    assert back.metrics.sums["loss"] == value or (math.isnan(value) and math.isnan(back.metrics.sums["loss"]))


def test_units_of_before_exchanges_were_counted_are_read() -> None:
    event = UnitFinished(1.0, "w0", Unit("t0", 1, "p0", beside=("p1",)), 1, 2.0, partners=("w1",))
    line = encode(event)
    assert ',"exchanged":0' in line
    assert decode(line.replace(',"exchanged":0', "")) == event


def test_every_event_has_a_name_and_frozen_fields() -> None:
    assert set(EVENTS) == {kind.__name__ for kind in [*Event.__subclasses__(), *WorkAdded.__subclasses__()]}
    assert all(dataclasses.fields(kind)[0].name == "at" for kind in EVENTS.values())


def test_what_cannot_be_logged_is_refused_by_its_path() -> None:
    work = WorkAdded(0.0, Work("t", {"layers": {"act": object()}}, 1))
    with pytest.raises(ConfigurationError, match=r"params\.layers\.act.*object"):
        encode(work)
    with pytest.raises(ConfigurationError, match=r"\$x"):
        encode(WorkAdded(0.0, Work("t", {"$x": 1}, 1)))


@pytest.mark.parametrize(
    "line",
    [
        '{"event":"Nonsense","at":1}',
        "[1]",
        "7",
        "not json",
        "[" * 100_000,
        '{"at":1,"worker":"w"}',
        '{"event":["WorkerLost"],"at":1}',
        '{"event":"WorkerLost","at":1,"worker":"w","x":1}',
        '{"event":"WorkerLost","at":1}',
        '{"event":"WorkerLost","at":"soon","worker":"w"}',
        '{"event":"WorkerLost","at":{"$float":"soon"},"worker":"w"}',
        '{"event":"WorkerLost","at":null,"worker":"w"}',
        '{"event":"WorkerLost","at":1,"worker":7}',
        '{"event":"WorkerLost","at":1,"worker":"w","blames_unit":"yes"}',
        '{"event":"WorkAdded","at":1,"work":["t0",{},1]}',
        '{"event":"WorkAdded","at":1,"work":null}',
        '{"event":"RunStarted","at":1,"run":"r","settings":{"partitions":["p0"],"workers":1}}',
        '{"event":"UnitFailed","at":1,"worker":"w","unit":null,"attempt":1,"error":"x"}',
    ],
)
def test_foreign_lines_are_refused(line: str) -> None:
    with pytest.raises(EventLogError):
        decode(line)
