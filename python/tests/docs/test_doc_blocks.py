"""Every code block of the docs runs: a page from top to bottom, in a namespace and a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import doc_commands
import pytest
from doc_blocks import DOCS, PYTHON, README, SHELL, SHOWN, Block, blocks, name_of, pages

# The first example stands in the README as well, where test_readme.py runs it.
RUN_ELSEWHERE = {block.code for block in blocks(README) if block.language == PYTHON}


def run_here(page: Path) -> list[Block]:
    """What there is to run on a page, in its order."""
    found = [block for block in blocks(page) if block.why_not is None and block.code not in RUN_ELSEWHERE]
    return [block for block in found if block.language == PYTHON or block.language in SHELL]


def marks(page: Path) -> list[Any]:
    code = "".join(block.code for block in run_here(page))
    # Petastorm uses old interfaces of its libraries, and leaves it to the collector to close its files.
    warned = ("FutureWarning", "DeprecationWarning", "ResourceWarning", "UserWarning")
    quiet = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in warned] if "petastorm" in code else []
    rare = [pytest.mark.rare] if page.parent.name == "migrating" else []
    return [*([pytest.mark.jvm] if "pyspark" in code else []), *quiet, *rare]


PAGES = [pytest.param(page, marks=marks(page), id=name_of(page)) for page in pages() if run_here(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if request.node.get_closest_marker("jvm"):
        request.getfixturevalue("spark")  # the session that the page's own getOrCreate finds
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in run_here(page):
        if block.language == PYTHON:
            exec(compile(block.padded, str(page), "exec"), names)
        else:
            for command, shown in doc_commands.commands(block):
                doc_commands.check(command, shown)


@pytest.mark.parametrize("page", [*pages(), README], ids=name_of)
def test_blocks_are_of_kinds_that_are_checked(page: Path) -> None:
    for block in blocks(page):
        assert block.language in (PYTHON, *SHELL, *SHOWN), f"{name_of(page)}:{block.line} is {block.language!r}"
    fences = page.read_text().count("```")
    assert fences == 2 * len(blocks(page)), f"{name_of(page)} has a fence that does not open or close a block"


def test_blocks_that_do_not_run_are_other_libraries_code_and_compile() -> None:
    marked = [block for page in pages() for block in blocks(page) if block.why_not is not None]
    assert {block.page.parent for block in marked} <= {DOCS / "migrating"}
    assert marked, "the pages on migrating show what was there before"
    for block in marked:
        compile(block.padded, str(block.page), "exec")
        assert "cerebro_spark" not in block.code, f"{name_of(block.page)}:{block.line} is ours: it can run"


def test_commands_of_the_readme_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of our own are run by test_readme.py."""
    monkeypatch.chdir(tmp_path)
    for block in blocks(README):
        for command, shown in doc_commands.commands(block) if block.language in SHELL else []:
            if not command.startswith("cerebro-spark "):
                doc_commands.check(command, shown)
