"""Settings of Keras that hold for a whole process, put back so that those of one trial do not reach another.

No trial keeps settings of its own: trials share the graphs that were traced with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras

_log = logging.getLogger(__name__)
_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {
    "floatx": (keras.config.floatx, keras.config.set_floatx),
    "epsilon": (keras.config.epsilon, keras.config.set_epsilon),
    "image_data_format": (keras.config.image_data_format, keras.config.set_image_data_format),
}


def read_settings() -> dict[str, Any]:
    """Return the settings as they are now, by name."""
    return {name: read() for name, (read, _) in _SETTINGS.items()}


def restore_settings(settings: dict[str, Any]) -> None:
    """Put settings back, and say so where that changes anything."""
    for name, value in settings.items():
        read, write = _SETTINGS[name]
        if read() != value:
            _log.warning(
                "`keras.config.%s` was set to %r by a function for one trial, and is put back to %r, as it holds for"
                " the whole process: set it where the module of the function is imported",
                name,
                read(),
                value,
            )
            write(value)
