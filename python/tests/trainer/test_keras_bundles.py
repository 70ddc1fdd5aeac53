"""Bundles of Keras models on PyTorch leave what single units leave: every byte of every checkpoint, and all metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from trainer_process import HERE, FrameworkProcess
from unimported import keys_in

pytestmark = pytest.mark.slow


def names_in(table: str) -> list[str]:
    return keys_in(HERE / "keras_bundles.py", table)


@pytest.fixture(scope="module")
def process() -> Iterator[FrameworkProcess]:
    process = FrameworkProcess("keras-torch")
    yield process
    process.close()


@pytest.mark.parametrize("case", names_in("STACKED"))
def test_a_stack_leaves_the_bits_of_single_units(process: FrameworkProcess, case: str) -> None:
    seen = process.call("keras_bundles.stacked", case=case)

    assert seen["reasons"] == []
    assert set(seen["widths"]) == {3}
    assert all(seen["same"])


@pytest.mark.parametrize("case", names_in("REFUSED"))
def test_what_is_not_stacked_is_trained_one_by_one(process: FrameworkProcess, case: str) -> None:
    seen = process.call("keras_bundles.refused", case=case)

    assert seen["as_said"], seen["reasons"]
    assert set(seen["widths"]) == {1}
    assert all(seen["same"])


def test_a_member_whose_loss_is_not_finite_fails_alone(process: FrameworkProcess) -> None:
    seen = process.call("keras_bundles.diverging")

    assert set(seen["failed"]) == {"TrialFailed"}
    assert [bool(width) for width in seen["widths"]] == [True, False, True] * 3
    assert seen["widths"][0] == 3
    assert all(seen["same"])


def test_a_search_in_bundles_leaves_the_weights_of_one_without(process: FrameworkProcess, tmp_path: Path) -> None:
    bundled, single = process.call("keras_bundles.searched", folder=str(tmp_path))

    assert bundled["digests"] == single["digests"]
    assert (max(bundled["widths"]), max(single["widths"])) == (4, 1)
