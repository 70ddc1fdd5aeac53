"""Files that the marks asked for leave out as a whole: not to be imported, because some import a framework."""

from __future__ import annotations

import re
from pathlib import Path

_MARKS = re.compile(r"^pytestmark = (\[.*?\]|[^\n]+)$", re.MULTILINE | re.DOTALL)


def unwanted(path: Path, expression: str) -> bool:
    """Return whether `-m expression` deselects each test in `path` by a mark of the whole file.

    Only `not a and not b ...` can be answered without importing the file; its tests may have more marks of their own.
    """
    if path.suffix != ".py" or not re.fullmatch(r"not \w+( and not \w+)*", expression):
        return False
    marks = _MARKS.search(path.read_text())
    return marks is not None and not set(_names(marks[1], "pytest.mark.")).isdisjoint(_names(expression, "not "))


def _names(text: str, before: str) -> list[str]:
    return re.findall(rf"{re.escape(before)}(\w+)", text)
