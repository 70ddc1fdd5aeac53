"""What links between the members of a group count of what is told over them."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cerebro_spark.trainer.group import GroupBroken
from cerebro_spark.trainer.torch.links import TorchLinks

SIZES = [2, 3, 7]


class Done:
    """A collective that has ended."""

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None: ...


class Alone:
    """What PyTorch calls a group, without the others: nothing is added or written."""

    def allreduce(self, values: Any) -> Done:
        return Done()

    _allgather_base = _reduce_scatter_base = lambda self, output, given: Done()


class Broken(Alone):
    """One whose other members are gone."""

    def allreduce(self, values: Any) -> Done:
        raise RuntimeError("Connection closed by peer")


def links(size: int, *, device: str = "cpu", process_group: Any = None) -> TorchLinks:
    meeting: Any = SimpleNamespace(rank=1, size=size, left=threading.Event())
    return TorchLinks(process_group or Alone(), meeting, torch.device(device))


@pytest.mark.parametrize("size", SIZES)
def test_a_sum_goes_around_the_ring_twice(size: int) -> None:
    own = links(size)
    assert own.exchanged == 0
    own.sum(torch.zeros(10))
    assert own.exchanged == 2 * (size - 1) * 40
    own.sum(torch.zeros(3, 2, dtype=torch.float64))
    assert own.exchanged == 2 * (size - 1) * (40 + 48)


@pytest.mark.parametrize("size", SIZES)
def test_parts_are_gathered_by_going_around_once(size: int) -> None:
    own = links(size)
    own.gather_parts(torch.zeros(5 * size, dtype=torch.bfloat16), torch.zeros(5, dtype=torch.bfloat16))
    assert own.exchanged == (size - 1) * 10 * size


@pytest.mark.parametrize("size", SIZES)
def test_bytes_of_any_length_are_gathered_by_two_sums(size: int) -> None:
    own = links(size)
    own.gather(b"x" * 100)
    assert own.exchanged == 2 * (size - 1) * (8 * size + 100 * size)


@pytest.mark.parametrize("size", SIZES)
def test_parts_of_a_sum_go_around_once_where_nobody_gets_all_of_it(size: int) -> None:
    # Gloo sums all up.
    for device, times in (("cpu", 2), ("cuda", 1)):
        own = links(size, device=device)
        own.sum_parts(torch.zeros(4), torch.zeros(4 * size))
        assert own.exchanged == times * (size - 1) * 16 * size


def test_what_never_ended_is_not_counted() -> None:
    own = links(2, process_group=Broken())
    with pytest.raises(GroupBroken, match="another member is gone: Connection closed by peer"):
        own.sum(torch.zeros(10))
    assert own.exchanged == 0
