"""The commands of `cerebro-spark` for live runs: `watch`, `stop-trial` and the like. They only use a handle."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from cerebro_spark.cli_options import RUN, STORE, Arguments, CommandSpec, flag, value
from cerebro_spark.errors import CommandRefused, ConfigurationError, NoAnswerYet

REFUSED, UNANSWERED = 1, 3
"""Exit codes."""


def _attached(options: argparse.Namespace) -> Any:
    from cerebro_spark.tune.past_runs import attach

    return attach(options.store, options.run, leave=getattr(options, "leave", False))


def _watch(options: argparse.Namespace) -> int:
    from cerebro_spark.live.watch import watch

    run = _attached(options)
    try:
        status = watch(run, sys.stdout)
    except KeyboardInterrupt:  # it only looked: the run goes on
        return 0
    if status == "done":
        return 0
    print(f"run {run.id} is not done, and nobody drives it now: cs.resume continues it", file=sys.stderr)
    return 1


def _tell(options: argparse.Namespace) -> int:
    """Send the command that the options say, and print the answer."""
    about = {name: getattr(options, name) for name in ("epochs", "timeout") if hasattr(options, name)}
    if options.verb == "clone":
        about |= {"params": dict(_param(pair) for pair in options.param), "warm_start": not options.cold}
    subject = [getattr(options, name) for name in ("trial", "workers", "worker") if hasattr(options, name)]
    run = _attached(options)
    try:
        answer = getattr(run, options.verb)(*subject, **about)
    except CommandRefused as error:
        print(f"cerebro-spark: {error}", file=sys.stderr)
        return REFUSED
    except NoAnswerYet as error:
        print(f"cerebro-spark: {error}", file=sys.stderr)
        return UNANSWERED
    print(answer)
    return 0


def _param(pair: str) -> tuple[str, Any]:
    """A param as it is given: JSON where it is JSON, else a string.

    >>> _param("lr=0.01"), _param("layers=[64, 32]"), _param("kind=cnn")
    (('lr', 0.01), ('layers', [64, 32]), ('kind', 'cnn'))
    """
    name, sign, text = pair.partition("=")
    if not sign or not name:
        raise ConfigurationError(f"`param` is {pair!r}, but must be NAME=VALUE, such as lr=0.01")
    try:
        return name, json.loads(text)
    except ValueError:
        return name, text


_TRIAL = value("TRIAL", "the id of the trial, such as t3")
_EPOCHS = {**value("N", "how many further epochs (default: as far as the trial was to go)"), "type": int}
_ANSWERED: Arguments = {
    "--timeout": value("S", "seconds to wait for the answer", 60.0),
    "--leave": flag("if nobody drives the run now, leave the command in its mailbox for the next driver"),
}


def _spec(verb: str, summary: str, about: Arguments) -> CommandSpec:
    def run(options: argparse.Namespace) -> int:
        options.verb = verb
        return _tell(options)

    description = f"{summary[0].upper()}{summary[1:]}. The exit code is 1 if the run refuses, 3 if it does not answer."
    return run, summary, description, {"store": STORE, "run": RUN, **about, **_ANSWERED}


COMMANDS: dict[str, CommandSpec] = {
    "watch": (
        _watch,
        "show a run while it goes on",
        "Show a run until it is over. The exit code is 1 if it ended early.",
        {"store": STORE, "run": RUN},
    ),
    "stop-trial": _spec("stop_trial", "end a trial of a live run", {"trial": _TRIAL}),
    "resume-trial": _spec("resume_trial", "let a trial of a live run go on", {"trial": _TRIAL, "--epochs": _EPOCHS}),
    "clone": _spec(
        "clone",
        "train a variation of a trial in a live run",
        {
            "trial": _TRIAL,
            "--param": {
                **value("NAME=VALUE", "a param that is to differ, as JSON or a word; may be repeated"),
                "action": "append",
                "default": [],
            },
            "--cold": flag("begin with new weights, not with those of the trial"),
            "--epochs": {**value("N", "how many epochs (default: as many as the trial was to be)"), "type": int},
        },
    ),
    "add-workers": _spec(
        "add_workers",
        "have a live run start further workers",
        {"workers": {**value("N", "how many"), "type": int}},
    ),
    "remove-worker": _spec(
        "remove_worker",
        "let a worker of a live run go",
        {"worker": value("WORKER", "the name of the worker, such as w1")},
    ),
    "pause": _spec("pause", "let the units of a live run end, and begin no others", {}),
    "unpause": _spec("unpause", "let a paused run go on", {}),
    "end": _spec("end", "end a live run in good order, with a result", {}),
    "kill": _spec("kill", "end the driver of a live run at once; cs.resume continues the run", {}),
}
