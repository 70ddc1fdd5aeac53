"""Makes a process one that gives way to all others, in time and in memory. It changes only itself.

It does not ask for the class of processes that run only while a core is idle. The workers of a LocalBackend leave none
idle, and such a process would get one part in 300 of a core: there would be no forecast before the run is over.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

LOW = 10
"""A low priority: beside a process of normal priority, one part in ten of a core.

At the lowest one, where it is one part in 70, a forecast beside busy workers would take minutes.
"""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
"""What such a process is started with: one thread, and no GPU."""


def give_way(nice: int = LOW) -> None:
    """Let this process, and those it starts, compute when others leave time; it is the first to go if memory is short.

    Args:
        nice: By how much its priority is lower, 0 to 19.
    """
    os.nice(nice)
    with contextlib.suppress(OSError):  # there is no such file on other systems, and it may be forbidden
        Path("/proc/self/oom_score_adj").write_text("1000")
