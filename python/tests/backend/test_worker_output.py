"""What workers print: it reaches the driver's log, with worker and trial, and never too much of it."""

from __future__ import annotations

import io
import logging
import os
import socket
import threading
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from small_search import small_dataset, torch_model_fn
from wire_credentials import RUN

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.backend.wire.connection import DriverConnection
from cerebro_spark.backend.wire.hub import Hub
from cerebro_spark.backend.wire.messages import FromWorker, OutputLine, Stop
from cerebro_spark.backend.worker.output import LineQuota, mark_trials, read_lines
from cerebro_spark.backend.worker.session import WorkerSpec
from cerebro_spark.backend.worker.spark_task import run_worker
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import Settings
from cerebro_spark.search import FixedSearch
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec


def passed_on(data: bytes, is_error: bool = True, burst: int = 9) -> tuple[list[OutputLine], list[str]]:
    said: list[OutputLine] = []
    kept: list[str] = []
    read_lines(io.BytesIO(data), is_error, LineQuota(burst, 1.0, clock=lambda: 0.0), said.append, kept.append)
    return said, kept


def test_a_line_has_the_trial_that_was_named_before_it() -> None:
    said, kept = passed_on(b"hello\n\n\x1etrial:t1\none\n\ntwo\n\x1etrial:\nbye")
    assert said == [OutputLine("hello"), OutputLine("one", "t1"), OutputLine("two", "t1"), OutputLine("bye")]
    assert kept == ["hello", "one", "two", "bye"]


def test_what_a_bundle_prints_is_of_all_its_trials(capfd: pytest.CaptureFixture[str]) -> None:
    mark_trials("t1", "t2")
    os.write(1, b"one")
    mark_trials(*(f"t{number}" for number in range(32)))
    os.write(1, b"two")
    mark_trials()
    os.write(1, b"three")
    said, _ = passed_on(capfd.readouterr().out.encode())
    about = [(line.text, line.about) for line in said]
    assert about == [("one", "trials t1 and t2"), ("two", "trials t0, t1 and 30 more"), ("three", "")]


@pytest.mark.parametrize(
    ("line", "loud"),
    [
        ("model.py:3: UserWarning: that will not do", True),
        ("WARNING:root:nor this", True),
        ("ERROR:torch:gone", True),
        ("RuntimeError: gone", True),
        ("no warning here", False),
    ],
)
def test_warnings_and_errors_are_loud_on_standard_error(line: str, loud: bool) -> None:
    assert passed_on(line.encode())[0] == [OutputLine(line, loud=loud)]
    assert passed_on(line.encode(), is_error=False)[0] == [OutputLine(line)]


def test_too_much_is_left_out_and_counted() -> None:
    said, kept = passed_on(b"x\n" * 100, burst=3)
    assert [one.text for one in said] == [
        "x",
        "x",
        "x",
        "(97 lines left out: it prints more than a log can bear)",
    ]
    assert len(kept) == 100


def test_a_line_without_an_end_comes_in_pieces_and_a_bar_as_what_it_came_to() -> None:
    said, _ = passed_on(b"y" * 2500 + b"\n1%\r2%\r3%\n\xff\n")
    assert [len(one.text) for one in said] == [1000, 1000, 500, 2, 1]
    assert said[3].text == "3%"


def talkative(lines: int) -> Any:
    def model_fn(params: Any) -> Any:
        print("printed")
        warnings.warn("warned", stacklevel=1)
        os.write(1, b"written by C\n")
        os.write(2, b"complained by C\n")
        for number in range(lines):
            print(f"line {number}")
        return torch_model_fn(params)

    return model_fn


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lines", [0, 100_000], ids=["a little", "a flood"])
def test_what_a_worker_prints_is_in_the_drivers_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lines: int
) -> None:
    caplog.set_level(logging.INFO, logger="cerebro_spark")
    dataset = small_dataset(tmp_path)
    backend = LocalBackend(num_workers=1, threads=1)
    backend.bind(Job("r1", dataset.store, dataset, TrainerSpec(Hooks(talkative(lines)), framework="torch")))
    search = FixedSearch([{"lr": 0.01}, {"lr": 0.02}], 1)
    Engine(search, Settings(dataset.partitions, 1), backend, EventLog(dataset.store, "r1")).run()
    said = [(record.levelname, record.getMessage()) for record in caplog.records if "w0" in record.getMessage()]
    if lines:
        assert any("lines left out" in text and level == "WARNING" for level, text in said)
        assert len(said) < lines
        return
    assert ("INFO", "w0: printed") in said, "when one batch was tried, before there was any trial"
    assert ("INFO", "w0, trial t1: printed") in said
    assert ("INFO", "w0, trial t1: written by C") in said
    assert ("INFO", "w0, trial t1: complained by C") in said
    assert any(
        level == "WARNING" and "w0, trial t1: " in text and "UserWarning: warned" in text for level, text in said
    )


@pytest.mark.slow
def test_inside_a_spark_task_it_goes_by_the_workers_own_wire(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[FromWorker] = []
    spoken = threading.Event()

    def hear(peer: int, message: FromWorker) -> None:
        heard.append(message)
        if isinstance(message, OutputLine):
            spoken.set()
            hub.send(peer, Stop())

    hub = Hub(RUN.driver, hear, lambda peer, reason: None)
    dataset = small_dataset(tmp_path)
    job = Job("r1", dataset.store, dataset, TrainerSpec(Hooks(torch_model_fn), framework="nothing"))  # type: ignore[arg-type]
    spec = WorkerSpec(hub.address, RUN.worker, "w0", cloudpickle.dumps(job))
    words = run_worker(cloudpickle.dumps(spec), "here", ())
    hub.close()
    assert spoken.is_set()
    said = next(message for message in heard if isinstance(message, OutputLine))
    assert "the trainer is not ready" in said.text
    assert any("the trainer is not ready" in word for word in words)
    assert "the trainer is not ready" in capfd.readouterr().err, "the executor's log has it too"


def test_both_ends_notice_a_machine_that_is_gone() -> None:
    hub = Hub(RUN.driver, lambda peer, message: None, lambda peer, reason: None, silence=12.0)
    line = DriverConnection(hub.address, RUN.worker, 10.0, silence=24.0)
    try:
        (peer,) = hub._peers.values()
        for sock, seconds in ((line._socket, 24), (peer.socket, 12)):
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == seconds // 2
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) == seconds // 6
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1000 * seconds
    finally:
        line.close()
        hub.close()
