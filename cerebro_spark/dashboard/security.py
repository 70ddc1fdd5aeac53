"""Who may ask the dashboard, and from where. It decides by headers alone, before any route sees a request.

- A token opens the door, once in the link, then as a cookie that scripts cannot read and other sites cannot send. It is
  compared in constant time and never logged.
- The Host must be one that this server is known by: a page of another site whose name suddenly resolves to this machine
  (DNS rebinding) has another Host.
- What changes something must come from a page of this server (Origin, Sec-Fetch-Site), which also knows a second token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from cerebro_spark.dashboard.login import STYLE
from cerebro_spark.errors import ConfigurationError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
LARGEST_BODY = 64 * 1024
_BURST, _A_SECOND = 10, 1.0


@dataclass(frozen=True)
class Access:
    """What a server lets pass.

    Args:
        token: The secret in the link. Defaults to a new one.
        host: The address that the server listens on. Defaults to "127.0.0.1".
        allowed_hosts: Further names under which browsers know it, such as that of a proxy.
        base_path: The path under which browsers see it, "" or such as "/user/ann/proxy/8787".
        read_only: Whether there are no commands at all.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    host: str = "127.0.0.1"
    allowed_hosts: tuple[str, ...] = ()
    base_path: str = ""
    read_only: bool = False

    def __post_init__(self) -> None:
        if len(self.token) < 16:
            raise ConfigurationError("the token of a dashboard must have at least 16 characters")
        if self.base_path and not self.base_path.startswith("/"):
            raise ConfigurationError(f"the base path is {self.base_path!r}, but must begin with '/'")
        if any(character in self.base_path for character in "?#;,\\ \"'<>\r\n") or ".." in self.base_path:
            raise ConfigurationError(f"the base path {self.base_path!r} is no plain path, such as /user/ann/dashboard")
        for host in self.allowed_hosts:
            if not _bare_host(host):
                raise ConfigurationError(f"{host!r} cannot be allowed: name a host, such as hub.example.org")
        object.__setattr__(self, "base_path", self.base_path.rstrip("/"))
        object.__setattr__(self, "allowed_hosts", tuple(_bare_host(host) for host in self.allowed_hosts))

    @property
    def known_as(self) -> str:
        """The name or address in its link: that of this machine, if it listens on all of its addresses."""
        return socket.gethostname() if self.host in ("0.0.0.0", "::", "") else self.host

    @property
    def cookie(self) -> str:
        """The name of the cookie. Servers on other ports of the same host have others."""
        return f"cerebro-spark-{self._derive('name')[:12]}"

    @property
    def session(self) -> str:
        """The value of the cookie. It does not tell the token."""
        return self._derive("session")

    @property
    def csrf(self) -> str:
        """What a page of this server sends beside every command."""
        return self._derive("csrf")

    def is_token(self, given: str) -> bool:
        """Whether this is the token; how long that takes does not tell how much of it is right."""
        return same(given, self.token)

    def knows_host(self, header: str) -> bool:
        """Whether a Host header names this server.

        >>> Access(token="x" * 16).knows_host("localhost:8787"), Access(token="x" * 16).knows_host("evil.example:8787")
        (True, False)
        """
        host = _bare_host(header)
        if not host:
            return False
        if host in LOOPBACK or host in self.allowed_hosts or host == _bare_host(self.known_as):
            return True
        # No name resolves to an address that is written out, so it cannot be a name of another site.
        return self.host not in LOOPBACK and _is_address(host)

    def knows_origin(self, origin: str, host: str) -> bool:
        """Whether a page with this Origin is one of this server, which was asked under this Host."""
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return False
        return parts.netloc == host or parts.hostname in self.allowed_hosts

    def _derive(self, purpose: str) -> str:
        return hmac.new(self.token.encode(), f"cerebro-spark dashboard {purpose}".encode(), hashlib.sha256).hexdigest()


def same(given: str, expected: str) -> bool:
    """Whether two secrets are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def cookie_values(headers: Iterable[str], name: str) -> list[str]:
    """All values of a cookie. A browser may send several of one name, from different paths.

    >>> cookie_values(["a=1; b=2", "a=3"], "a")
    ['1', '3']
    """
    pairs = (part.strip().partition("=") for header in headers for part in header.split(";"))
    return [value for key, _, value in pairs if key == name]


def bearer(header: str) -> str:
    """The token of an Authorization header; "" if it has none.

    >>> bearer("Bearer abc"), bearer("token abc"), bearer("Basic abc")
    ('abc', 'abc', '')
    """
    scheme, _, value = header.partition(" ")
    return value.strip() if scheme.lower() in ("bearer", "token") else ""


def response_headers(access: Access) -> Mapping[str, str]:
    """Headers of every answer. No script but the server's own files runs, and nothing is sent elsewhere."""
    framing = " ".join(["'self'", *(f"http://{name}:*" for name in LOOPBACK[:2]), *_framing_hosts(access)])
    style = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'self'; style-src 'self' 'sha256-{style}'; img-src 'self' data: blob:;"
        f" font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors {framing}"
    )
    return {
        "content-security-policy": policy,
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }


class RateLimit:
    """Lets a few requests pass at once, then one a second.

    Args:
        burst: How many pass at once. Defaults to 10.
        a_second: How many a second pass in the long run. Defaults to 1.0.
        clock: Returns seconds. Defaults to the monotonic clock.

    >>> limit = RateLimit(burst=1, clock=lambda: 0.0)
    >>> limit.take(), limit.take()
    (0.0, 1.0)
    """

    def __init__(
        self, burst: int = _BURST, a_second: float = _A_SECOND, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._burst = burst
        self._rate = a_second
        self._clock = clock
        self._left = float(burst)
        self._at = clock()

    def take(self) -> float:
        """0.0 if one more may pass; else in how many seconds to try again."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left >= 1.0:
            self._left -= 1.0
            return 0.0
        return (1.0 - self._left) / self._rate


def _framing_hosts(access: Access) -> list[str]:
    return [f"{scheme}://{host}" for host in access.allowed_hosts for scheme in ("https", "http")]


def _bare_host(header: str) -> str:
    """A host without its port, in small letters; "" if it is none."""
    header = header.strip().lower()
    if any(character in header for character in "/\\@?#, \t\r\n;\"'<>*"):
        return ""
    if header.count(":") > 1 and not header.startswith("["):  # a bare IPv6 address
        return header if _is_address(header) else ""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
