"""What each side of a wire shows to the other, and what it trusts. It needs nothing but Python's own `ssl`.

A run has an authority of its own, whose key is gone as soon as it has signed two certificates: the driver's, and the
one of all its workers. Each is good for its role only, so no worker can pass for the driver.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["driver", "worker"]
DRIVER: Role = "driver"
WORKER: Role = "worker"


@dataclass(frozen=True, slots=True)
class Credentials:
    """One side's certificate, its key, and the authority that has signed both sides' certificates, all as PEM.

    Attributes:
        role: Whose they are.
        authority: The authority's certificate.
        certificate: The certificate of this side.
        key: Its private key. Whoever has it can take the role.
    """

    role: Role
    authority: str
    certificate: str
    key: str = field(repr=False)


def make_context(credentials: Credentials) -> ssl.SSLContext:
    """Return how this side talks: TLS 1.3 only, and only with the other role of the same run."""
    leads = credentials.role == DRIVER
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if leads else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=credentials.authority)
    with _as_file(credentials.certificate + credentials.key) as path:
        context.load_cert_chain(path)
    if leads:
        context.num_tickets = 0  # nobody comes back with one
    return context


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Have a text in a file inside the block, since `ssl` takes keys from files only: in memory, if there is a way."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        with open(os.memfd_create("credentials"), "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile("w") as file:  # for its owner's eyes only
            file.write(text)
            file.flush()
            yield file.name
