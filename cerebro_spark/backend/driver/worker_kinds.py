"""Which workers are of one kind, so that a process which is there already can start the next of them. It starts none.

Two workers are of one kind if a new process would be the same for both before it unpickles its job.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.worker.ahead import AheadSpec
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.spec import detect_framework

_INSTALLED = ("site-packages", "dist-packages")
_PYTORCH_FOLDER = ("torch.distributed.nn.jit.instantiator", "INSTANTIATED_TEMPLATE_DIR_PATH")


def framework_of(job: Job) -> str | None:
    """Return the framework of a job's trainer, "torch" or "keras"; None for a trainer of the user's own."""
    named = job.trainer.framework
    if named != "auto":
        return named if isinstance(named, str) else None
    try:
        return detect_framework(job.trainer.hooks.model_fn)
    except ConfigurationError:
        return None  # the trainer will say so


def ahead_of(framework: str | None, job: Job) -> AheadSpec | None:
    """Return what a process can do before it has such a job; None for nothing.

    A process cannot inherit a GPU: its context and libraries take as long as all else before the first unit. Whether
    there is a GPU is seen where the worker is.

    Args:
        framework: The framework of its trainer.
        job: The job of the worker, with what it owns of its machine.
    """
    device = job.trainer.resources.device
    if framework != "torch" or device == "cpu":
        return None
    return AheadSpec("cerebro_spark.trainer.torch.gpu_start:start_gpu", (device,), needs="/dev/nvidiactl")


def worker_kind(framework: str | None, job: Job) -> str:
    """Return a digest of all that makes a process before it knows its job.

    That is its framework, threads, device and precision; the environment, folder, interpreter and module path of this
    process, which it has from it; and when packages were last installed there.

    Args:
        framework: The framework of its trainer.
        job: The job of the worker, with what it owns of its machine.
    """
    made_of = [
        framework,
        asdict(job.trainer.resources),
        sorted(os.environ.items()),
        os.getcwd(),
        sys.executable,
        [(path, _installed_at(path)) for path in sys.path if not _is_a_librarys(path)],
    ]
    return hashlib.blake2b(json.dumps(made_of).encode(), digest_size=16).hexdigest()


def _is_a_librarys(path: str) -> bool:
    """Return whether a library has put a folder on the path when it was imported, for itself alone.

    Setuptools does so with a part of itself, and PyTorch's compiler with a temporary folder.

    >>> _is_a_librarys("/lib/site-packages/setuptools/_vendor"), _is_a_librarys("/lib/site-packages")
    (True, False)
    """
    made = getattr(sys.modules.get(_PYTORCH_FOLDER[0]), _PYTORCH_FOLDER[1], None)
    return path == made or any(parent.name in _INSTALLED for parent in Path(path).parents)


def _installed_at(path: str) -> int:
    """Return when a package was last added to or removed from a folder of packages; 0 for any other folder."""
    if Path(path).name not in _INSTALLED:
        return 0
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
