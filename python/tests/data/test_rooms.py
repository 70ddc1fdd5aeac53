"""The rooms of `data` in the order a row takes: what comes in, partitioning, then loading. None looks ahead or back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cerebro_spark.data

ROOT = Path(cerebro_spark.data.__file__).parent
CLOSED = {
    "formats": {"partitioning", "loading", "prepare", "foreign"},
    "input": {"partitioning", "loading", "prepare", "foreign"},
    "partitioning": {"loading", "prepare", "foreign"},
    "loading": {"partitioning", "prepare", "foreign"},
}


def imported(path: Path) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    names = {f"{node.module}.{alias.name}" for node in nodes for alias in node.names}
    inside = "cerebro_spark.data."
    return {name.removeprefix(inside).split(".")[0] for name in names if name.startswith(inside)}


@pytest.mark.parametrize("room", sorted(CLOSED))
def test_a_room_uses_none_that_is_closed_to_it(room: str) -> None:
    files = list((ROOT / room).glob("*.py"))
    assert len(files) > 2
    for path in files:
        assert not imported(path) & CLOSED[room], path
