"""What all trials of a worker's process share besides their models, kept apart between trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro_spark.trainer.sharing.patches import LibraryFunctions, Registries
from cerebro_spark.trainer.sharing.process_settings import COMMON_SETTINGS, Environment, ProcessSettings
from cerebro_spark.trainer.sharing.snapshot import StateChange


class SharedProcess:
    """Settings, environment variables and the functions of libraries, as they are before a function for one trial.

    What changes between such functions is the user's own doing: trainers are in notebooks too.

    Args:
        libraries: The modules and classes of libraries whose functions are watched, by name; and dicts of functions
            that these call for all models.
    """

    def __init__(self, libraries: Mapping[str, Any]) -> None:
        registries = {name: each for name, each in libraries.items() if isinstance(each, dict)}
        self._functions = LibraryFunctions({name: each for name, each in libraries.items() if name not in registries})
        self._registries = Registries(registries)
        self._settings = ProcessSettings(COMMON_SETTINGS)
        self._environment = Environment()

    def note(self) -> None:
        """Take all of it as it is now, before a function is called."""
        for part in (self._settings, self._environment, self._registries, self._functions):
            part.note()

    def put_back(self) -> StateChange | None:
        """Put back what a function for one trial has changed, and log what that was.

        Returns:
            The first function of a library that was replaced, or None. That is an error of the trial.
        """
        self._settings.put_back()
        self._environment.tell_changes()
        added, replaced = self._registries.put_back(), self._functions.put_back()
        return added or replaced
