"""Deliberate bugs in the scheduler and the event log are found by their tests; `make mutants` tries all of them."""

from __future__ import annotations

import pytest
from mutants.__main__ import ROOT, choose, find
from mutants.listed import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_replaces_is_there_once(mutant: Mutant) -> None:
    text = (ROOT / "cerebro_spark" / mutant.file).read_text()
    assert text.count(mutant.sound) == 1
    compile(text.replace(mutant.sound, mutant.broken), mutant.file, "exec")


def test_there_are_many_and_no_two_of_one_name() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 30


def test_a_sample_depends_on_nothing_but_the_sources() -> None:
    assert choose(3) == choose(3)
    assert len(choose(0, only="a paused run")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("mutant", choose(1), ids=lambda mutant: mutant.name)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    assert find(mutant), f"no test notices that {mutant.name}"
