"""Waits without a limit that Ctrl-C always ends.

Python hears a signal when its main thread runs Python code. A signal that comes in the moment between the last Python
code and the wait itself, or that the system hands to another thread, does not wake the wait: Ctrl-C would be heard when
the wait is over, which may be after hours. An exception that is raised in another thread is heard as late. So whoever
waits looks up once in a while.
"""

from __future__ import annotations

import threading

LOOK_UP_S = 1.0
"""How long Ctrl-C may go unheard, in seconds."""


class InterruptibleEvent(threading.Event):
    """An event that can be waited for without a limit, and with Ctrl-C heard all the while."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set.

        Args:
            timeout: How long to wait at most, in seconds; None for as long as it takes.

        Returns:
            Whether it is set.
        """
        if timeout is not None:
            return super().wait(timeout)
        while not super().wait(LOOK_UP_S):
            pass
        return True
