"""Every command and option of `cerebro-spark` has a help text with its default, and is on the page docs/api/cli.md."""

from __future__ import annotations

import argparse

import pytest
from doc_blocks import DOCS

from cerebro_spark.cli import _parser

PAGE = (DOCS / "api" / "cli.md").read_text()


def commands() -> dict[str, argparse.ArgumentParser]:
    [found] = [each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction)]
    assert len(found._choices_actions) == len(found.choices), "a command without help is not listed by --help"
    return dict(found.choices)


@pytest.mark.parametrize("name", commands())
def test_a_command_says_what_it_takes(name: str) -> None:
    parser = commands()[name]
    assert str(parser.description).endswith(".")
    for action in parser._actions:
        assert action.help, f"{name} {action.dest} has no help"
        if action.default not in (None, False, [], argparse.SUPPRESS):
            assert "%(default)s" in action.help, f"{name} {action.dest} does not say its default"


@pytest.mark.parametrize("name", commands())
def test_the_page_has_every_command_and_option(name: str) -> None:
    _, heading, section = PAGE.partition(f"\n## {name}\n")
    assert heading, f"docs/api/cli.md has no section {name}"
    section = section.partition("\n## ")[0]
    for action in commands()[name]._actions:
        shown = action.option_strings[-1] if action.option_strings else str(action.metavar)
        assert f"| `{shown}" in section or shown == "--help", f"docs/api/cli.md says nothing of {name} {shown}"
