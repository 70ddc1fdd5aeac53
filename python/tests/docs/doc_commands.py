"""The commands that the docs show: each is run, or looked at as closely as it can be without running it.

A program that this module does not know is an error, so that no command goes unseen."""

from __future__ import annotations

import configparser
import contextlib
import importlib.util
import io
import itertools
import re
import shlex
import shutil

from doc_blocks import ROOT, Block

from cerebro_spark.cli import _parser, main

_CONFIG = configparser.ConfigParser()
_CONFIG.read(ROOT / "setup.cfg")
EXTRAS = set(_CONFIG["options.extras_require"])
# Their verdict depends on the machine, or they do not end: it is enough that they are asked rightly.
_ONLY_PARSED = ("doctor", "demo", "dashboard")


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a block, each with the output shown under it (of a `console` block, behind its `$`)."""
    if block.language != "console":
        lines = block.code.replace("\\\n", " ").splitlines()
        return [(line, "") for line in lines if line.strip() and not line.startswith("#")]
    found = re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block.code, re.MULTILINE)
    assert "".join(f"$ {command}\n{output}" for command, output in found) == block.code, "a console block begins with $"
    return found


def check(command: str, shown: str) -> None:
    """Run the command in the current folder, or see that it could be run. AssertionError if not."""
    program, *arguments = shlex.split(command, comments=True)
    match program:
        case "cerebro-spark":
            _check_own(arguments, shown)
        case "pip":
            _check_pip(arguments)
        case "make":
            assert re.search(rf"^{re.escape(arguments[0])}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command
        case "python" | "python3.11":
            _check_python(arguments)
        case "tensorboard" | "source":
            assert shutil.which(program) or (ROOT / arguments[0]).exists() or ".venv" in arguments[0], command
        case _:
            raise AssertionError(f"there is no check for {program!r}: add one to doc_commands.py")


def _check_own(arguments: list[str], shown: str) -> None:
    options = _parser().parse_args(arguments)  # exits, which fails the test, if they do not fit
    if arguments[0] in _ONLY_PARSED:
        assert callable(options.command)
        return
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(arguments) == 0
    if shown:
        assert output.getvalue().strip() == shown.strip()


def _check_pip(arguments: list[str]) -> None:
    assert arguments[0] == "install", arguments
    for before, argument in itertools.pairwise(arguments):
        found = re.fullmatch(r"(\.|cerebro-spark)(?:\[([\w,-]+)\])?", argument)
        if before in ("-c", "--constraint"):
            assert (ROOT / argument).is_file(), argument
        elif found:
            assert set((found[2] or "").split(",")) - {""} <= EXTRAS, argument
        else:
            assert argument in ("-c", "--constraint"), f"{argument} is nothing that this project installs"


def _check_python(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        assert importlib.util.find_spec(arguments[1]) is not None, arguments
        return
    script = (ROOT / arguments[0]).read_text()
    for option in arguments[1:]:
        assert not option.startswith("--") or f'"{option}"' in script, f"{arguments[0]} has no option {option}"
