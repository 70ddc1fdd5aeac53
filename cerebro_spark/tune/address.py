"""The address of a store, to be saved. It never contains credentials."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.store.base import Store


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
