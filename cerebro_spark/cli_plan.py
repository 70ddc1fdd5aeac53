"""The command `cerebro-spark plan`: a search of a Python file, planned before it is submitted. It measures nothing."""

from __future__ import annotations

import argparse
import importlib
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from cerebro_spark.cli_options import CommandSpec, value
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.gantt import check_writable

_NUMBERS = ("budget", "price", "rows", "hosts", "cores", "memory", "network", "failure_rate", "seconds")


def _plan(options: argparse.Namespace) -> None:
    if options.plot:
        check_writable(options.plot)
    module, name = load_recipe(options.recipe)
    search = _found(module, name, options.recipe)
    if not hasattr(search, "plan"):
        raise ConfigurationError(
            f"{options.recipe} is a {type(search).__name__}, but must be a search, such as cs.GridSearch(...), or a"
            " function that returns one"
        )
    if options.store:
        search.store = options.store
    given = {name: getattr(options, name) for name in _NUMBERS if getattr(options, name) is not None}
    plan = search.plan(_data(module, options), deadline=parse_deadline(options.deadline), **given)
    print(plan)
    print(f"\nspark-submit {plan.spark_conf()}")
    if options.plot:
        plan.plot().savefig(options.plot)


def load_recipe(recipe: str) -> tuple[Any, str]:
    """Return the module of a recipe, and the name in it.

    Args:
        recipe: A file and a name, such as "train.py:search".

    Raises:
        ConfigurationError: There is no such file, or it cannot be imported under its name.
    """
    file, colon, name = recipe.rpartition(":")
    path = Path(file).resolve()
    if not colon or not name.isidentifier() or path.suffix != ".py":
        raise ConfigurationError(f"`--recipe` is {recipe!r}, but must be a file and a name in it: train.py:search")
    if not path.is_file():
        raise ConfigurationError(f"`--recipe` is {recipe!r}, but there is no file {path}")
    # As the user's script would: modules beside it are found, and travel to workers with its functions.
    sys.path.insert(0, str(path.parent))
    module = importlib.import_module(path.stem)
    if Path(str(module.__file__)).resolve() != path:
        raise ConfigurationError(f"`--recipe` is {recipe!r}, but {path.stem!r} is {module.__file__}: rename your file")
    return module, name


def _found(module: Any, name: str, recipe: str) -> Any:
    """Return what has this name in the file; a function is called."""
    if not hasattr(module, name):
        raise ConfigurationError(f"`--recipe` is {recipe!r}, but {module.__file__} has no {name!r}")
    found = getattr(module, name)
    return found() if callable(found) and not isinstance(found, type) and not hasattr(found, "plan") else found


def _data(module: Any, options: argparse.Namespace) -> Any:
    if options.data.isidentifier():
        return _found(module, options.data, f"{options.recipe}, --data {options.data}")
    from cerebro_spark.data.foreign import open_dataset

    return open_dataset(options.data)


def parse_deadline(text: str | None) -> datetime | float | None:
    """Return a deadline as it is given: seconds, or a date and time.

    >>> parse_deadline("3600"), parse_deadline("2026-12-01 09:00")
    (3600.0, datetime.datetime(2026, 12, 1, 9, 0))
    """
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigurationError(
            f"`--deadline` is {text!r}, but must be seconds, or a date and time such as '2026-12-01 09:00'"
        ) from error


_ARGUMENTS = {
    "--recipe": {
        **value("FILE.py:NAME", "the search: a name in a Python file, or a function that returns it"),
        "required": True,
    },
    "--data": value("NAME", "the data: a name in that file, or the address of a prepared data set", "data"),
    "--store": value("URL", "the store, instead of the one that the search has"),
    "--deadline": value("WHEN", "when it must be done: seconds, or a date and time"),
    "--budget": {**value("X", "how much money it may cost"), "type": float},
    "--price": {**value("X", "money for one worker and hour"), "type": float},
    "--rows": {**value("N", "how many rows there will be, if the data is a sample"), "type": int},
    "--hosts": {**value("N", "hosts of the cluster, if it is another than this one"), "type": int},
    "--cores": {**value("N", "cores of each host"), "type": int},
    "--memory": value("SIZE", "memory of each host, such as 64g"),
    "--network": value("SPEED", "speed between hosts, such as 10Gb for bits a second"),
    "--failure-rate": {**value("X", "probability that a worker dies during a unit"), "type": float},
    "--seconds": {**value("S", "how long planning may take, 60 if not given"), "type": float},
    "--plot": value("FILE.png", "draw how long it takes with how many workers"),
}
COMMANDS: dict[str, CommandSpec] = {
    "plan": (
        _plan,
        "say how many workers a search needs, how long it takes and what it costs",
        "Plan a search before it is submitted: measure it for a minute, run it dry, print what to tell spark-submit.",
        _ARGUMENTS,
    )
}
