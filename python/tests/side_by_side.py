"""How tests are dealt to processes that run side by side (`pytest -n 2`): by file, and all of Hadoop's to one of them.

A file's tests share what they set up, and those of Hadoop share one cluster, which they kill parts of. With them go the
tests that send jobs from a gateway, so that its environment is packed once. Quick tests of trainers, and others with
PyTorch, go to one process too, because the first use of torchmetrics or of an optimizer takes seconds. A test that
shares nothing and takes long may be marked with a group of its own. What takes longest comes first, so that no process
is left with it at the end.
"""

from __future__ import annotations

import pytest


def deal(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Say which tests stay together, and order them; a run in one process is left as it is."""
    if config.getoption("dist") == "no" and not hasattr(config, "workerinput"):
        return
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=_turn)


def check_dealt(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Raise a UsageError where the groups have no effect: each process would start a Hadoop cluster of its own.

    pytest-xdist writes the group behind the test's name, in a place that only some versions of pytest look at.
    """
    if getattr(config.option, "loadgroup", False) and not all("@" in item.nodeid for item in items):
        raise pytest.UsageError(
            f"pytest {pytest.__version__} does not keep the groups that pytest-xdist gives tests: use the versions in"
            " constraints/classic.txt"
        )


def _group(item: pytest.Item) -> str:
    if item.get_closest_marker("hadoop") or "gateway" in getattr(item, "fixturenames", ()):
        return "hadoop"
    return "trainers" if _is_quick_trainer_test(item) else str(item.path)


def _is_quick_trainer_test(item: pytest.Item) -> bool:
    if item.get_closest_marker("slow"):
        return False
    return item.path.parent.name == "trainer" or hasattr(getattr(item, "module", None), "torch")


def _turn(item: pytest.Item) -> int:
    """Hadoop's first, then what is slow, then trainers, then the rest; within each in the order they have."""
    known = (*map(item.get_closest_marker, ("hadoop", "slow")), _is_quick_trainer_test(item))
    return next((turn for turn, applies in enumerate(known) if applies), len(known))
