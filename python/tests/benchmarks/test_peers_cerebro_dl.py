"""What is counted of cerebro-dl's orders; cerebro-dl itself lives in an environment of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.peers.cerebro_dl import Ledger, data_bytes_of


class Files:
    """The part of its store that is asked: where a checkpoint lies."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get_checkpoint_path(self, trial: str) -> str:
        return f"file://{self._folder / trial}"

    def get_localized_path(self, path: str) -> str:
        return path.removeprefix("file://")


class Client:
    def __init__(self) -> None:
        self.orders: list[dict[str, Any]] = []

    def execute_sub_epoch(self, **order: Any) -> None:
        self.orders.append(order)


class Backend:
    def __init__(self) -> None:
        self.task_clients: list[Any] = []

    def initialize_workers(self) -> None:
        self.task_clients = [Client(), Client()]


def trainer_of(run_id: str) -> Any:
    """Its units are closures, which know their trial's name."""

    def train() -> str:
        return run_id

    return train


def test_units_hops_and_bytes_are_those_of_the_orders(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    (tmp_path / "b").write_bytes(b"123")
    backend, ledger = Backend(), Ledger(Files(tmp_path))
    ledger.attach(backend)
    backend.initialize_workers()
    first, second = backend.task_clients
    for client, trial, train in (
        (first, "a", True),
        (second, "b", True),
        (second, "a", True),  # a hop
        (second, "b", True),
        (first, "a", False),  # evaluation is no hop
        (second, "a", True),
    ):
        client.execute_sub_epoch(fn=trainer_of(trial), store_prefix_path="s", train=train, initial_epoch=1)
    assert (ledger.units, ledger.hops) == (6, 1)
    assert ledger.checkpoint_bytes == 4 * 5 + 2 * 3
    assert ledger.written(["a", "b"], epochs=2) == (5 + 3) * 2 * 2
    assert [order["train"] for order in first.orders] == [True, False]  # every order is passed on


def test_data_are_the_files_of_both_parts(tmp_path: Path) -> None:
    for part, size in (("train_data", 7), ("val_data", 2)):
        (tmp_path / part).mkdir()
        (tmp_path / part / "part-0.parquet").write_bytes(b"x" * size)
        (tmp_path / part / "_common_metadata").write_bytes(b"x" * 100)
    assert data_bytes_of(tmp_path) == 9
