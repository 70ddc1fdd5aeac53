"""Pickles of earlier versions name modules that have moved since: what they name is found."""

from __future__ import annotations

import importlib
import pickle
import types

import pytest

from cerebro_spark.store import moved, references
from cerebro_spark.store.local import LocalStore

# Keras takes seconds to import.
MOVED = [pytest.param(old, marks=[pytest.mark.slow] if "keras" in old else []) for old in sorted(moved._MOVED)]


@pytest.mark.parametrize("old", MOVED)
def test_every_module_that_moved_is_there(old: str) -> None:
    new = moved.current_module(f"cerebro_spark.{old}")
    assert isinstance(importlib.import_module(new), types.ModuleType)
    assert moved.current_module(new) == new, "a module must not move on to a name that moved itself"


def test_a_pickle_with_an_old_name_is_read() -> None:
    from cerebro_spark.tune.algorithms.grid import GridAlgorithm

    assert moved.loads(b"ccerebro_spark.tune.grid\nGridAlgorithm\n.") is GridAlgorithm


def test_a_kept_pickle_with_an_old_name_is_read(tmp_path: object) -> None:
    from cerebro_spark.trainer.torch.model import TorchModel

    resolve = references.resolver_from(LocalStore(str(tmp_path)))
    assert references.loads(b"ccerebro_spark.trainer.torch_model\nTorchModel\n.", resolve) is TorchModel


def test_names_of_others_are_left_alone() -> None:
    assert moved.current_module("tune.grid") == "tune.grid"
    with pytest.raises(ModuleNotFoundError):
        moved.loads(b"ccerebro_spark.never_was\nThing\n.")
    assert moved.loads(pickle.dumps({"a": [1, 2]})) == {"a": [1, 2]}
