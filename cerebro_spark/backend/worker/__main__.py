"""The worker process: `python -m cerebro_spark.backend.worker`. Its spec comes through standard input.

Standard input stays open as long as the parent lives. When it closes, the parent is gone, and the worker ends too.
"""

from __future__ import annotations

import logging
import os
import sys
import threading

import cloudpickle

from cerebro_spark.backend.wire.channel import WireError
from cerebro_spark.backend.worker.session import OutputRelay, serve
from cerebro_spark.user_modules import import_sent_modules_first


def main() -> None:
    """Run one worker to its end."""
    # Warnings, and what the package itself has to say, go to standard error, and from there into the driver's log.
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("cerebro_spark").setLevel(logging.INFO)
    import_sent_modules_first()
    spec = cloudpickle.load(sys.stdin.buffer)
    relay = OutputRelay()
    threading.Thread(target=_end_with_parent, args=(relay,), daemon=True).start()
    try:
        serve(spec, relay)
    except (OSError, WireError) as error:
        print(f"worker {spec.name} ends: {error}", file=sys.stderr)
    # Threads of frameworks may not end by themselves; all of ours have.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_with_parent(relay: OutputRelay) -> None:
    for raw in sys.stdin.buffer:
        relay(raw)
    os._exit(1)


if __name__ == "__main__":
    main()
