"""TensorFlow's tensors have the memory of arrays where it can use that, and their values everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from trainer_process import FrameworkProcess

pytestmark = pytest.mark.slow
SIZES = ("8", "16", "32", "64")
DTYPES = ["bool", *(f"{kind}{size}" for kind in ("int", "uint") for size in SIZES), "float16", "float32", "float64"]


@pytest.fixture(scope="module")
def process() -> Iterator[FrameworkProcess]:
    process = FrameworkProcess("keras-tensorflow")
    yield process
    process.close()


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_of_every_kind_are_shared(process: FrameworkProcess, dtype: str) -> None:
    assert process.call("keras_shared_tensors.of_dtype", dtype=dtype) == {"shared": True, "same": True}


@pytest.mark.parametrize(
    ("kind", "shared"), [("mapped", True), ("elsewhere", False), ("every second", False), ("empty", False)]
)
def test_only_memory_that_tensorflow_can_use_is_shared(
    process: FrameworkProcess, tmp_path: Path, kind: str, shared: bool
) -> None:
    seen = process.call("keras_shared_tensors.of_place", kind=kind, folder=str(tmp_path))

    assert seen == {"shared": shared, "same": True}


def test_a_tensor_keeps_its_array(process: FrameworkProcess, tmp_path: Path) -> None:
    assert process.call("keras_shared_tensors.outlives", folder=str(tmp_path)) == [0.0, 1.0, 2.0]
