"""Credentials of a run, and of another one that it must not be mistaken for."""

from __future__ import annotations

from cerebro_spark.backend.wire.authority import issue_credentials

RUN = issue_credentials()
ANOTHER = issue_credentials()
