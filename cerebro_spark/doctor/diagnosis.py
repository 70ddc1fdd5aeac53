"""What the doctor finds, and how a terminal shows it. It judges nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "note", "FIX"]
_COLOURS: dict[Verdict, str] = {"ok": "32", "note": "33", "FIX": "31"}


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One result of a check: whether it is fine, worth a note, or must be fixed, and a text.

    >>> print(fix("pyarrow 16.0 beside petastorm 0.13.1", "pip install 'pyarrow<15'").format())
    FIX   pyarrow 16.0 beside petastorm 0.13.1: pip install 'pyarrow<15'
    """

    verdict: Verdict
    text: str

    def format(self, colours: bool = False) -> str:
        """Return the line to print, with escape codes if `colours`."""
        word = f"{self.verdict:<4}"
        return f"\x1b[{_COLOURS[self.verdict]}m{word}\x1b[0m  {self.text}" if colours else f"{word}  {self.text}"


def ok(text: str) -> Diagnosis:
    """All is well."""
    return Diagnosis("ok", text)


def note(text: str) -> Diagnosis:
    """Nothing is broken, but it may matter."""
    return Diagnosis("note", text)


def fix(problem: str, remedy: str) -> Diagnosis:
    """Something is broken, and this is how to repair it."""
    return Diagnosis("FIX", f"{problem}: {remedy}")
