"""Writes and reads blobs on a host of a test: `python -m hosts.writer STORE BYTES...`. It tells how long each took."""

from __future__ import annotations

import os
import sys
import time

from cerebro_spark.store import open_store


def main(url: str, *sizes: str) -> None:
    store = open_store(url)
    store.write("first", b"")  # the connection stands
    print("ready", flush=True)
    for number, size in enumerate(map(int, sizes)):
        sys.stdin.readline()
        began = time.monotonic()
        data = os.urandom(size)
        store.write(f"blobs/{number}", data)
        print("wrote", f"{time.monotonic() - began:.3f}", flush=True)
        began = time.monotonic()
        # The one that was written while all was well has a replica on this host.
        assert len(store.read("blobs/0")) == size
        print("read", f"{time.monotonic() - began:.3f}", flush=True)
        assert store.read(f"blobs/{number}") == data
    print("left", *store.unfinished(0.0), flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
