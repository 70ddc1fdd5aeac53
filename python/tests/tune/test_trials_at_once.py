"""How many trials searches that learn from trials run at a time: enough to train together, where they may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sound_search import LEFT_OUT
from sound_search import search as sound_search

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.types import Work


@pytest.mark.parametrize(("fuse", "given", "expected"), [(False, None, 4), ("auto", None, 10), (2, None, 4), (8, 3, 3)])
def test_with_fuse_they_are_more_unless_the_user_says(
    tmp_path: Path, fuse: Any, given: int | None, expected: int
) -> None:
    options = {"fuse": fuse, "num_trials": 40, "max_concurrent": given, "space": {"lr": hp.uniform(0, 1)}}
    tpe = sound_search(tmp_path, cs.TPESearch, **options)
    asha = sound_search(tmp_path, cs.ASHA, max_epochs=9, epochs=LEFT_OUT, **options)
    for search in (tpe, asha):
        algorithm = search._stopping_algorithm(workers=2)
        assert sum(isinstance(algorithm.ask(), Work) for _ in range(40)) == expected
