"""`cerebro-spark dashboard STORE`. It opens the store and serves until it is interrupted."""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress

from cerebro_spark.dashboard.security import Access
from cerebro_spark.dashboard.serving import is_open_to_others, listen
from cerebro_spark.store.opening import open_store


def dashboard(options: argparse.Namespace) -> None:
    """Serve until the process is interrupted.

    Args:
        options: What `arguments.py` describes.
    """
    access = Access(
        host=options.host,
        allowed_hosts=tuple(options.allow_host),
        base_path=options.base_path or "",
        read_only=options.read_only,
    )
    store = open_store(options.store)
    served = listen(store, access, options.port)
    print(f"Runs of {store.url}:\n\n    {served.link()}\n", flush=True)
    if is_open_to_others(access):
        print(
            "Other machines can reach this, and what they send and get is not encrypted: whoever sees the link can"
            " read the runs and command them. An SSH tunnel or a proxy with TLS is safer.\n",
            file=sys.stderr,
            flush=True,
        )
    print("Ctrl-C ends it. No run is disturbed by it.", flush=True)
    with suppress(KeyboardInterrupt):
        served.run()
