"""File systems of fsspec and pyarrow that functions of the user hold: whether a pickle of one has credentials in it.

It opens none.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from cerebro_spark.errors import ConfigurationError

# "key_filename" names a file, and "signature_version" a way to sign: neither is a secret.
_SECRET = re.compile(
    "(key|secret|token|password|passwd|passphrase|pwd|credentials?|auth|authorization|connection_string)$",
    re.IGNORECASE,
)
# The words are those with which gcsfs is told where to look for a token.
_HARMLESS = (None, True, False, "", "anon", "google_default", "cloud", "browser", "cache")


def file_system_classes() -> tuple[type, ...]:
    """Return the classes of all file systems of fsspec and pyarrow, as far as somebody has imported them."""
    bases = (("fsspec.spec", "AbstractFileSystem"), ("pyarrow.fs", "FileSystem"))
    found = [getattr(sys.modules.get(module), name, None) for module, name in bases]
    return tuple(kind for kind in found if kind is not None)


def check_no_credentials(file_system: Any) -> None:
    """Raise ConfigurationError if a file system was opened with credentials: its pickle would have them.

    Args:
        file_system: The file system. One that finds its credentials itself, or needs none, is fine.
    """
    secrets = sorted({f"`{name}`" for name in secret_options(_options_of(file_system))})
    if secrets:
        raise ConfigurationError(
            f"a function uses a {type(file_system).__name__} that was opened with {', '.join(secrets)}, which would be"
            " kept for all to read: open it inside the function, with credentials from the environment, or use"
            " cs.open_store, of which only the address is kept"
        )


def _options_of(file_system: Any) -> Mapping[str, Any]:
    """Return the options that a file system was opened with, by name."""
    if hasattr(file_system, "storage_options"):
        names = list(inspect.signature(type(file_system).__init__).parameters)[1:]
        return {**dict(zip(names, file_system.storage_args, strict=False)), **file_system.storage_options}
    # One of pyarrow is made again from its options. One around another file system has none: that one is looked at.
    _, values, *_ = file_system.__reduce__()
    return {name: value for each in values if isinstance(each, Mapping) for name, value in each.items()}


def secret_options(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the options that are credentials, at any depth.

    >>> list(secret_options({"key": "AK", "token": None, "client_kwargs": {"aws_secret_access_key": "s"}}))
    ['key', 'aws_secret_access_key']
    >>> list(secret_options({"token": "google_default", "key_filename": "~/.ssh/id", "requester_pays": True}))
    []
    """
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from secret_options(value)
        elif _SECRET.search(str(name)) and value not in _HARMLESS and not _names_a_file(value):
            yield str(name)


def _names_a_file(value: Any) -> bool:
    """Return whether this is the path of a key file, such as that of a service account."""
    return isinstance(value, str) and value.endswith(".json")
