"""The examples in docstrings are run, module by module."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "cerebro_spark"
HEAVY = ("keras", "torch", "petastorm", "prepare", "spark", "unischema")
LIGHT = sorted(
    ".".join(("cerebro_spark", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if not any(word in path.stem for word in HEAVY)
)


# Keras takes seconds to import.
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if ".keras" in name else []) for name in LIGHT]


@pytest.mark.parametrize("name", NAMES)
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    if ">>>" not in Path(str(module.__file__)).read_text():
        return
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
