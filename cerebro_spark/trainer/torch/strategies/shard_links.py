"""What FSDP takes for its process groups: the links of a group, one after another for each part of a model.

PyTorch's own process groups wait for a frozen member as long as it takes, and gloo's silently adds up where a mean was
asked for. So every collective goes over links that can be left, and anything but a sum is an error.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from cerebro_spark.trainer.group import GroupRefused
from cerebro_spark.trainer.torch.links import TorchLinks

_BACKEND = "cerebro_shards"


class ShardLinks(distributed.ProcessGroup):
    """The links of a group as a process group of PyTorch, for one part of a model.

    Before each collective members compare what they are about to do: one that computes other parts of the model, or the
    same ones in another order, would get numbers of other parameters than it asks for.

    Args:
        links: The links.
        part: The number of the part; all members number them alike.
        lending: Holds True while a member computes with rows that are not in the batch: its gradients count as zero.
    """

    def __init__(self, links: TorchLinks, part: int, lending: list[bool]) -> None:
        super().__init__(links.rank, links.size)  # type: ignore[call-arg]
        self._links = links
        self._part = part
        self._lending = lending
        self._name = ""

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    def _set_group_desc(self, text: str) -> None:
        """PyTorch describes its groups so; nothing here reads it."""

    def getBackendName(self) -> str:
        return _BACKEND

    def _allgather_base(self, output: torch.Tensor, part: torch.Tensor, options: Any = None) -> Any:
        # Nothing is returned that could be waited for: it is over.
        require_agreement(self._links, f"gather {self._part} {output.numel()} {output.dtype}")
        self._links.gather_parts(output, part)

    def _reduce_scatter_base(self, output: torch.Tensor, values: torch.Tensor, options: Any) -> Any:
        if options.reduceOp != distributed.ReduceOp.SUM:
            raise AssertionError(f"gradients are to be added up, not reduced by {options.reduceOp}")
        require_agreement(self._links, f"sum {self._part} {values.numel()} {values.dtype}")
        if self._lending[0]:
            values.zero_()
        self._links.sum_parts(output, values)


def require_agreement(links: TorchLinks, doing: str) -> None:
    """Raise GroupRefused, as all other members do, unless all are about to do the same.

    Args:
        links: The links.
        doing: What this member is about to do.
    """
    said = torch.zeros(links.size, dtype=torch.int64)
    said[links.rank] = zlib.crc32(doing.encode())
    links.sum(said)
    if len(set(said.tolist())) > 1:
        raise GroupRefused(
            "its members compute different parts of its model, or in another order: which parts are computed depends"
            " on the rows of a batch, or is drawn at random"
        )


@contextmanager
def linked(links: TorchLinks, device: torch.device, lending: list[bool]) -> Iterator[Callable[[], DeviceMesh]]:
    """Let FSDP use the links of a group inside the block.

    Args:
        links: The links.
        device: Where parameters are.
        lending: See `ShardLinks`.

    Yields:
        A function that returns what the next part of a model is to be sharded over.
    """
    count = 0

    def create(store: Any, rank: int, size: int, timeout: Any) -> ShardLinks:
        nonlocal count
        count += 1
        return ShardLinks(links, count, lending)

    def next_mesh() -> DeviceMesh:
        return DeviceMesh.from_group(distributed.new_group(list(range(links.size))), device.type)

    _creators.append(create)
    try:
        # Members meet nowhere here: they have their links.
        nowhere: Any = importlib.import_module("torch.distributed").HashStore()
        distributed.init_process_group(_BACKEND, store=nowhere, rank=links.rank, world_size=links.size)
        yield next_mesh
    finally:
        _creators.pop()
        if distributed.is_initialized():
            distributed.destroy_process_group()


_creators: list[Callable[..., ShardLinks]] = []
"""What makes process groups now; a process trains one unit at a time."""

distributed.Backend.register_backend(_BACKEND, lambda *given: _creators[-1](*given), devices=["cpu", "cuda"])
