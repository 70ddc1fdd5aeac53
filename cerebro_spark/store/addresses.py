"""Addresses of stores as text: without their secrets, and relative to each other. It opens nothing."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_USER = re.compile(r"(?<=://)([^/?#]*)@")
_QUERY = re.compile(r"[?&]([^=&#]*(?:sig|token|secret|passw|pwd|key|credential|auth)[^=&#]*)=[^&#]*", re.IGNORECASE)


def without_secrets(url: str) -> str:
    """Return the address without passwords and tokens: it may be shown, logged and kept.

    >>> without_secrets("sftp://me:pa55@host/data"), without_secrets("abfs://container@account/data")
    ('sftp://me@host/data', 'abfs://container@account/data')
    >>> without_secrets("https://host/data?version=3&sig=abc")
    'https://host/data?version=3'
    """
    plain = _USER.sub(lambda found: found[1].partition(":")[0] + "@", url)
    plain = _QUERY.sub("", plain)
    path, mark, rest = plain.partition("&")
    return plain if "?" in path or not mark else f"{path}?{rest}"


def with_secrets_of(url: str, address: str) -> str:
    """Return `url`, of the server of `address`, with the password in `address`.

    >>> with_secrets_of("sftp://me@host/more", "sftp://me:pa55@host/data")
    'sftp://me:pa55@host/more'
    """
    user = _USER.search(address)
    return _USER.sub(lambda found: user[0] if user and _name(user) == _name(found) else found[0], url)


def path_below(url: str, home: str) -> str | None:
    """Return the path from `home` down to `url`, "" if they are the same, None if `url` is not below it.

    >>> path_below("s3://bucket/runs/data", "s3://bucket/runs"), path_below("s3://bucket/other", "s3://bucket/runs")
    ('data', None)
    """
    if url == home:
        return ""
    root = home.rstrip("/") + "/"
    return url.removeprefix(root) if url.startswith(root) else None


def server_of(url: str) -> tuple[str, str]:
    """Return the scheme, and the machine, bucket or name service, of an address.

    >>> server_of("sftp://me:pa55@host/data")
    ('sftp', 'me@host')
    """
    parts = urlsplit(without_secrets(url))
    return parts.scheme, parts.netloc


def _name(user: re.Match[str]) -> str:
    return user[1].partition(":")[0]
