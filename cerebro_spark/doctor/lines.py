"""What the doctor says, a line each, and how it looks on a terminal. It judges nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "FIX"]
_COLOURS: dict[Verdict, str] = {"ok": "32", "note": "33", "FIX": "31"}


@dataclass(frozen=True, slots=True)
class Line:
    """One finding.

    >>> print(fix("pyarrow 16.0 beside petastorm 0.13.1", "pip install 'pyarrow<15'").shown())
    FIX   pyarrow 16.0 beside petastorm 0.13.1: pip install 'pyarrow<15'
    """

    verdict: Verdict
    text: str

    def shown(self, colours: bool = False) -> str:
        word = f"{self.verdict:<4}"
        return f"\x1b[{_COLOURS[self.verdict]}m{word}\x1b[0m  {self.text}" if colours else f"{word}  {self.text}"


def ok(text: str) -> Line:
    return Line("ok", text)


def note(text: str) -> Line:
    """Nothing is broken, but somebody may want to know."""
    return Line("note", text)


def fix(problem: str, remedy: str) -> Line:
    return Line("FIX", f"{problem}: {remedy}")
