"""What a process of the tests does ahead of its job: it says who it is, and waits for a word."""

from __future__ import annotations

import os
from pathlib import Path

BEGUN, GO = "begun", "go"


def get_ready(folder: str) -> None:
    """Tell through one pipe that this process is there; read from another whether it is to go on."""
    (Path(folder) / BEGUN).write_text(str(os.getpid()))
    if (Path(folder) / GO).read_text() != "well":
        raise RuntimeError("not ready")
