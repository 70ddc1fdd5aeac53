"""The code blocks of the docs, in the order of a page: what a page shows is what the tests run. It changes no page.

A block that cannot run here, because it is another library's code, has a comment above it that says so:
`<!-- not run: ... -->`. It is compiled all the same. A block without that comment is always run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PYTHON = "python"
SHELL = ("bash", "sh", "console")
# Shown, and nothing to run: output, and files of other programs.
SHOWN = ("", "text")

_FENCE = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]+?) -->\n\n?)?"
    r"(?P<indent> *)```(?P<language>[\w+-]*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Block:
    """A block, where its code begins, and why it is not run, if it is not."""

    page: Path
    line: int
    language: str
    code: str
    why_not: str | None

    @property
    def padded(self) -> str:
        """The code behind as many empty lines as stand above it, so that a traceback names lines of the page."""
        return "\n" * (self.line - 1) + self.code


def pages() -> list[Path]:
    """Every page whose blocks are run from here; those of docs/deploy are run by python/tests/deploy."""
    return sorted(page for page in DOCS.rglob("*.md") if page.parent != DOCS / "deploy")


def name_of(page: Path) -> str:
    """How a page is called in the names of tests."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """All blocks of a page.

    >>> sorted({block.language for block in blocks(README)})
    ['python', 'sh']
    """
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start("code")) + 1, found["language"], _dedented(found), found["why"])
        for found in _FENCE.finditer(text)
    ]


def _dedented(found: re.Match[str]) -> str:
    return re.sub(f"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
