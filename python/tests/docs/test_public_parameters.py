"""Every public class and function documents its parameters, what it returns, and its defaults as they are.

Griffe reads the docstrings from the sources, as it does for the docs site: what passes here is what the site shows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import griffe
import pytest
from doc_blocks import ROOT
from test_doc_site import SHOWN, public

PARSER: dict[str, Any] = {"returns_multiple_items": False, "warnings": False}
# "Defaults to `4 << 30`", "the default is 3", "None, the default, means ...".
LITERAL = r"(`[^`]+`|\"[^\"]*\"|'[^']*'|[\w.+-]*\w)"
DEFAULT = re.compile(rf"[Dd]efaults? (?:to|is) {LITERAL}|{LITERAL}, the default\b")


@cache
def package() -> griffe.Object:
    completed = griffe.load_extensions(str(ROOT / "docs/extensions/completed_docstrings.py"))
    found = griffe.load("cerebro_spark", search_paths=[str(ROOT)], resolve_aliases=True, extensions=completed)
    assert isinstance(found, griffe.Object)
    return found


def thing(name: str) -> griffe.Object:
    inside = name.removeprefix("cerebro_spark.").removeprefix("hp.")
    found = package()[f"tune.hp.{inside}" if name.startswith("cerebro_spark.hp.") else inside]
    return found.final_target if isinstance(found, griffe.Alias) else found


def callables(name: str) -> Iterator[tuple[str, griffe.Class | griffe.Function, list[griffe.Docstring]]]:
    """What of a public name can be called: itself, and the public methods of a class; each with its docstrings."""
    found = thing(name)
    assert isinstance(found, griffe.Class | griffe.Function), name
    if isinstance(found, griffe.Function):
        yield name, found, docstrings(found)
        return
    init = found.all_members.get("__init__")
    yield name, found, docstrings(found) + ([] if init is None else docstrings(init))
    for own, member in found.all_members.items():
        target = member.final_target if isinstance(member, griffe.Alias) else member
        if not own.startswith("_") and isinstance(target, griffe.Function):
            yield f"{name}.{own}", target, inherited(found, own)


def docstrings(found: griffe.Object | griffe.Alias) -> list[griffe.Docstring]:
    return [] if found.docstring is None else [found.docstring]


def inherited(owner: griffe.Class, method: str) -> list[griffe.Docstring]:
    """The docstring of a method, or of the one that it overrides."""
    for each in (owner, *owner.mro()):
        if method in each.members and each.members[method].docstring is not None:
            return docstrings(each.members[method])
    return []


def problems(name: str) -> list[str]:
    found = thing(name)
    said = [] if found.docstring is not None else [f"{name} has no docstring"]
    if isinstance(found, griffe.Class):
        said += [f"{name}.{each} has no docstring" for each in undocumented_properties(found)]
    for place, target, texts in callables(name):
        said += [f"{place}: {problem}" for problem in problems_of(target, texts)]
    return said


def undocumented_properties(found: griffe.Class) -> list[str]:
    members = {own: member for own, member in found.all_members.items() if not own.startswith("_")}
    return [own for own, member in members.items() if "property" in member.labels and not inherited(found, own)]


def problems_of(target: griffe.Class | griffe.Function, texts: list[griffe.Docstring]) -> Iterator[str]:
    sections = [section for text in texts for section in text.parse("google", **PARSER)]
    entries = {
        entry.name.lstrip("*"): entry
        for section in sections
        if section.kind in (griffe.DocstringSectionKind.parameters, griffe.DocstringSectionKind.other_parameters)
        for entry in section.value
    }
    taken = {each.name.lstrip("*"): each for each in target.parameters if each.name not in ("self", "cls")}
    yield from (f"`{name}` is not in Args" for name in taken if name not in entries)
    yield from (f"Args has `{name}`, which is no parameter" for name in entries if name not in taken)
    yield from (f"`{name}` has no text" for name, entry in entries.items() if not entry.description.strip())
    for name in entries.keys() & taken.keys():
        yield from wrong_default(name, entries[name].description, taken[name].default)
    if isinstance(target, griffe.Function) and gives(target) and not says_what_it_gives(sections):
        yield f"it returns {target.returns}, but has no Returns"


def wrong_default(name: str, text: str, default: object) -> Iterator[str]:
    for said in (after or before for after, before in DEFAULT.findall(" ".join(text.split()))):
        if default is None:
            yield f"`{name}` has no default, but its text says {said}"
        elif value(said.strip("`")) != value(str(default)):
            yield f"`{name}` is {default} by default, but its text says {said}"


def value(source: str) -> object:
    """What a default is, where it is written as a literal; else how it is written."""
    try:
        found: object = ast.literal_eval(source)
    except (ValueError, SyntaxError):
        return source
    return found


def gives(target: griffe.Function) -> bool:
    return str(target.returns) not in ("None", "NoReturn")


def says_what_it_gives(sections: list[griffe.DocstringSection]) -> bool:
    kinds = (griffe.DocstringSectionKind.returns, griffe.DocstringSectionKind.yields)
    return any(section.kind in kinds and section.value[0].description.strip() for section in sections)


NAMES = sorted(SHOWN | public())


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_documents_what_it_takes_and_returns(name: str) -> None:
    assert problems(name) == []


def found_in(source: str) -> list[str]:
    with griffe.temporary_visited_module(source) as module:
        target = module["example"]
        return list(problems_of(target, docstrings(target)))


GOOD = '''
def example(rate: float, steps: int = 3) -> int:
    """Do it.

    Args:
        rate: The rate, in 1/s.
        steps: How many. Defaults to 3.

    Returns:
        A number.
    """
'''


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("", "", None),
        ("        rate: The rate, in 1/s.\n", "", "`rate` is not in Args"),
        ("rate: The rate, in 1/s.", "rate:", "`rate` has no text"),
        ("        rate: The", "        old: Gone.\n        rate: The", "Args has `old`, which is no parameter"),
        ("Defaults to 3.", "Defaults to 4.", "`steps` is 3 by default, but its text says 4"),
        ("How many. Defaults to 3.", "5, the default, is many.", "`steps` is 3 by default, but its text says 5"),
        ("in 1/s.", "in 1/s. Defaults to 1.0.", "`rate` has no default, but its text says 1.0"),
        ("    Returns:\n        A number.\n", "", "it returns int, but has no Returns"),
    ],
)
def test_each_mistake_is_found(old: str, new: str, problem: str | None) -> None:
    assert found_in(GOOD.replace(old, new) if old else GOOD) == ([] if problem is None else [problem])
