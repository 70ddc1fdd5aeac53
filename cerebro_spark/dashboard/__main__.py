"""The dashboard in a process of its own, started by a notebook. What it needs comes by its standard input.

So the token and the store's credentials are in no list of processes. It ends when the input does: with its parent.
"""

from __future__ import annotations

import json
import pickle
import sys
import threading

from cerebro_spark.dashboard.security import Access
from cerebro_spark.dashboard.serving import Served, listen


def main() -> None:
    """Serve until the parent is gone."""
    line = sys.stdin.buffer.readline()
    if not line:
        return
    asked = json.loads(line)
    store = pickle.loads(bytes.fromhex(asked["store"]))  # what the parent process made, not what a store holds
    served = listen(store, Access(**{**asked["access"], "allowed_hosts": tuple(asked["access"]["allowed_hosts"])}), 0)
    threading.Thread(target=_watch_parent, args=(served,), name="parent", daemon=True).start()
    print(json.dumps({"port": served.port}), flush=True)
    served.run()


def _watch_parent(served: Served) -> None:
    sys.stdin.buffer.read()
    served.stop()


if __name__ == "__main__":
    main()
