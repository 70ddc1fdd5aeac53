"""What is saved of the arguments of a search or of trials: no credentials of stores, no backend, no trackers."""

from __future__ import annotations

import logging
import os
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store import references
from cerebro_spark.store.base import Store
from cerebro_spark.tune.options import TrainingOptions

_log = logging.getLogger("cerebro_spark")
# What belongs to the process that made them.
NOT_SAVED = ("backend", "trackers")


def saved_arguments(holder: TrainingOptions, kind: type[TrainingOptions]) -> dict[str, Any]:
    """Return the arguments to make a search or trials again. Of the store they have the address alone.

    Args:
        holder: A search, or CerebroTrials.
        kind: The class whose fields are saved.

    Returns:
        The values by name.
    """
    if holder.trackers:
        _log.warning("%s is saved without its trackers: give them again once it is loaded", type(holder).__name__)
    kept = [field.name for field in fields(kind) if field.name not in NOT_SAVED]
    return {name: getattr(holder, name) for name in kept} | {"store": address_of(holder.store)}


def pickled(arguments: dict[str, Any]) -> bytes:
    """Pickle arguments, with the functions of the user. Stores that these hold are in it by their address alone."""
    return references.dumps(arguments)[0]


def unpickled(data: bytes) -> dict[str, Any]:
    """Return the arguments of this or an earlier version, with stores that find their credentials themselves.

    Args:
        data: What `pickled` returned. It runs code as it is unpickled: trust its source.

    Returns:
        The values by name.
    """
    arguments: dict[str, Any] = references.loads(data, references.by_address)
    return arguments


def address_of(store: Store | str | os.PathLike[str]) -> str:
    """Return the address of a store, without credentials. A path becomes absolute, as it may be read from elsewhere.

    >>> address_of("s3://key:secret@bucket/runs")
    Traceback (most recent call last):
    cerebro_spark.errors.ConfigurationError: the address of the store has a password in it, which is not saved: leave it
    to the environment, or give it to cs.open_store as an option
    """
    address = store.url if isinstance(store, Store) else os.fspath(store)
    if "://" not in address:
        return os.path.abspath(os.path.expanduser(address))
    if urlsplit(address).password:
        raise ConfigurationError(
            "the address of the store has a password in it, which is not saved: leave it to the environment, or give"
            " it to cs.open_store as an option"
        )
    return address
