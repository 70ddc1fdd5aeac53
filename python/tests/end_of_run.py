"""Ends a test run that hangs after its last test, and says where. It never touches a run that ends by itself.

Python waits at its end for threads, pools and child processes that a test left behind, and no limit of a test reaches
that far. This one is a thread of C code, which needs no lock of the interpreter.
"""

from __future__ import annotations

import faulthandler
import sys

import pytest

SECONDS = 120.0


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    faulthandler.dump_traceback_later(SECONDS, exit=True, file=sys.__stderr__ or 2)
