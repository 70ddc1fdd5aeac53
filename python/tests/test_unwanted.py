"""Which files a tier of the suite does not even import."""

from __future__ import annotations

from pathlib import Path

import pytest
from unwanted import unwanted

FAST = "not jvm and not hadoop and not slow"


@pytest.mark.parametrize(
    ("marks", "expression", "expected"),
    [
        ("pytestmark = pytest.mark.slow", FAST, True),
        ("pytestmark = [pytest.mark.jvm, pytest.mark.timeout(9)]", FAST, True),
        ("pytestmark = [\n    pytest.mark.timeout(9),\n    pytest.mark.slow,\n]", FAST, True),
        ("pytestmark = pytest.mark.slow", "not jvm", False),
        ("pytestmark = pytest.mark.slow", "", False),
        ("pytestmark = pytest.mark.slow", "not slow or jvm", False),
        ("pytestmark = pytest.mark.slow", "slow", False),
        ("pytestmark = pytest.mark.timeout(9)\n\n\n@pytest.mark.slow", FAST, False),
        ("@pytest.mark.slow\ndef test_one() -> None: ...", FAST, False),
    ],
)
def test_a_file_is_left_out_for_marks_of_its_own_only(
    tmp_path: Path, marks: str, expression: str, expected: bool
) -> None:
    file = tmp_path / "test_some.py"
    file.write_text(f"import pytest\n\n{marks}\n")
    assert unwanted(file, expression) is expected


def test_folders_are_looked_into(tmp_path: Path) -> None:
    assert not unwanted(tmp_path, FAST)
