"""What is secret is nowhere that others can see: arguments, Spark's pages and event logs, our logs, the store."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cerebro_spark.store.fsspec import FsspecStore

pytestmark = [pytest.mark.slow, pytest.mark.jvm]
PROGRAM = Path(__file__).with_name("secret_keeper.py")
KEY, SECRET, SESSION = "AKIA" + "PLANTEDKEY", "planted" + "-secret-5e8c1f", "planted" + "-session-token-77"


def forms(secret: bytes) -> Iterator[bytes]:
    """Yield all forms in which a secret could be written."""
    yield secret
    yield secret.hex().encode()
    yield base64.b64encode(secret).rstrip(b"=")
    yield base64.urlsafe_b64encode(secret).rstrip(b"=")
    yield repr(secret).encode()


def found(secrets: list[bytes], content: bytes) -> list[bytes]:
    return [form for secret in secrets for form in forms(secret) if form in content]


def test_nobody_can_see_credentials_of_the_store_nor_the_secrets_of_a_run(
    s3_options: dict[str, Any], tmp_path: Path
) -> None:
    options = {**s3_options, "key": KEY, "secret": SECRET, "token": SESSION}
    url = f"s3://contract/{uuid.uuid4().hex}"
    given = json.dumps({"url": url, "options": options, "folder": str(tmp_path)})
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], input=given, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads((tmp_path / "secrets").read_text())
    assert told["wire"]
    planted = [word.encode() for word in (KEY, SECRET, SESSION)]
    wire = [bytes.fromhex(secret) for secret in told["wire"]]
    token = [max(re.findall(r"[\w-]+", told["link"]), key=len).encode()]
    assert len(token[0]) > 40

    secrets = [*planted, *wire, *token]
    arguments = (tmp_path / "arguments").read_bytes()
    assert b"dashboard" in arguments, "its process was there"
    assert arguments.count(b"\n") > 3, "and workers"
    assert not found(secrets, arguments)
    shown = (tmp_path / "pages").read_bytes()
    assert b"spark.ui.port" in shown
    assert not found(secrets, shown)
    logs = [file for file in (tmp_path / "spark-events").rglob("*") if file.is_file()]
    assert logs
    assert not [file for file in logs if found(secrets, file.read_bytes())]
    # The link, with its token, is printed for the user, and for nobody else.
    assert not found([*planted, *wire], done.stdout.encode())
    assert not found([*planted, *wire], done.stderr.encode())
    store = FsspecStore(url, **options)
    assert len(store.list()) > 10
    assert not [name for name in store.list() if found(secrets, name.encode() + store.read(name))]
