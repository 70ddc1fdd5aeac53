"""Settings that hold for a whole process, put back so that those of one trial do not reach another.

No trial keeps such settings of its own. Environment variables stay as they are set, since libraries set them too when
they are first used: what was set is only said.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_log = logging.getLogger(__name__)

SettingTable = Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]]
"""How settings are read and written, by name."""


def _read_folder() -> str | None:
    """Return the working folder; None if somebody has deleted it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _write_folder(folder: str | None) -> None:
    if folder is not None:
        os.chdir(folder)


COMMON_SETTINGS: SettingTable = {
    "os.getcwd()": (_read_folder, _write_folder),
    "numpy.geterr()": (np.geterr, lambda handling: np.seterr(**handling)),
}
"""Those that every process has."""


# What libraries set for themselves when they are first used.
_BY_LIBRARIES = {"CUDA_MODULE_LOADING", "ENABLE_RUNTIME_UPTIME_TELEMETRY", "HDF5_PLUGIN_PATH", "TF2_BEHAVIOR"}
_OF_LIBRARIES = ("KMP_", "TORCHINDUCTOR_", "_TORCHINDUCTOR_", "TPU_ML_", "TRITON_")


class ProcessSettings:
    """The settings of a process, as they are when this is made, or when `note` is called.

    Args:
        table: The settings.
    """

    def __init__(self, table: SettingTable) -> None:
        self._table = table
        self._own: dict[str, Any] = {}
        self.note()

    def note(self) -> None:
        """Take the settings as they are now for the process's own."""
        self._own = {name: read() for name, (read, _) in self._table.items()}

    def put_back(self) -> None:
        """Put settings back, and say so where that changes anything."""
        for name, value in self._own.items():
            read, write = self._table[name]
            if read() != value:
                _log.warning(
                    "`%s` was set to %r by a function for one trial, and is put back to %r, as it holds for the whole"
                    " process: set it where the module of the function is imported",
                    name,
                    read(),
                    value,
                )
                write(value)


class Environment:
    """The environment variables of a process, as they are when this is made, or when `note` is called."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self.note()

    def note(self) -> None:
        """Take the variables as they are now for known."""
        self._known = dict(os.environ)

    def tell_changes(self) -> None:
        """Say which variables were changed since then: they hold for all trials that this process trains."""
        if os.environ == self._known:
            return
        now = dict(os.environ)
        changed = {name for name, _ in now.items() ^ self._known.items()} - _BY_LIBRARIES
        for name in sorted(name for name in changed if not name.startswith(_OF_LIBRARIES)):
            _log.warning(
                "`os.environ[%r]` was changed by a function for one trial, or by a library that it was the first to"
                " use, and stays so for all trials that this worker trains: set it where the function's module is"
                " imported, and let what differs between trials be in params",
                name,
            )
        self._known = now
