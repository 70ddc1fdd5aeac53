"""Functions with a cache around them travel by value, as others do."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cerebro_spark import pickling
from cerebro_spark.store import references

SCRIPT = """
import functools, sys

@functools.lru_cache(maxsize=3, typed=True)
def half(number):
    return number / 2

@functools.cache
def fibonacci(number):
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)

class Layer:
    @functools.lru_cache
    def width(self):
        return half(8)

def model_fn(params):
    return half(params["lr"]), fibonacci(30), Layer().width()

if __name__ == "__main__":
    from cerebro_spark import pickling
    model_fn({"lr": 1})
    sys.stdout.buffer.write(pickling.dumps([model_fn, half]))
"""


@functools.cache
def doubled(number: int) -> int:
    return number * 2


def test_functions_of_a_script_work_in_another_process(tmp_path: Path) -> None:
    script = tmp_path / "search.py"
    script.write_text(SCRIPT)
    said = subprocess.run([sys.executable, str(script)], capture_output=True, timeout=120, check=True)
    model_fn, half = pickle.loads(said.stdout)
    assert model_fn({"lr": 3}) == (1.5, 832040, 4.0)
    assert half.cache_parameters() == {"maxsize": 3, "typed": True}
    half.cache_clear()
    assert half.cache_info().currsize == 0


def test_a_function_that_is_found_by_name_stays_that_function() -> None:
    assert pickle.loads(pickling.dumps(doubled)) is doubled


def test_what_is_kept_in_a_store_has_them_too() -> None:
    @functools.cache
    def inner(number: int) -> int:
        return number + 1

    def outer(number: int) -> int:
        return inner(number) * 10

    data, _ = references.dumps(outer)

    def refuse(reference: Any) -> Any:
        pytest.fail(f"there is no store in it, but {reference}")

    assert references.loads(data, refuse)(1) == 20


def test_recursion_keeps_one_cache() -> None:
    @functools.cache
    def count(number: int) -> int:
        return 0 if number == 0 else 1 + count(number - 1)

    again = pickle.loads(pickling.dumps(count))
    assert again(20) == 20
    assert again.cache_info().currsize == 21
