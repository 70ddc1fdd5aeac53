"""Pickles of earlier versions name modules that have moved since: what they name is found."""

from __future__ import annotations

import base64
import importlib
import pickle
import types

import pytest

from cerebro_spark.store import moved, references
from cerebro_spark.store.local import LocalStore

# Keras takes seconds to import.
MOVED = [pytest.param(old, marks=[pytest.mark.slow] if "keras" in old else []) for old in sorted(moved._MOVED)]
# A ReplaySearch over the script of one unit.
OLD_REPLAY = (
    "gASVHAIAAAAAAACMFGNlcmVicm9fc3BhcmsucmVwbGF5lIwMUmVwbGF5U2VhcmNolJOUKYGUfZQojAdfc2NyaXB0lGgAjAZTY3JpcHSUk5QpgZ"
    "RdlCiMAnIxlIwUY2VyZWJyb19zcGFyay5ldmVudHOUjAhTZXR0aW5nc5STlCmBlF2UKIwTY2VyZWJyb19zcGFyay50eXBlc5SMCVBhcnRpdGlv"
    "bpSTlCmBlF2UKIwCcDCUjAV0cmFpbpRLAEsAKSllYoWUSwFLAYwGaG9wcGVylEsASwBLAksDiU4pSwFOjAhpbiBhIHJvd5ROTmViaACMBUFza2"
    "VklJOUaBCMBFdvcmuUk5QpgZRdlCiMAnQwlH2UjAJscpRHP7mZmZmZmZpzSwFOZWJLAIaUgZSFlGgQjAZSZXBvcnSUk5QpgZRdlChoIEsBfZSM"
    "BGxvc3OURz/gAAAAAAAAc0c/8AAAAAAAAGgQjApDaGVja3BvaW50lJOUKGggSwFLAUsBSwqMAmFilHSUgZROZWKFlGgLjAZDb3Vyc2WUk5QpgZ"
    "RdlChoIGgVhZRLAIWUKWgLjAhNZWFzdXJlZJSTlCmBlF2UKEsBKWVihZQpiU5lYoWUfZRoEIwEVW5pdJSTlChoIEsBaBVoFnSUgZRoLnN9lEsB"
    "ZWKMB19lcnJvcnOUfZRoIE5zjAZfYXNrZWSUSwCMBl9oZWFyZJR9lIwIX3JlYWNoZWSUSwB1Yi4="
)


@pytest.mark.parametrize("old", MOVED)
def test_every_module_that_moved_is_there(old: str) -> None:
    new = moved.current_module(f"cerebro_spark.{old}")
    assert isinstance(importlib.import_module(new), types.ModuleType)
    assert moved.current_module(new) == new, "a module must not move on to a name that moved itself"


def test_a_pickle_with_an_old_name_is_read() -> None:
    from cerebro_spark.tune.algorithms.fixed import GridAlgorithm

    assert moved.loads(b"ccerebro_spark.tune.grid\nGridAlgorithm\n.") is GridAlgorithm


@pytest.mark.parametrize(("module", "old"), sorted(moved._RENAMED))
def test_every_class_that_was_renamed_is_there(module: str, old: str) -> None:
    new = moved.loads(f"ccerebro_spark.{module}\n{old}\n.".encode())
    assert new.__name__ == moved._RENAMED[module, old]


def test_a_replay_that_an_earlier_version_pickled_is_read() -> None:
    """Written by the version before `replay` and the classes in it were renamed."""
    search = moved.loads(base64.b64decode(OLD_REPLAY))
    work = search.ask()
    assert (work.trial, work.until_epoch) == ("t0", 1)
    (trial,) = search.script.trials
    assert (trial.visits, trial.reports[0].epoch) == (("p0",), 1)


def test_a_kept_pickle_with_an_old_name_is_read(tmp_path: object) -> None:
    from cerebro_spark.trainer.torch.model import TorchModel

    resolve = references.resolver_from(LocalStore(str(tmp_path)))
    assert references.loads(b"ccerebro_spark.trainer.torch_model\nTorchModel\n.", resolve) is TorchModel


def test_names_of_others_are_left_alone() -> None:
    assert moved.current_module("tune.grid") == "tune.grid"
    with pytest.raises(ModuleNotFoundError):
        moved.loads(b"ccerebro_spark.never_was\nThing\n.")
    assert moved.loads(pickle.dumps({"a": [1, 2]})) == {"a": [1, 2]}
