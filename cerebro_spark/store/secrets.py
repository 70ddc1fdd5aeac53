"""Addresses without the secrets that some people write into them. It knows nothing of what they open."""

from __future__ import annotations

import re

_USER = re.compile(r"(?<=://)([^/?#]*)@")
_QUERY = re.compile(r"[?&]([^=&#]*(?:sig|token|secret|passw|pwd|key|credential|auth)[^=&#]*)=[^&#]*", re.IGNORECASE)


def without_secrets(url: str) -> str:
    """The address without passwords and tokens: what may be shown, logged and kept.

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
    """Another address of the server that `address` is of, with the password that is in `address`.

    >>> with_secrets_of("sftp://me@host/more", "sftp://me:pa55@host/data")
    'sftp://me:pa55@host/more'
    """
    user = _USER.search(address)
    return _USER.sub(lambda found: user[0] if user and _name(user) == _name(found) else found[0], url)


def _name(user: re.Match[str]) -> str:
    return user[1].partition(":")[0]
