"""Shows the examples in docstrings as code: otherwise Markdown takes `>>>` for a quotation. It changes nothing else."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)
_FLAG = re.compile(r"\s*# doctest: \+\w+.*$", re.MULTILINE)


class FencedDoctests(griffe.Extension):
    """Puts a fence around each example of a docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The docstring with its examples, each up to the next empty line, as code blocks."""
    return _EXAMPLE.sub(lambda found: f"```pycon\n{_FLAG.sub('', found[0]).rstrip()}\n```\n", text)
