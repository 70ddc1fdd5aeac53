"""How the arguments of `cerebro-spark` are described. It parses and runs nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Action = Callable[[argparse.Namespace], int | None]
Arguments = dict[str, dict[str, Any]]
CommandSpec = tuple[Action, str, str, Arguments]
"""A command: what it runs, its line in the list of commands, its description, its arguments."""


def value(metavar: str, text: str, default: Any = None) -> dict[str, Any]:
    """Settings of an argument that takes a value; a default gives the value its type.

    >>> value("N", "number of trials", 16)["type"]
    <class 'int'>
    """
    if default is None:
        return {"metavar": metavar, "help": text}
    return {"metavar": metavar, "help": f"{text} (default: %(default)s)", "default": default, "type": type(default)}


def flag(text: str) -> dict[str, Any]:
    """Settings of an argument that is given or not."""
    return {"action": "store_true", "help": text}


STORE = value("STORE", "a folder, hdfs://..., s3://...")
RUN = value("RUN", "the id of the run, as `cerebro-spark runs STORE` lists it")
