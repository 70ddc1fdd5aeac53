"""Loads a framework before anything is computed with it, and says whether the process may be forked after that.

It runs no operation of a framework: threads that compute are started by the first one, and do not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from pathlib import Path

from cerebro_spark.data.formats import petastorm

# Arrow loads pandas, where it is installed, with the first partition.
_ALWAYS = ("pyarrow.parquet", "pyarrow.compute", "pandas", "cerebro_spark.store.retrying", "cerebro_spark.store.local")
_MODULES = {
    # The compiler is loaded by a process's first optimizer.
    "torch": ("cerebro_spark.trainer.torch.trainer", "torch._dynamo"),
    "keras": ("cerebro_spark.trainer.keras.trainer",),
}
_INSTALLED = {"site-packages", "dist-packages"}
_THREADS = Path("/proc/self/task")
_FILES = Path("/proc/self/fd")


def preload(framework: str | None) -> None:
    """Import what units with this framework import. What cannot be imported here, the first unit will report.

    Args:
        framework: "torch" or "keras"; None for one that is not known.
    """
    petastorm.is_installed()  # which loads it
    for name in (*_ALWAYS, *_MODULES.get(framework or "", ())):
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def preload_to_fork(framework: str | None) -> str | None:
    """Import what units with this framework import, if the process can be forked after that.

    Args:
        framework: "torch" or "keras"; None for one that is not known.

    Returns:
        None if children may be forked, else why not.
    """
    if not _THREADS.exists():
        return "this system does not say how many threads a process has"
    if framework != "torch":
        # On TensorFlow and on PyTorch.
        return "Keras starts threads when it is imported" if framework == "keras" else "the framework is not known"
    for name in ("numpy", "pyarrow"):
        importlib.import_module(name)
    before = _count_threads()
    gc.disable()
    preload(framework)
    gc.freeze()  # else a child's first collection looks at, and so copies, all that was loaded here
    gc.enable()
    return _why_not(before)


def _why_not(threads: int) -> str | None:
    """Return why this process must not be forked, if so; there were so many threads before the framework was loaded.

    Two libraries have threads from the beginning and take care of forks themselves: NumPy's BLAS ends its threads
    before a fork, and Arrow's allocator starts its own again. No other thread may be there: what it holds at that
    moment would be held for ever in the child.
    """
    if _count_threads() != threads:
        return "something that was imported has started threads"
    if any(file.startswith("/dev/nvidia") for file in _open_files()):
        return "something that was imported uses a GPU, which a child could not use then"
    if own := sorted(_not_installed()):
        return f"something that was imported has imported modules of the user's: {', '.join(own)}"
    return None


def _open_files() -> list[str]:
    return [os.readlink(file) for file in _FILES.iterdir() if file.is_symlink()]


def _not_installed() -> set[str]:
    """Return the modules that lie beside a script, say: a next run may have others of the same name.

    Names with an underscore are of libraries that write modules of their own.
    """
    ours = {"cerebro_spark", "sitecustomize", "usercustomize"} | sys.stdlib_module_names
    roots = {name for name in sys.modules if "." not in name and not name.startswith("_")} - ours
    files = {name: getattr(sys.modules[name], "__file__", None) for name in roots}
    return {name for name, file in files.items() if file is not None and not _INSTALLED & set(Path(file).parts)}


def _count_threads() -> int:
    """Return how many threads there are, but for those of Arrow's allocator, of which more may come at any time."""
    return sum((thread / "comm").read_text().strip() != "jemalloc_bg_thd" for thread in _THREADS.iterdir())
