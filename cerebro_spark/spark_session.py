"""The Spark session of this process, whichever thread asks for it. It looks at pyspark and never imports it anew."""

from __future__ import annotations

import sys
from typing import Any


def active_session() -> Any | None:
    """Return the session that is active in this thread, else the one of the process; None if there is none.

    A new thread has no active session even if the process has one, and Spark's validators call `fit` in such threads. A
    session that was stopped is none.
    """
    sql = sys.modules.get("pyspark.sql")
    if sql is None:
        return None  # who has not imported it has no session
    from pyspark.errors import PySparkRuntimeError

    try:
        session = sql.SparkSession.active()
    except PySparkRuntimeError:  # so Spark says that there is none
        return None
    # A context that was stopped by itself leaves its session behind. One of Spark Connect has no context.
    context = getattr(session, "_sc", None)
    return None if context is not None and context._jsc is None else session
