"""The code blocks of docs/deploy: what a page shows is what the tests run. It never changes what it reads."""

from __future__ import annotations

import re
import string
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "deploy"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def text(page: str) -> str:
    """A page, by its name without the ending."""
    return (FOLDER / f"{page}.md").read_text()


def blocks(page: str, language: str, under: str | None = None) -> list[str]:
    """The code blocks of a page in one language, of all of it or of the section under one heading.

    >>> blocks("yarn", "bash", under="Client mode")[0].splitlines()[-1]
    '  examples/spark_submit_job.py --store hdfs:///user/$USER/churn --rows 20000'
    """
    place = text(page) if under is None else _section(page, under)
    return [code for found, code in _FENCE.findall(place) if found == language]


def block(page: str, language: str, under: str) -> str:
    """The only code block in that language under that heading."""
    (found,) = blocks(page, language, under)
    return found


def filled(code: str, **values: object) -> str:
    """The block with its $NAMES filled in; KeyError for one that nobody knows."""
    return string.Template(code).substitute({name: str(value) for name, value in values.items()})


def _section(page: str, heading: str) -> str:
    parts = re.split(r"^#+ (.+)$", text(page), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    return sections[heading]
