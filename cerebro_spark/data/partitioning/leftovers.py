"""What killed calls of `prepare` left in a store, found by its name alone. It never touches what a manifest speaks of.

Each writer has a folder of its own, named by when it began and a random token; it becomes a data set only by a manifest
that names the token. A folder without one may still be at work, so it is left alone for a week: give a preparation
that takes longer a store that nobody else prepares in.
"""

from __future__ import annotations

import calendar
import time
import uuid

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import CerebroError, NotFoundInStore
from cerebro_spark.store.base import Store
from cerebro_spark.store.paths import DATASETS

WEEK = 7 * 86_400.0
_FORM = "%Y%m%d-%H%M%S"
_STAMP = 15


def new_token(at: float) -> str:
    """A name for a writer that begins at this time, unlike that of any other.

    >>> new_token(1_800_000_000.0)[:-32]
    '20270115-080000-'
    """
    return f"{time.strftime(_FORM, time.gmtime(at))}-{uuid.uuid4().hex}"


def began(token: str) -> float | None:
    """When the writer of that token began; None where `new_token` did not make it.

    >>> began(new_token(1_800_000_000.0)), began("mine")
    (1800000000.0, None)
    """
    stamp, random = token[:_STAMP], token[_STAMP:]
    if len(random) != 33 or random[0] != "-" or set(random[1:]) - set("0123456789abcdef"):
        return None
    try:
        return float(calendar.timegm(time.strptime(stamp, _FORM)))
    except ValueError:
        return None


def sweep(store: Store, older_than: float = WEEK) -> int:
    """Remove what `abandoned` finds, and return how many folders it were. `prepare` does this when it has finished."""
    found = abandoned(store, older_than)
    for folder in found:
        store.delete(folder)
    return len(found)


def abandoned(store: Store, older_than: float = WEEK) -> dict[str, list[str]]:
    """The folders of writers that began more than `older_than` seconds ago and never became a data set, each with the
    names of what lies in it.
    """
    limit = time.time() - older_than
    folders: dict[tuple[str, str], list[str]] = {}
    for name in store.list(DATASETS):
        part = name.split("/")
        if len(part) > 3:
            folders.setdefault((part[1], part[2]), []).append(name)
    return {
        f"{DATASETS}/{id}/{token}": names
        for (id, token), names in sorted(folders.items())
        if (began(token) or limit + 1) <= limit and not _is_kept(store, id, token)
    }


def _is_kept(store: Store, id: str, token: str) -> bool:
    try:
        return bool(Dataset.open(store, id).made.get("token") == token)
    except NotFoundInStore:
        return False
    except CerebroError:
        return True  # a manifest that this version cannot read may speak of any folder beside it
