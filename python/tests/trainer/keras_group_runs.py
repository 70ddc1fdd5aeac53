"""Trains units of Keras models in groups, and by one process. It imports Keras in members only, and asserts nothing."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from group_runs import GroupRun, train_alone, train_member

from cerebro_spark.trainer.group import Meeting


def make_run(table: str, case: str, **changes: Any) -> GroupRun:
    """Return the run of a case of a table in `keras_group_models`."""
    kind, model_fn, *hooks = getattr(importlib.import_module("keras_group_models"), table)[case]
    return GroupRun(model_fn, kind, framework="keras", hooks=hooks[0] if hooks else None, **changes)


def train_case(meeting: Meeting, table: str, case: str, **changes: Any) -> Any:
    """Train a case in a group."""
    return train_member(meeting, make_run(table, case, **changes))


def train_case_alone(meeting: Meeting, table: str, case: str, **changes: Any) -> Any:
    """Train a case in one process."""
    return train_alone(make_run(table, case, **changes))


def train_lonely(meeting: Meeting, table: str, case: str) -> Any:
    """Train a case in a group of two, of which the other one never comes."""
    meeting.size = 2
    return train_case(meeting, table, case)


def refuse_case(meeting: Meeting, case: str) -> tuple[Any, tuple[str, ...]]:
    """Train a case that is refused; return what came of it, and what should be said: one of these."""
    *_, reason = importlib.import_module("keras_group_models").REFUSED[case]
    # Two losses may be alike by chance, where their gradients are not.
    no_mean = ("its loss is no mean over rows", "the gradient of a batch is not that of its parts")
    return train_case(meeting, "REFUSED", case), no_mean if reason == no_mean[0] else (reason,)


def train_without_torch(meeting: Meeting) -> Any:
    """Train a case where PyTorch cannot be found."""
    find: Any = importlib.util.find_spec
    replaced: Any = lambda name, package=None: None if name == "torch" else find(name, package)  # noqa: E731
    importlib.util.find_spec = replaced
    try:
        return train_lonely(meeting, "EXACT", "sgd")
    finally:
        importlib.util.find_spec = find
