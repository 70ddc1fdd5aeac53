"""Models that others wrote hop exactly, or are refused by name: never anything between.

By default a few of each family; with CEREBRO_ZOO=all (`make test-zoo`) the whole zoo. Each model is trained three times
(see zoo_keeper.py), in two processes: two units in a row; the same after a rehearsal, by turns with another trial of
its structure, with evaluations between; and the second unit alone, from the first one's checkpoint. Checkpoints (bit
for bit, generators too) and metrics must be equal.

Out of scope are torchvision's detection, segmentation, optical flow and video models: they take lists of images of
different sizes with dicts of targets, or clips, which are no columns of a table. What of them trains on one tensor a
row is covered by their backbones.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from specimen import Specimen
from zoo_list import BY_FRAMEWORK
from zoo_process import ZooProcess

from cerebro_spark.trainer.checkpoints.reading import open_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WHOLE = os.environ.get("CEREBRO_ZOO") == "all"
CHOSEN = [
    pytest.param(framework, name, specimen, id=f"{framework}-{name}")
    for framework, table in BY_FRAMEWORK.items()
    for name, specimen in table.items()
    if WHOLE or specimen.quick
]

Pair = tuple[ZooProcess, ZooProcess]


@pytest.fixture(scope="module")
def pair_of() -> Iterator[Callable[[str], Pair]]:
    """Two processes of a framework, kept from model to model; those of another framework end first."""
    running: dict[str, Pair] = {}

    def close() -> None:
        for process in (process for pair in running.values() for process in pair):
            process.close()
        running.clear()

    def pair_of(framework: str) -> Pair:
        if framework not in running or not all(process.alive for process in running[framework]):
            close()
            running[framework] = ZooProcess(framework), ZooProcess(framework)
        return running[framework]

    yield pair_of
    close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is emptied at once: the checkpoints of the whole zoo take some 60 GB."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def run_the_law(pair: Pair, name: str, folder: Path) -> dict[str, Any]:
    """What each part of the law told: the first two side by side, the third from the second one's checkpoint."""
    here, there = pair
    here.ask("straight", name, folder)
    there.ask("crowded", name, folder)
    told = {"straight": here.answer(), "crowded": there.answer()}
    if (folder / "between").exists():
        here.ask("hopped", name, folder)
        told["hopped"] = here.answer()
    # Only now, when nobody has an answer left that was not fetched.
    errors = [f"{part} raised {answer['error']}" for part, answer in told.items() if "error" in answer]
    assert not errors, errors[0]
    return told


def differences(told: dict[str, Any], folder: Path) -> list[str]:
    """How the parts differ from the straight one, in words; empty if in nothing."""
    expected = told["straight"]
    found = []
    for part in ("crowded", "hopped"):
        seen = told[part]
        last = expected["metrics"][-len(seen["metrics"]) :]
        if (seen["metrics"], seen["measured"]) != (last, expected["measured"]):
            found.append(f"{part} measured {seen['metrics']}, {seen['measured']}: {last}, {expected['measured']}")
        found += [f"{part}: {name}" for name in unlike(folder / "straight", folder / part)]
        if seen["digest"] != expected["digest"] and not found:
            found.append(f"{part}: the digests alone")
    return found


def unlike(one: Path, other: Path) -> list[str]:
    """The names in two checkpoints that do not stand for the same bits."""
    with open_checkpoint(one) as a, open_checkpoint(other) as b:
        names = sorted({*a.names(), *b.names()})
        known = set(a.names()) & set(b.names())
        tensors = [n for n in names if n not in known or (a.spec(n), a.read(n)) != (b.spec(n), b.read(n))]
        return tensors + [key for key in a.meta if a.meta[key] != b.meta.get(key)]


@pytest.mark.parametrize(("framework", "name", "specimen"), CHOSEN)
def test_a_model_hops_exactly_or_is_refused_by_name(
    pair_of: Callable[[str], Pair], framework: str, name: str, specimen: Specimen, folder: Path
) -> None:
    told = run_the_law(pair_of(framework), name, folder)
    refusals = [told[part]["refused"] for part in told if "refused" in told[part]]
    if specimen.refused:
        assert refusals, "it must be refused"
        assert all(word in refusals[0] for word in specimen.refused), refusals[0]
    else:
        assert not refusals, refusals[0]
        assert not differences(told, folder)


def test_the_zoo_is_large() -> None:
    assert len([name for table in BY_FRAMEWORK.values() for name in table]) >= 150
