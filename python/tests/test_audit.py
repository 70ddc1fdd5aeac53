"""What `make audit` says: what could not be audited is never called sound."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "constraints" / "audit.py"


@pytest.fixture(scope="module")
def audit() -> Any:
    spec = importlib.util.spec_from_file_location("audit", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SOUND = {"name": "six", "version": "1.16", "vulns": []}
WEAK = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"]}]}
UNKNOWN = {"name": "own", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("libraries", "said", "code"),
    [
        ([SOUND], "1 libraries were audited, and nothing is known", 0),
        ([SOUND, WEAK], "old 1.0: PYSEC-1, mended in 1.1", 1),
        ([WEAK, UNKNOWN], "1 libraries were not audited", 1),
        ([SOUND, UNKNOWN], "1 libraries were not audited: the database", 2),
        ([UNKNOWN], "no library was audited", 2),
    ],
)
def test_the_exit_code_says_whether_all_was_audited(audit: Any, libraries: list[Any], said: str, code: int) -> None:
    lines, found = audit.judge({"dependencies": libraries})
    assert found == code
    assert any(said in line for line in lines)


def test_licences_that_ask_for_more_are_named(audit: Any) -> None:
    rows = [
        {"Name": "six", "Version": "1.16", "License": "MIT"},
        {"Name": "own", "Version": "2", "License": "GPL-3.0-only"},
    ]
    table, strict = audit.list_licences(rows)
    assert strict == ["own (GPL-3.0-only)"]
    assert "| own | 2 | GPL-3.0-only |" in table
