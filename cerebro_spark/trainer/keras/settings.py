"""Settings of Keras that hold for a whole process, put back so that those of one trial do not reach another.

No trial keeps settings of its own: trials share the graphs that were traced with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import keras

_log = logging.getLogger(__name__)

SettingTable = Mapping[str, tuple[Callable[[], Any], Callable[[Any], Any]]]
"""How settings are read and written, by name."""

KERAS_SETTINGS: SettingTable = {
    "keras.config.floatx": (keras.config.floatx, keras.config.set_floatx),
    "keras.config.epsilon": (keras.config.epsilon, keras.config.set_epsilon),
    "keras.config.image_data_format": (keras.config.image_data_format, keras.config.set_image_data_format),
}


class ProcessSettings:
    """The settings of a process, as they are when this is made.

    Args:
        table: The settings.
    """

    def __init__(self, table: SettingTable) -> None:
        self._table = table
        self._own = {name: read() for name, (read, _) in table.items()}

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
