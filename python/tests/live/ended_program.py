"""A program that starts a run, or several, and comes to its end: `python ended_program.py done|failed|interrupted`."""

from __future__ import annotations

import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fake_driver import FakeDriver, beginning

from cerebro_spark.engine import Observer
from cerebro_spark.errors import BackendError
from cerebro_spark.interruptible import InterruptibleEvent
from cerebro_spark.live.run import Run
from cerebro_spark.relay import Relay
from cerebro_spark.store.opening import open_store

last_line = threading.Event()


def late(relay: Relay, observer: Observer) -> Any:
    """Goes on after the program's last line; by then it still needs threads and pools."""
    observer(beginning())
    last_line.wait(60)
    time.sleep(0.3)  # by then the interpreter shuts down; if it does not yet, the test sees less
    with ThreadPoolExecutor(1) as pool:
        pool.submit(print, "the run came to its end").result()
    if sys.argv[1] == "failed":
        raise BackendError("all workers are gone")
    return "the result"


class Awaited(InterruptibleEvent):
    """An event that says when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.awaited.set()
        return super().wait(timeout)


end = Awaited()


def interrupted(relay: Relay, observer: Observer) -> Any:
    """Interrupts the program when it has come to its end, and waits."""
    threading.Thread(target=interrupt_the_wait, daemon=True).start()
    return FakeDriver()(relay, observer)


def interrupt_the_wait() -> None:
    """Interrupt this thread, as the system may: what the main thread waits for does not wake it then."""
    end.awaited.wait(60)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)


run = Run(open_store("memory://x"), "r1", interrupted if sys.argv[1] == "interrupted" else late)
run._ended = end
run.start()
print("the program came to its end", flush=True)
last_line.set()
