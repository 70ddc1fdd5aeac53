"""Sends commands to the drivers of runs: by files in their mailboxes. Who may write the store may command the run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from cerebro_spark import mailbox
from cerebro_spark.codec import CodecError, from_plain, to_json
from cerebro_spark.commands import Command
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store

SendCommand = Callable[[str, Command], None]
"""`send(run, command)` hands a command to the driver of a run. It may raise a StoreError."""
_GIVEN = {one.name for one in fields(Command)} - {"by"}
_LONGEST_ID = 64


def mailbox_sender(store: Store) -> SendCommand:
    """A sender that writes to the mailboxes in a store."""

    def send(run: str, command: Command) -> None:
        mailbox.send(store, run, command)

    return send


def mailbox_asker(store: Store) -> SendCommand:
    """Ask, of runs in a store, what commands would change. They are not given."""

    def ask(run: str, command: Command) -> None:
        mailbox.ask(store, run, command)

    return ask


def parse_command(body: bytes, by: str) -> Command:
    """The command that a page asks for.

    Args:
        body: A JSON object with the fields of a Command, without `by`. A page that gets no answer sends the same `id`
            again, and the run obeys it once. Whatever comes under an `id` that is known already changes nothing.
        by: Who gives it, for people.

    Raises:
        ConfigurationError: It is no command, or makes no sense.
    """
    try:
        found: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError("the command is no JSON") from error
    if not isinstance(found, dict) or not isinstance(found.get("verb"), str):
        raise ConfigurationError("a command is a JSON object with a `verb`")
    unknown = sorted(str(name) for name in found if name not in _GIVEN)
    if unknown:
        raise ConfigurationError(f"a command has no {', '.join(unknown)[:100]}")
    _check_id(found)
    _check_numbers(found)
    try:
        command: Command = from_plain(Command, {**found, "by": by})
        to_json(command, "command")
    except (CodecError, TypeError, ValueError, LookupError, RecursionError) as error:
        raise ConfigurationError(f"the command cannot be read: {str(error)[:200]}") from error
    return command


def _check_id(found: dict[str, Any]) -> None:
    """It becomes part of a file's name, and of the log. Without one, the command gets a new one."""
    if "id" not in found:
        return
    given = found["id"]
    if not isinstance(given, str) or len(given) > _LONGEST_ID:
        raise ConfigurationError(f"`id` is {given!r:.80}, but must be a text of at most {_LONGEST_ID} characters")
    paths.check_id(given, "command id")


def _check_numbers(found: dict[str, Any]) -> None:
    for name in ("epochs", "workers"):
        value = found.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise ConfigurationError(f"`{name}` is {value!r:.40}, but must be a whole number")
