"""Loads a framework before anything is computed with it, and says whether the process may be forked after that.

It runs no operation of a framework: threads that compute are started by the first one, and do not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
from pathlib import Path

from cerebro_spark.data.formats import petastorm

# Arrow loads pandas, where it is installed, with the first partition.
_ALWAYS = ("pyarrow.parquet", "pyarrow.compute", "pandas", "cerebro_spark.store.retrying", "cerebro_spark.store.local")
# PyTorch's compiler is loaded by a process's first optimizer.
_TORCH = ("cerebro_spark.trainer.torch.trainer", "torch._dynamo")
_MODULES = {
    "torch": _TORCH,
    "keras": ("cerebro_spark.trainer.keras.trainer",),
    "keras on torch": (*_TORCH, "cerebro_spark.trainer.keras.trainer"),
}
_THREADS = Path("/proc/self/task")


def preload(framework: str | None) -> None:
    """Import what units with this framework import. What cannot be imported here, the first unit will report.

    Args:
        framework: "torch" or "keras"; None for one that is not known.
    """
    petastorm.is_installed()  # which loads it
    for name in (*_ALWAYS, *_MODULES.get(_with_backend(framework), ())):
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def preload_to_fork(framework: str | None) -> bool:
    """Import what units with this framework import, if the process can be forked after that.

    Two libraries have threads from the beginning and take care of forks themselves: NumPy's BLAS ends its threads
    before a fork, and Arrow's allocator starts its own again. No other thread may be there: what it holds at that
    moment would be held for ever in the child. TensorFlow starts some when it is imported, so it is not imported here.

    Args:
        framework: "torch" or "keras"; None for one that is not known.

    Returns:
        Whether children may be forked.
    """
    if not _THREADS.exists() or _with_backend(framework) not in ("torch", "keras on torch"):
        return False
    for name in ("numpy", "pyarrow"):
        importlib.import_module(name)
    before = _count_threads()
    preload(framework)
    gc.collect()
    gc.freeze()  # else a child's first collection looks at, and so copies, all that was loaded here
    return _count_threads() == before


def _with_backend(framework: str | None) -> str:
    on_torch = framework == "keras" and os.environ.get("KERAS_BACKEND") == "torch"
    return "keras on torch" if on_torch else framework or ""


def _count_threads() -> int:
    """Return how many threads there are, but for those of Arrow's allocator, of which more may come at any time."""
    return sum((thread / "comm").read_text().strip() != "jemalloc_bg_thd" for thread in _THREADS.iterdir())
